"""The trace's clock: what happens when, and stretches left out in which the fleet had nothing to do."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable

LOOK = 1.0  # seconds between two looks whether the fleet is at rest, and between an entry and the first of them
STEP = 2.0  # seconds: leaps are whole periods of `scale`, so that an arrival meets its rhythm where it would have
DUE = 1e-6  # seconds; nearer than floating point can sleep


class Agenda:
    """Arrivals and ends of holds, at their moments of the trace. A moment of the trace is virtual time plus what was left out.

    A leap moves these moments nearer; the fleet's own clock does not jump, and no lease, beat or deadline notices anything."""

    def __init__(self, rest: Callable[[], Awaitable[bool]], age: Callable[[float], None]) -> None:
        self._rest = rest  # whether nothing at all would happen until the next entry
        self._age = age  # what happened before is older by this
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()
        self._entries: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0
        self._added = asyncio.Event()
        self._stirred = self._begin  # when the last entry came due
        self.leapt = 0.0

    def now(self) -> float:
        return self._loop.time() - self._begin + self.leapt

    def at(self, moment: float) -> asyncio.Future[None]:
        """Done at this moment of the trace."""
        entry: asyncio.Future[None] = self._loop.create_future()
        self._count += 1
        heapq.heappush(self._entries, (moment, self._count, entry))
        self._added.set()
        return entry

    def after(self, seconds: float) -> asyncio.Future[None]:
        return self.at(self.now() + seconds)

    async def run(self, *, leaps: bool) -> None:
        """For ever: whoever started it ends it."""
        while True:
            self._added.clear()
            while self._entries and self._entries[0][2].done():
                heapq.heappop(self._entries)  # nobody waits for it any more
            if not self._entries:
                await self._added.wait()
                continue
            gap = self._entries[0][0] - self.now()
            if gap <= DUE:
                self._stirred = self._loop.time()
                heapq.heappop(self._entries)[2].set_result(None)
                await asyncio.sleep(0)
            elif leaps and gap >= STEP and self._loop.time() - self._stirred >= LOOK and await self._rest():
                self._leap()
            else:
                try:
                    async with asyncio.timeout(min(gap, LOOK) if leaps else gap):
                        await self._added.wait()
                except TimeoutError:
                    continue

    def _leap(self) -> None:
        by = (self._entries[0][0] - self.now()) // STEP * STEP
        if by > 0:  # an entry may have come while it was looked
            self.leapt += by
            self._age(by)
