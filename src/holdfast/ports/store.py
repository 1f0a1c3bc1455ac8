"""Where the truth lives. Every change is one guarded statement: it happens as described, with its event, or not at all."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from ..model.claim import Claim
from ..model.outcome import Outcome
from ..model.pod import Heartbeat
from ..model.pool import Pool, PoolSpec
from ..model.tenant import Tenant, TenantSpec
from ..model.worker import Worker
from .installation import Access, Fleet, History
from .records import (
    AcknowledgedClaim,
    AgentReport,
    Assignment,
    Batch,
    Beat,
    Directive,
    Due,
    DutyReport,
    EndedClaim,
    Event,
    Facts,
    NewClaim,
    Pair,
    PoolLoad,
    Row,
    SubmittedAs,
    TermState,
)
from .recovery import RecoveryStore


class WrongInstallation(Exception):
    """This database is another installation's. Nothing may be concluded from our pods about its workers: refuse, and stop."""


class Unstorable(Exception):
    """Postgres refuses a value as bad data (SQLSTATE class 22): the request that carries it can never be stored."""


class StoreUnavailable(Exception):
    """The store could not be asked, or whether a change was stored is unknown. Nothing may be concluded from it (P7)."""


class Claims(Protocol):
    async def match(self, pool_id: str, new: Sequence[NewClaim], limit: int) -> Batch:
        """Stores requests and pairs what waits with free workers, in the fair order. Caps are exact, because this happens under
        the pool's lock. Sending the same batch again, with the same ids, is safe. Raises Unstorable for a value that Postgres
        refuses as bad data."""

    async def offer(self, offers: Sequence[tuple[str, int, bool]]) -> list[Claim]:
        """The worker carries its protection (or not: the flag): its agent may now be told. Claims of pools without an agent
        become active. Answers the claims that took it, as they are then."""

    async def deliver(self, worker: str, uid: str) -> Assignment | None:
        """Note durably that the worker is being told, and what. The same again until acknowledged."""

    async def acknowledge(self, worker: str, fence: int, endpoint: str | None) -> AcknowledgedClaim | None:
        """Makes the claim active and erases its secrets. A repeated acknowledgement is accepted again. None: the claim is not
        this worker's (any more)."""

    async def progress(self, worker: str, fence: int) -> bool:
        """Activation lives: the hand-over's clock starts anew."""

    async def renew(self, claim: str, fence: int, tenant: str | None = None) -> Claim | None:
        """Starts the lease again and returns the claim. None: it has ended, the fence is old, or it is not this tenant's."""

    async def end(
        self,
        claim: str,
        *,
        outcome: str,
        how: str,
        reason: str,
        states: Sequence[str],
        fence: int | None = None,
        tenant: str | None = None,
        exit_code: int | None = None,
    ) -> EndedClaim:
        """Ends a claim and moves its worker on, in one change. With a fence or a tenant, only if they are the claim's."""

    async def requeue(
        self,
        claim: str,
        fence: int,
        *,
        reason: str,
        keep_worker: bool = False,
        suspect: bool = False,
        dead: bool = False,
        untouched: bool = False,
        idle: float | None = None,
    ) -> Outcome:
        """Back to its place in the queue; the worker goes back where it came from, or retires. An active claim only with
        `dead` (proof of death), and if it asked for retry: lost or is provably `untouched`: it never began. `idle`: only if its
        hand-over still has not moved for so long."""

    async def due(self, limit: int, stalled: float) -> list[Due]:
        """Claims with something due, oldest first. A hand-over is due once it has not moved for `stalled` seconds."""

    async def ended_by(self, worker: str, fence: int) -> str | None:
        """The claim that this worker's result ended, under this fence."""

    async def state(self, claim: str) -> str | None:
        """Its state alone: what waiting calls look at."""

    async def get(self, ids: Sequence[str]) -> list[Claim]: ...

    async def find(
        self, *, pool: str | None, tenant: str | None, state: str | None, limit: int, cursor: str | None
    ) -> tuple[list[Claim], str | None]: ...


