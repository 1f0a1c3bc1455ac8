"""Who waits for what in this replica, and how other replicas' notices wake them. Hints only."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Wakes:
    def __init__(self) -> None:
        self.resets = 0  # how often all were woken, whether there was something for them or not
        self.closing = False  # this replica stops: who waits is answered as things stand
        # In the order of their coming (a set would have none): who came first is woken first.
        self._claims: dict[str, dict[asyncio.Event, None]] = defaultdict(dict)
        self._workers: dict[str, dict[asyncio.Event, None]] = defaultdict(dict)

    @contextmanager
    def claim(self, claim: str) -> Iterator[asyncio.Event]:
        with _waiting(self._claims, claim) as event:
            yield event

    @contextmanager
    def worker(self, worker: str) -> Iterator[asyncio.Event]:
        with _waiting(self._workers, worker) as event:
            yield event

    def wake_claim(self, claim: str) -> None:
        for event in self._claims.get(claim, ()):
            event.set()

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
def _waiting(table: dict[str, dict[asyncio.Event, None]], key: str) -> Iterator[asyncio.Event]:
    event = asyncio.Event()
    table[key][event] = None
    try:
        yield event
    finally:
        table[key].pop(event, None)
        if not table[key]:
            del table[key]
