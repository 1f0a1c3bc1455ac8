"""Holders: clients that claim, renew and release over HTTP, in a process of their own."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from . import aside
from .line import Line
from .spread import Spread

Held = tuple[str, int]  # a claim's id and fence
MORE_SECONDS = 60.0  # a load that takes so much longer than requested has failed


class Work(msgspec.Struct, kw_only=True):
    what: Literal["jobs", "sessions", "own", "hold", "renew", "release"]
    port: int
    token: str
    pool: str
    clients: int
    seconds: float = 0.0
    count: int = 0  # at most so many claims
    tenants: int = 1  # per client
    held: list[Held] = []


class Done(msgspec.Struct, kw_only=True):
    seconds: float
    claims: list[float] = []  # seconds from each request to the answer that the claim is active
    releases: list[float] = []
    renewals: list[float] = []
    held: list[Held] = []


class Holders:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.done = Done(seconds=0.0)

    async def run(self) -> Done:
        work = self.work
        each: dict[str, Callable[[int, Line], Any]] = {
            "jobs": self._jobs,
            "sessions": self._sessions,
            "own": self._own,
            "hold": self._hold,
            "renew": self._renew,
            "release": self._release,
        }
        lines = [Line(work.port) for _ in range(work.clients)]
        self._left = iter(range(work.count)) if work.count else itertools.count()
        self._end = time.perf_counter() + work.seconds
        started = time.perf_counter()
        await asyncio.gather(*(each[work.what](n, line) for n, line in enumerate(lines)))
        self.done.seconds = time.perf_counter() - started
        for line in lines:
            line.close()
        return self.done

    def _more(self) -> bool:
        return time.perf_counter() < self._end and next(self._left, None) is not None

    async def _jobs(self, n: int, line: Line) -> None:
        while self._more():
            await self._claim(line, None)

    async def _sessions(self, n: int, line: Line) -> None:
        tenants = itertools.cycle(f"tenant-{n}-{m}" for m in range(self.work.tenants))
        while self._more():
            await self._free(line, await self._claim(line, next(tenants)))

    async def _own(self, n: int, line: Line) -> None:
        """Claims and releases as the tenant of the token."""
        while self._more():
            await self._free(line, await self._claim(line, None))

    async def _hold(self, n: int, line: Line) -> None:
        while (m := next(self._left, None)) is not None:
            self.done.held.append(await self._claim(line, f"tenant-{m}"))

    async def _renew(self, n: int, line: Line) -> None:
        mine = itertools.cycle(self.work.held[n :: self.work.clients])
        while self._more():
            claim, fence = next(mine)
            self.done.renewals.append(await self._post(line, f"/v1/claims/{claim}/renew", {"fence": fence}))

    async def _release(self, n: int, line: Line) -> None:
        for held in self.work.held[n :: self.work.clients]:
            await self._free(line, held)

    async def _free(self, line: Line, held: Held) -> None:
        self.done.releases.append(await self._post(line, f"/v1/claims/{held[0]}/release", {"fence": held[1]}))

    async def _post(self, line: Line, path: str, body: dict[str, Any]) -> float:
        started = time.perf_counter()
        status, answer = await line.call(path, self.work.token, body)
        took = time.perf_counter() - started
        if status != 200:
            raise RuntimeError(f"{path} was answered with {status}: {answer}")
        return took

    async def _claim(self, line: Line, tenant: str | None) -> Held:
        body = {"pool": self.work.pool, "wait": "30s"} | ({"tenant": tenant} if tenant else {})
        started = time.perf_counter()
        status, claim = await line.call("/v1/claims", self.work.token, body)
        took = time.perf_counter() - started
        # A short job may have ended before its holder was answered. Its claim was active all the same.
        if status != 201 or (claim["state"] != "active" and claim.get("outcome") != "completed"):
            raise RuntimeError(f"a claim was answered with {status}: {claim}")
        self.done.claims.append(took)
        return claim["id"], claim["fence"]


def run(work: Work) -> Done:
    """Loads a replica from another process, so that the benchmark's own work does not slow the holders down."""
    return aside.run("bench.load", work, Done, work.seconds + MORE_SECONDS)


def claims_of(done: Done) -> Spread:
    return Spread(done.seconds, done.claims)


if __name__ == "__main__":
    aside.main(Work, lambda work: Holders(work).run())
