"""Runs asynchronous tests on a clock that jumps to the next timer, so that exact times can be checked and nothing waits."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.sim.loop import VirtualLoop

MOST_STEPS = 100_000  # a scenario takes some thousands at most
BEGIN = 1000.0  # what the virtual clock shows at the start


class Loop(VirtualLoop):
    """Keeps the handlers of signals, so that a test can call them. No process gets a real signal here."""

    def __init__(self) -> None:
        super().__init__(random.Random(1), BEGIN)
        self.handlers: dict[int, Callable[..., object]] = {}

    def _run_once(self) -> None:
        assert self.steps < MOST_STEPS, "this scenario does not come to an end"
        super()._run_once()

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: object) -> None:
        self.handlers[sig] = callback


def on_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs a scenario. An error that no code handles ends the run."""
    loop = Loop()
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.end_all()


def passed() -> float:
    """Returns the virtual seconds since the start."""
    return round(asyncio.get_running_loop().time() - BEGIN, 6)


async def settle() -> None:
    """Lets everything run that needs no time."""
    for _ in range(60):
        await asyncio.sleep(0)
