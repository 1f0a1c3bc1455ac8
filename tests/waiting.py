"""How tests wait: for a condition, with a bound; never for a time."""

import asyncio
import http.client
import time
from collections.abc import Callable
from typing import TypeVar

import asyncpg

T = TypeVar("T")
LOOK_EVERY = 0.05  # seconds: a look may cost a request and a statement
GLANCE_EVERY = 0.01  # at what lies in memory
NOT_YET = (OSError, http.client.HTTPException, asyncpg.PostgresError, AssertionError)  # what asking too early raises


def eventually(check: Callable[[], T], within: float = 20, what: str = "the condition") -> T:
    """The first true answer of `check`; fails with the last one when time is up."""
    deadline = time.monotonic() + within
    last: object = None
    while True:
        try:
            last = check()
            if last:
                return last  # type: ignore[return-value]
        except NOT_YET as error:
            last = error
        assert time.monotonic() < deadline, f"{what} did not hold within {within} s; last: {last!r}"
        time.sleep(LOOK_EVERY)


def always(check: Callable[[], object], during: float, what: str = "the condition") -> None:
    """It holds now, and at every look until the time is up: for what must *not* happen."""
    deadline = time.monotonic() + during
    while True:
        assert check(), f"{what} did not hold for {during} s"
        if time.monotonic() >= deadline:
            return
        time.sleep(LOOK_EVERY)


async def sooner(check: Callable[[], T], within: float = 20) -> T | None:
    """For fakes on an event loop: the first true answer of `check`, or None when time is up."""
    deadline = time.monotonic() + within
    while not (found := check()):
        if time.monotonic() >= deadline:
            return None
        await asyncio.sleep(GLANCE_EVERY)
    return found
