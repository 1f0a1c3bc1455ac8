"""The clock of the trace. It wakes tasks at their moments, and skips time in which the fleet has nothing to do."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable

LOOK = 1.0  # seconds between two checks whether the fleet is at rest, and from an entry to the first check
STEP = 2.0  # seconds; the period of `scale`. Leaps are multiples of it, so that they do not shift arrivals against its runs
DUE = 1e-6  # seconds; a sleep cannot be more exact than this


class Agenda:
    """Wakes arrivals and ends of holds at their moments of the trace. Such a moment is virtual time plus the skipped time.

    A leap moves these moments nearer. The fleet's own clock does not jump, so no lease, beat or deadline is affected."""

    def __init__(self, rest: Callable[[], Awaitable[bool]], age: Callable[[float], None]) -> None:
        self._rest = rest  # returns whether nothing would happen until the next entry
        self._age = age  # called with the skipped seconds, to make stored times older by them
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()
        self._entries: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0
        self._added = asyncio.Event()
        self._last_entry = self._begin  # when the last entry was due
        self.leapt = 0.0

    def now(self) -> float:
        """Returns the current moment of the trace."""
        return self._loop.time() - self._begin + self.leapt

    def at(self, moment: float) -> asyncio.Future[None]:
        """Returns a future that is done at this moment of the trace."""
        entry: asyncio.Future[None] = self._loop.create_future()
        self._count += 1
        heapq.heappush(self._entries, (moment, self._count, entry))
        self._added.set()
        return entry

    def after(self, seconds: float) -> asyncio.Future[None]:
        return self.at(self.now() + seconds)

    async def run(self, *, leaps: bool) -> None:
        """Runs until its task is cancelled."""
        while True:
            self._added.clear()
            while self._entries and self._entries[0][2].done():
                heapq.heappop(self._entries)  # its task was cancelled
            if not self._entries:
                await self._added.wait()
                continue
            gap = self._entries[0][0] - self.now()
            if gap <= DUE:
                self._last_entry = self._loop.time()
                heapq.heappop(self._entries)[2].set_result(None)
                await asyncio.sleep(0)
            elif leaps and gap >= STEP and self._loop.time() - self._last_entry >= LOOK and await self._rest():
                self._leap()
            else:
                try:
                    async with asyncio.timeout(min(gap, LOOK) if leaps else gap):
                        await self._added.wait()
                except TimeoutError:
                    continue

    def _leap(self) -> None:
        by = (self._entries[0][0] - self.now()) // STEP * STEP
        if by > 0:  # an entry may have been added during the check
            self.leapt += by
            self._age(by)
