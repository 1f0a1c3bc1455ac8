"""The store, which alone decides what is true. Every change is one guarded statement: it happens as described, together with its
event, or not at all. `actor` is who caused a change, for its event. It is None if Holdfast itself or an agent did."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, Unpack

from ..model.claim import Claim
from ..model.effect import Effect
from ..model.event import Actor
from ..model.pod import Heartbeat
from ..model.pool import Pool
from ..model.worker import Worker
from .errors import StoreUnavailable, Unstorable, WrongInstallation
from .inputs import Inputs
from .installation import Fleet, History, Tokens
from .logs import Logs
from .pools import Pools
from .records import (
    AcknowledgedClaim,
    AgentReport,
    Assignment,
    Batch,
    Beat,
    ClaimFilters,
    DeletedTenant,
    Directive,
    Due,
    DutyReport,
    EndedClaim,
    Event,
    EventFilters,
    Facts,
    FailedActivation,
    NewClaim,
    Pair,
    PoolChange,
    PoolLoad,
    Row,
    SubmittedAs,
    TermState,
    WorkerFilters,
)
from .recovery import RecoveryStore


class Claims(Protocol):
    async def match(self, pool_id: str, new: Sequence[NewClaim], limit: int) -> Batch:
        """Stores requests and pairs waiting claims with free workers, in the fair order. Caps are exact, because this happens
        under the pool's lock. It is safe to send the same batch again with the same ids. Raises Unstorable for a value that
        Postgres refuses as bad data."""

    async def offer(self, offers: Sequence[tuple[str, int, bool]]) -> list[Claim]:
        """Allows the delivery of each claim (id, fence, and whether its pod is protected) to its agent. Claims of pools without
        an agent become active. Returns the claims that were changed, after the change."""

    async def deliver(self, worker: str, uid: str) -> Assignment | None:
        """Stores that the claim is being delivered to this worker, and returns what to send. Returns the same again until the
        claim is acknowledged; None when there is nothing to deliver."""

    async def acknowledge(
        self, worker: str, fence: int, endpoint: str | None, incarnation: int | None = None
    ) -> AcknowledgedClaim | None:
        """Makes the claim active and erases its secrets. A repeated acknowledgement is accepted again. Returns None if the claim
        does not, or no longer, belong to this worker. An acknowledgement of an older incarnation does not confirm the worker."""

    async def progress(self, worker: str, fence: int) -> bool:
        """Restarts the timer of the claim's hand-over, because its activation makes progress."""

    async def renew(self, claim: str, fence: int, tenant: str | None = None) -> Claim | None:
        """Starts the lease again and returns the claim. Returns None if it has ended, the fence is old, or it belongs to another
        tenant."""

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
        actor: Actor | None = None,
    ) -> EndedClaim:
        """Ends a claim and moves its worker to its next state, in one change. With a fence or a tenant, only if the claim has the
        same."""

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
    ) -> Effect:
        """Puts a claim back to its place in the queue. Its worker returns to where it came from (`keep_worker`, and nothing was
        delivered) or retires. An active claim is put back only if its worker is `dead`, and only if it has retry: lost or
        is `untouched`, which means that it provably never began. With `idle`, only if its hand-over has made no progress for so
        many seconds."""

    async def activation_failed(
        self, claim: str, fence: int, cause: str, *, dead: bool = False, idle: float | None = None
    ) -> FailedActivation:
        """Puts an assigned claim back to its place in the queue and retires its worker, because the activation failed. The claim
        is not given out again before its backoff is over, and is refused after too many failures. If different claims fail in a
        row, the pool waits as well. `dead` and `idle` have the same meaning as in `requeue`."""

    async def due(self, limit: int, stalled: float) -> list[Due]:
        """Returns claims with something due, oldest first. A hand-over is due when it has made no progress for `stalled`
        seconds."""

    async def ended_by(self, worker: str, fence: int) -> str | None:
        """Returns the claim that this worker's result ended, under this fence."""

    async def by_key(self, tenant: str, key: str, hash_: str, hash_before: str | None = None) -> str | None:
        """Returns the claim that this key names, if its request had this hash."""

    async def state(self, claim: str) -> str | None:
        """Returns only the claim's state, which waiting requests read often."""

    async def newest_ids(self, tenant: str | None, limit: int) -> list[str]:
        """Returns the ids of the newest claims, of all tenants or of one."""

    async def get(self, ids: Sequence[str]) -> list[Claim]: ...

    async def find(
        self, *, limit: int, cursor: str | None = None, **about: Unpack[ClaimFilters]
    ) -> tuple[list[Claim], str | None]:
        """Returns claims, newest first, and the cursor of the next page, or None after the last one."""