class Workers(Protocol):
    async def spawn(self, pool_id: str, ids: Sequence[str], free_target: int, starting_limit: int) -> list[tuple[str, int]]:
        """Rows for new workers, as far as the counts inside allow: ids and epoch. Two at once cannot overspawn."""

    async def unspawn(self, workers: Sequence[str], kind: str, reason: str, backoff: float) -> Outcome:
        """The cluster refused a pod: the slots are free again, and the pool says why and waits a little. One failure."""

    async def spawned(self, worker: str, uid: str) -> Outcome:
        """The pod exists; from now on its UID is the worker's identity."""

    async def warm(self, worker: str, version: int, endpoint: str | None) -> Outcome:
        """A worker without an agent is ready."""

    async def condemn(
        self, worker: str, version: int | None, reason: str, *, counted: bool, dead: bool = False, floor: int | None = None
    ) -> Outcome:
        """A free worker is to go. A live claim refuses it. `counted`: the brake counts it. `dead`: its pod is provably gone.
        `floor`: only while its pool has more free workers than this."""

    async def bury(self, worker: str, reason: str) -> Outcome:
        """Its absence is proven. Only for one that is retiring."""

    async def suspect(self, worker: str, version: int, reason: str) -> Outcome:
        """Silent too long: no new claim for it."""

    async def heard_again(self, workers: Sequence[str]) -> None:
        """They spoke: no longer suspect."""

    async def unprotect(self, worker: str, version: int) -> Outcome:
        """The guarded change that must come before a clear: the worker is free, and still as seen."""

    async def heartbeats(self, workers: Sequence[str]) -> list[Heartbeat]:
        """What agents last said, also those without a row."""

    async def facts(self, facts: Sequence[Facts]) -> int:
        """Show what the cluster reports. Changes no state."""

    async def report(self, report: AgentReport, *, fresh: bool = True) -> Directive:
        """Take an agent's word and say what it should do. Warm, reset and heard-again happen here, if it spoke just now."""

    async def due(self, *, no_pod: float, retiring: float, silent: float) -> list[str]:
        """Workers for whom time alone may have made something due: so many seconds without a pod, retiring, or silent."""

    async def may_end_orphan(self, name: str) -> Outcome:
        """Whether a pod without a row may be ended now; the brake counts it."""

    async def beat(self, words: Sequence[AgentReport]) -> None:
        """Store what agents last said, in one batch."""

    async def rows(self, workers: Sequence[str] | None) -> list[Row]:
        """Workers that are not gone, with claim and heartbeat; all, or those named."""

    async def identity(self, worker: str) -> tuple[str | None, Pool] | None:
        """The worker's pod UID and pool, if the worker is not gone."""

    async def get(self, worker: str) -> Worker | None: ...

    async def find(
        self, *, pool: str | None, state: str | None, limit: int, cursor: str | None
    ) -> tuple[list[Worker], str | None]: ...


class Pools(Protocol):
    async def put(
        self, pool_id: str, name: str, spec: PoolSpec, source: str
    ) -> tuple[Pool, Literal["created", "changed", "same", "taken"]]:
        """`taken`: the name belongs to another source's pool, or to another object's; nothing was changed."""

    async def delete(self, name: str, pool_id: str | None = None) -> Pool | None:
        """Drain it, durably: the name is free at once. With an id only if it is still that pool."""

    async def freeze(self, name: str, reason: str | None) -> Pool | None: ...

    async def get(self, name: str) -> Pool | None:
        """The live pool of this name."""

    async def by_id(self, pool_id: str) -> Pool | None:
        """The pool of this id, if it is live or draining."""

    async def all(self) -> list[Pool]:
        """Live and draining pools."""

    async def loads(self) -> list[PoolLoad]:
        """Every pool with its counts, in one consistent view."""

    async def demand(self) -> list[str]:
        """Ids of pools where something waits and something is free."""

    async def finish(self, pool_id: str) -> Outcome:
        """A draining pool has nothing left: gone."""

    async def shrunk(self, pool_id: str) -> None:
        """A worker was taken from the pool: the cooldown starts anew."""

    async def trouble(self, pool_id: str, reason: str, backoff: float) -> None:
        """A start failed: the pool says why, and waits longer each time."""

    async def start_blocked(self, pool_id: str, reason: str) -> None:
        """A start is held up, and may yet succeed: the pool says why until one has."""

    async def tenants(self) -> list[Tenant]: ...

    async def put_tenant(self, name: str, spec: TenantSpec) -> Tenant: ...


class Store(Protocol):
    @property
    def claims(self) -> Claims: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def pools(self) -> Pools: ...
    @property
    def fleet(self) -> Fleet: ...
    @property
    def history(self) -> History: ...
    @property
    def access(self) -> Access: ...
    @property
    def recovery(self) -> RecoveryStore: ...

    async def now(self) -> float:
        """The database's clock."""

    async def listen(self) -> "Notices":
        """What other replicas notify of. A hint: everything works without it, a little later."""

    async def metrics(self) -> dict[str, Any]:
        """The figures that are read from the database, so that every replica shows the same."""

    async def check(self) -> list[dict[str, Any]]:
        """Violations of P1–P5 in the tables, for `doctor`."""


class Notices(Protocol):
    def __aiter__(self) -> "Notices": ...

    async def __anext__(self) -> tuple[Literal["c", "w", "p", "reset"], list[str]]:
        """('c'|'w'|'p', ids), or ('reset', []) after a gap in which some may have been missed."""

    async def close(self) -> None: ...


__all__ = [
    "Access",
    "AcknowledgedClaim",
    "AgentReport",
    "Assignment",
    "Batch",
    "Beat",
    "Claims",
    "Directive",
    "Due",
    "DutyReport",
    "EndedClaim",
    "Event",
    "Facts",
    "Fleet",
    "History",
    "NewClaim",
    "Notices",
    "Pair",
    "PoolLoad",
    "Pools",
    "Row",
    "Store",
    "StoreUnavailable",
    "SubmittedAs",
    "TermState",
    "Unstorable",
    "Workers",
    "WrongInstallation",
]
