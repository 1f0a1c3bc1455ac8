"""Signal changes of claims, workers, pools and tenants within this replica. A signal is a hint: if one is lost, things only take
longer."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from ..model.claim import Claim

Kind = Literal["c", "w", "p", "t", "k", "reset"]


class Waiter:
    """Waits for changes of one claim, worker or pool."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.must_read = False  # this id was signalled without its new row
        self.row: Claim | None = None  # the changed claim, if the code that changed it had the row

    async def wait(self, seconds: float) -> None:
        """Returns when a change was signalled since the last `clear`, after so many seconds at the latest."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), max(0.0, seconds))

    def clear(self) -> None:
        """Forgets earlier signals. Call it before the read, so that a change during the read is not missed."""
        self._changed.clear()
        self.must_read, self.row = False, None

    def signal(self, *, named: bool, row: Claim | None) -> None:
        # A signal with a row must not hide an earlier signal without one, because the row may be older than that change.
        self.must_read = self.must_read or (named and row is None)
        self.row = row if row is not None else self.row
        self._changed.set()


class Topic:
    """Changes of claims, of workers or of pools, by id."""

    def __init__(self) -> None:
        # A dict, because unlike a set it keeps the order of arrival: the first waiter is woken first.
        self._waiters: dict[str, dict[Waiter, None]] = defaultdict(dict)
        self._subscribers: list[Callable[[set[str]], None]] = []

    def changed(self, *ids: str, row: Claim | None = None) -> None:
        """Signals that these have changed. `row` is the new row of a single claim, for callers that have it."""
        assert row is None or len(ids) == 1
        for id_ in ids:
            for waiter in self._waiters.get(id_, ()):
                waiter.signal(named=True, row=row)
        for subscriber in self._subscribers:
            subscriber(set(ids))

    def subscribe(self, subscriber: Callable[[set[str]], None]) -> None:
        """Calls the subscriber with the ids of every change. The subscriber must return at once."""
        self._subscribers.append(subscriber)

    @contextmanager
    def watch(self, id_: str) -> Iterator[Waiter]:
        waiter = Waiter()
        self._waiters[id_][waiter] = None
        try:
            yield waiter
        finally:
            self._waiters[id_].pop(waiter, None)
            if not self._waiters[id_]:
                del self._waiters[id_]

    def all_changed(self) -> None:
        """Wakes every waiter, because signals may have been missed. Subscribers are not called: their full passes find the
        changes."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.signal(named=False, row=None)


class Signals:
    """Wakes the waiters and the duties of this replica."""

    def __init__(self) -> None:
        self.claims = Topic()
        self.workers = Topic()
        self.pools = Topic()
        self.tenants = Topic()  # those that were deleted
        self.tokens = Topic()  # those that were revoked
        self.stopping = asyncio.Event()  # set when this replica stops: waiting requests are answered with the current state

    def notice(self, kind: Kind, ids: Iterable[str]) -> None:
        """Signals the changes in a notice of the store. Most of them were made by other replicas."""
        if kind == "reset":
            self.all_changed()
        else:
            {"c": self.claims, "w": self.workers, "p": self.pools, "t": self.tenants, "k": self.tokens}[kind].changed(*ids)

    def all_changed(self) -> None:
        """Wakes every waiter, after a gap in the notices or because this replica stops."""
        self.claims.all_changed()
        self.workers.all_changed()
        self.pools.all_changed()

    def stop(self) -> None:
        self.stopping.set()
        self.all_changed()