class Workers(Protocol):
    async def spawn(self, pool_id: str, ids: Sequence[str], free_target: int, starting_limit: int) -> list[tuple[str, int]]:
        """Stores rows for new workers, as many as the target and the limits allow, and returns their ids and epochs. Two calls at
        the same time cannot spawn too many, because the counts are checked inside the statement."""

    async def unspawn(self, workers: Sequence[str], kind: str, reason: str, backoff: float) -> Effect:
        """Removes workers whose pods the cluster refused. Their slots are free again; the pool stores the reason and spawns
        nothing for `backoff` seconds, doubled with each failure in a row. All of them count as one failure."""

    async def spawned(self, worker: str, uid: str) -> Effect:
        """Stores the UID of the worker's pod, which is the worker's identity from now on."""

    async def warm(self, worker: str, version: int, endpoint: str | None) -> Effect:
        """Makes a worker without an agent warm, because its pod is ready."""

    async def condemn(
        self,
        worker: str,
        version: int | None,
        reason: str,
        *,
        counted: bool,
        dead: bool = False,
        floor: int | None = None,
        actor: Actor | None = None,
    ) -> Effect:
        """Retires a free worker; a worker with a live claim is refused. `counted` means that the brake counts it, `dead` that its
        pod is provably gone. With `floor`, only while its pool has more free workers than that."""

    async def bury(self, worker: str, reason: str) -> Effect:
        """Closes the row of a retiring worker, because its pod's absence is proven."""

    async def suspect(self, worker: str, version: int, reason: str) -> Effect:
        """Marks the worker as suspect, so that it gets no new claim."""

    async def heard_again(self, worker: str, version: int) -> Effect:
        """Removes `suspect` and `unconfirmed` from a worker whose agent has reported."""

    async def unprotect(self, worker: str, version: int) -> Effect:
        """Notes that the pod of a free worker is no longer protected, if the row still has this version. This must happen before
        the protection is removed from the pod."""

    async def heartbeats(self, workers: Sequence[str]) -> list[Heartbeat]:
        """Returns the last reports of these agents, also of those whose workers have no row."""

    async def facts(self, facts: Sequence[Facts]) -> int:
        """Stores what the cluster reports about pods, and returns the number of changed rows. Changes no state, but a worker
        whose pod is terminating or on a cordoned node is not given out."""

    async def report(self, report: AgentReport, *, fresh: bool = True) -> Directive:
        """Evaluates an agent's report and returns what the agent should do. A fresh report can make its worker warm, end its
        reset, or end the suspicion against it. A report that is not `fresh` is an older one, evaluated again."""

    async def due(self, *, no_pod: float, retiring: float, silent: float) -> list[str]:
        """Returns workers for which something may have become due by time alone: so many seconds without a pod, retiring, or
        silent."""

    async def may_end_orphan(self, name: str) -> Effect:
        """Returns Done if a pod without a row may be ended now. The brake counts it."""

    async def beat(self, reports: Sequence[AgentReport], epoch: int | None = None) -> None:
        """Stores the last reports of agents, in one batch. With `epoch`, nothing is stored unless the database is still in this
        epoch, because a recovery that began meanwhile must not take old reports for new ones."""

    async def rows(self, workers: Sequence[str] | None) -> list[Row]:
        """Returns workers that are not gone, with claim and heartbeat: the named ones, or all."""

    async def identity(self, worker: str) -> tuple[str | None, Pool] | None:
        """Returns the worker's pod UID and pool, or None when the worker is gone."""

    async def newest_ids(self, limit: int) -> list[str]:
        """Returns the ids of the newest workers that are not gone."""

    async def get(self, worker: str) -> Worker | None: ...

    async def find(
        self, *, limit: int, cursor: str | None = None, **about: Unpack[WorkerFilters]
    ) -> tuple[list[Worker], str | None]:
        """Returns workers, newest first, and the cursor of the next page, or None after the last one. Workers that are gone are
        left out unless `state` asks for them."""


class Store(Protocol):
    @property
    def claims(self) -> Claims: ...
    @property
    def inputs(self) -> Inputs: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def pools(self) -> Pools: ...
    @property
    def fleet(self) -> Fleet: ...
    @property
    def history(self) -> History: ...
    @property
    def logs(self) -> Logs: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def recovery(self) -> RecoveryStore: ...

    async def now(self) -> float:
        """Returns the time of the database's clock."""

    async def listen(self) -> "Notices":
        """Opens a stream of notices of changes by replicas. They are hints: without them everything works, a little later."""

    async def metrics(self) -> dict[str, Any]:
        """Returns the figures for the metrics that come from the database, so that every replica shows the same."""

    async def check(self) -> list[dict[str, Any]]:
        """Returns violations of P1–P5 in the tables, for `doctor`."""


class Notices(Protocol):
    def __aiter__(self) -> "Notices": ...

    async def __anext__(self) -> tuple[Literal["c", "w", "p", "t", "k", "reset"], list[str]]:
        """Returns ('c'|'w'|'p'|'t', ids) for claims, workers, pools and deleted tenants, or ('reset', []) after a gap in which
        notices may have been missed."""

    async def close(self) -> None: ...


__all__ = [
    "AcknowledgedClaim",
    "AgentReport",
    "Assignment",
    "Batch",
    "Beat",
    "ClaimFilters",
    "Claims",
    "DeletedTenant",
    "Directive",
    "Due",
    "DutyReport",
    "EndedClaim",
    "Event",
    "EventFilters",
    "Facts",
    "FailedActivation",
    "Fleet",
    "History",
    "NewClaim",
    "Notices",
    "Pair",
    "PoolChange",
    "PoolLoad",
    "Pools",
    "Row",
    "Store",
    "StoreUnavailable",
    "SubmittedAs",
    "TermState",
    "Tokens",
    "Unstorable",
    "WorkerFilters",
    "Workers",
    "WrongInstallation",
]
