"""Check failed activations: a claim waits for its backoff, and a pool whose activations fail tries one claim at a time."""

from collections.abc import Callable

from ..model.activation import FAILING_CLAIMS, FIRST_BACKOFF, LONGEST_BACKOFF
from .book import Broken
from .tables import Tables

SLACK = 2.5  # seconds by which heard time may be ahead of our count, as in checks.py
IN_PROGRESS = 60.0  # seconds; the product gives up a try that lasts much longer than this


class Activations:
    def __init__(self, now: Callable[[], float], hearing: Callable[[float], float]) -> None:
        self._now = now
        self._hearing = hearing  # returns the seconds since then in heard time
        self._failed: dict[str, tuple[int, float]] = {}  # claim → how often its activation failed, and when the last time
        self._failing: dict[str, dict[str, None]] = {}  # pool → different claims that failed since the last success
        self._tried: dict[str, float] = {}  # claim → when it was last assigned

    def saw(self, tables: Tables) -> None:
        for event in tables.events:
            if event.kind == "pool.changed":
                self._failing.clear()  # a new revision starts without the failures of the old one
            claim = tables.claims.get(event.claim or "")
            if claim is None:
                continue
            if event.kind == "claim.requeued" and event.reason.startswith("activation failed"):
                self._failed[claim.id] = self._failed.get(claim.id, (0, 0.0))[0] + 1, self._now()
                self._failing.setdefault(claim.pool, {})[claim.id] = None
            elif event.kind == "claim.active":
                self._failing.pop(claim.pool, None)
            elif event.kind == "claim.assigned":
                self._assigned(claim.id, claim.pool, tables)

    def _assigned(self, claim: str, pool: str, tables: Tables) -> None:
        count, at = self._failed.get(claim, (0, 0.0))
        backoff = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** (count - 1))
        if count and (heard := self._hearing(at)) < backoff - SLACK:
            raise Broken(
                "backoff", f"{claim} is tried again {heard:.1f} s after its activation failed {count} times, not {backoff} s"
            )
        self._tried[claim] = self._now()
        others = [
            other.id
            for other in tables.claims.values()
            if (other.pool, other.state) == (pool, "assigned")
            and other.id != claim
            and self._now() - self._tried.get(other.id, 0.0) < IN_PROGRESS
        ]
        if len(self._failing.get(pool, ())) >= FAILING_CLAIMS and others:
            raise Broken("backoff", f"{claim} is tried at the same time as {others[0]}, although activations of {pool} fail")

    def rewound(self) -> None:
        """Forget everything, because the database may have lost some of the failures."""
        self._failed.clear()
        self._failing.clear()
        self._tried.clear()
