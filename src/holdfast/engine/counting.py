"""Count what became of claims, in one place, wherever it was decided."""

from ..model.claim import Claim
from ..ports.store import Store, StoreUnavailable
from .metrics import Metrics


class Counting:
    """After the fact, and never in its way: a figure that could not be read is left out."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    async def ended(self, claim: str, how: str) -> None:
        """A claim was ended by one of P2's ways."""
        self._metrics.ends.labels(how).inc()
        if (found := await self._read(claim)) is not None and found.outcome is not None:
            self._metrics.ended.labels(found.pool, found.outcome).inc()
            if found.active_at is not None and found.ended_at is not None:
                self._metrics.hold.labels(found.pool).observe(max(0.0, found.ended_at - found.active_at))

    async def active(self, claim: str) -> None:
        """A claim became active after a hand-over."""
        if (found := await self._read(claim)) is not None and found.assigned_at is not None and found.active_at is not None:
            self._metrics.wait.labels(found.pool).observe(max(0.0, found.assigned_at - found.created_at))
            self._metrics.handover.labels(found.pool).observe(max(0.0, found.active_at - found.assigned_at))

    def granted(self, pool: str) -> None:
        """A claim was served by its own batch: it neither waited nor was handed over."""
        self._metrics.wait.labels(pool).observe(0.0)
        self._metrics.handover.labels(pool).observe(0.0)

    async def _read(self, claim: str) -> Claim | None:
        try:
            found = await self._store.claims.get([claim])
        except StoreUnavailable:
            return None
        return found[0] if found else None
