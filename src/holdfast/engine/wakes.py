"""Who waits for what in this replica, and how other replicas' notices wake them. Hints only."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from ..model.claim import Claim


class Waiter(asyncio.Event):
    """Set: there may be something to see. Who knows what that is says it."""

    told: Claim | None = None


class Wakes:
    def __init__(self) -> None:
        self.resets = 0  # how often all were woken, whether there was something for them or not
        self.closing = False  # this replica stops: who waits is answered as things stand
        # In the order of their coming (a set would have none): who came first is woken first.
        self._claims: dict[str, dict[Waiter, None]] = defaultdict(dict)
        self._workers: dict[str, dict[Waiter, None]] = defaultdict(dict)
        self.telling: set[str] = set()  # claims that this replica is handing over: it says itself what became of them

    @contextmanager
    def claim(self, claim: str) -> Iterator[Waiter]:
        with _waiting(self._claims, claim) as event:
            yield event

    @contextmanager
    def worker(self, worker: str) -> Iterator[Waiter]:
        with _waiting(self._workers, worker) as event:
            yield event

    def wake_claim(self, claim: str, told: Claim | None = None) -> None:
        for event in self._claims.get(claim, ()):
            event.told = told
            event.set()

    def notice_claim(self, claim: str) -> None:
        """A notice: mostly another replica's. Our own comes just before we can tell its claim to whoever waits."""
        if claim not in self.telling:
            self.wake_claim(claim)

    def wake_worker(self, worker: str) -> None:
        for event in self._workers.get(worker, ()):
            event.set()

    def wake_all(self) -> None:
        """After a gap in the notices: everybody looks."""
        self.resets += 1
        for table in (self._claims, self._workers):
            for events in table.values():
                for event in events:
                    event.set()


@contextmanager
def _waiting(table: dict[str, dict[Waiter, None]], key: str) -> Iterator[Waiter]:
    event = Waiter()
    table[key][event] = None
    try:
        yield event
    finally:
        table[key].pop(event, None)
        if not table[key]:
            del table[key]
