"""Helpers with which tests wait for a condition, with a time limit. No test sleeps for a fixed time."""

import asyncio
import http.client
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

import asyncpg

T = TypeVar("T")
LOOK_EVERY = 0.05  # seconds, because a check may cost a request and a statement
GLANCE_EVERY = 0.01  # seconds, for checks that only read memory
NOT_YET = (OSError, http.client.HTTPException, asyncpg.PostgresError, AssertionError)  # the errors of a check that runs too early
STRETCH = 4  # a time limit is stretched to at most this many times its length
CPU_PRESSURE = Path("/proc/pressure/cpu")


class Deadline:
    """A time limit in seconds that is stretched while the machine is busy.

    While some process waits for a processor, four seconds of the clock count as one. So the limit is exact on a quiet machine,
    and a machine that is busy with other work does not fail a test because it is slow.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._begun, self._starved = monotonic(), _starved_seconds()

    def over(self) -> bool:
        return self.left() <= 0

    def left(self) -> float:
        elapsed = monotonic() - self._begun
        starved = min(_starved_seconds() - self._starved, elapsed)
        return self.seconds - (elapsed - starved) - starved / STRETCH


def _starved_seconds() -> float:
    """Returns for how many seconds since boot some process has waited for a processor, or 0 if the kernel does not count it."""
    try:
        some = CPU_PRESSURE.read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6


def eventually(check: Callable[[], T], within: float = 20, what: str = "the condition") -> T:
    """Returns the first true result of `check`. Fails with the last result when the time is up."""
    deadline = Deadline(within)
    last: object = None
    while True:
        try:
            last = check()
            if last:
                return last  # type: ignore[return-value]
        except NOT_YET as error:
            last = error
        assert not deadline.over(), f"{what} did not hold within {within} s; last: {last!r}"
        sleep(LOOK_EVERY)


async def becomes(check: Callable[[], Awaitable[T]], within: float = 20, what: str = "the condition") -> T:
    """Returns the first true result of an asynchronous `check`. Fails with the last result when the time is up."""
    deadline = Deadline(within)
    while not (last := await check()):
        assert not deadline.over(), f"{what} did not hold within {within} s; last: {last!r}"
        await asyncio.sleep(GLANCE_EVERY)
    return last


def always(check: Callable[[], object], during: float, what: str = "the condition") -> None:
    """Fails unless the condition holds at every check until the time is up. It is for events that must *not* happen."""
    deadline = monotonic() + during
    while True:
        assert check(), f"{what} did not hold for {during} s"
        if monotonic() >= deadline:
            return
        sleep(LOOK_EVERY)


async def sooner(check: Callable[[], T], within: float = 20) -> T | None:
    """Returns the first true result of `check`, or None when the time is up. It is for fakes on an event loop."""
    deadline = Deadline(within)
    while not (found := check()):
        if deadline.over():
            return None
        await asyncio.sleep(GLANCE_EVERY)
    return found
