"""A store whose claims are only records in memory, for tests of the claim path on virtual time. A test sets its answers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.claimpath.path import ClaimPath
from holdfast.claimpath.signals import Signals
from holdfast.metrics import Metrics
from holdfast.model.claim import Claim
from holdfast.model.effect import Done, Effect
from holdfast.model.pool import Pool, PoolSpec, revision_of
from holdfast.model.worker import Worker
from holdfast.ports.store import AcknowledgedClaim, Batch, EndedClaim, NewClaim, Pair, SubmittedAs
from postgres.recorded_cluster import RecordedCluster
from virtual_time import passed


def make_pool(spec: PoolSpec | None = None, name: str = "linux") -> Pool:
    spec = spec or PoolSpec(max=1000)
    return Pool(id=f"p-{name}", name=name, spec=spec, revision=revision_of(spec), state="live", source="api", created_at=0.0)


def make_claim(id_: str, state: Any = "waiting", **other: Any) -> Claim:
    usual: dict[str, Any] = {"pool_id": "p-linux", "pool": "linux", "tenant": "acme", "reason": "", "priority": 0, "attempts": 1}
    times: dict[str, Any] = {"created_at": 1.0, "assigned_at": 2.0, "active_at": 3.0}
    return Claim(id=id_, state=state, **(usual | times | other))


def make_pair(claim: str, worker: str = "w-1", fence: int = 7) -> Pair:
    return Pair(claim=claim, worker=worker, fence=fence, uid=f"uid-{worker}", tenant="acme")


class RecordedClaims:
    """Records every call. `errors` are raised by the next calls of `match`; `pairs` are the assignments of the next batches."""

    def __init__(self) -> None:
        self.rows: dict[str, Claim] = {}
        self.matches: list[tuple[str, list[str], int]] = []  # the pool, the new claims and the limit of each batch
        self.times: list[float] = []
        self.answers: dict[str, tuple[SubmittedAs, str] | None] = {}
        self.errors: list[Exception | None] = []
        self.offer_errors: list[Exception] = []
        self.pairs: list[list[Pair]] = []
        self.gates: dict[str, asyncio.Event] = {}  # by the pool's id: batches wait until the gate is open
        self.reads: list[str] = []
        self.offers: list[list[tuple[str, int, bool]]] = []
        self.changes: list[tuple[Any, ...]] = []
        self.next_acknowledged: AcknowledgedClaim | None = None
        self.next_ended = EndedClaim(Done())

    async def match(self, pool_id: str, new: Sequence[NewClaim], limit: int) -> Batch:
        self.matches.append((pool_id, [each.id for each in new], limit))
        self.times.append(passed())
        if pool_id in self.gates:
            await self.gates[pool_id].wait()
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        found = {each.id: self.answers.get(each.id, ("new", each.id)) for each in new}
        return Batch(
            {id_: answer for id_, answer in found.items() if answer is not None}, self.pairs.pop(0) if self.pairs else []
        )

    async def offer(self, offers: Sequence[tuple[str, int, bool]]) -> list[Claim]:
        self.offers.append(list(offers))
        if self.offer_errors:
            raise self.offer_errors.pop(0)
        return [self.rows[id_] for id_, fence, _ in offers if id_ in self.rows and self.rows[id_].fence == fence]

    async def state(self, claim: str) -> str | None:
        self.reads.append("state")
        return self.rows[claim].state if claim in self.rows else None

    async def get(self, ids: Sequence[str]) -> list[Claim]:
        self.reads.append("get")
        return [self.rows[id_] for id_ in ids if id_ in self.rows]

    async def requeue(self, claim: str, fence: int, *, reason: str, idle: float) -> Effect:
        self.changes.append(("requeue", claim, fence, reason))
        return Done()

    async def end(self, claim: str, **about: Any) -> EndedClaim:
        self.changes.append(("end", claim, about))
        return self.next_ended

    async def acknowledge(
        self, worker: str, fence: int, endpoint: str | None, incarnation: int | None = None
    ) -> AcknowledgedClaim | None:
        self.changes.append(("acknowledge", worker, fence, endpoint))
        return self.next_acknowledged


class RecordedWorkers:
    def __init__(self) -> None:
        self.rows: dict[str, Worker] = {}
        self.unprotected: list[tuple[str, int]] = []
        self.next_effect: Effect = Done()

    async def get(self, worker: str) -> Worker | None:
        return self.rows.get(worker)

    async def unprotect(self, worker: str, version: int) -> Effect:
        self.unprotected.append((worker, version))
        return self.next_effect


class RecordedPools:
    def __init__(self) -> None:
        self.rows: dict[str, Pool] = {}
        self.error: Exception | None = None

    async def by_id(self, pool_id: str) -> Pool | None:
        if self.error is not None:
            raise self.error
        return self.rows.get(pool_id)


class RecordedStore:
    def __init__(self) -> None:
        self.claims, self.workers, self.pools = RecordedClaims(), RecordedWorkers(), RecordedPools()


class Path:
    """A claim path on a recorded store and a recorded cluster, with everything that a test looks at."""

    def __init__(self, pool: Pool | None = None, workers: Sequence[str] = ("w-1",)) -> None:
        self.pool = pool or make_pool()
        self.store, self.signals, self.metrics = RecordedStore(), Signals(), Metrics()
        self.cluster = RecordedCluster(self.pool, workers)
        self.path = ClaimPath(self.store, self.cluster, self.signals, self.metrics)  # type: ignore[arg-type]
        self.claims = self.store.claims

    def change(self, id_: str, state: Any, **other: Any) -> Claim:
        """Stores a claim in this state, without a signal."""
        row = self.claims.rows.get(id_) or make_claim(id_)
        self.claims.rows[id_] = msgspec.structs.replace(row, state=state, **other)
        return self.claims.rows[id_]

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"holdfast_{name}", labels) or 0.0
