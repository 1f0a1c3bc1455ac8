"""The values that the store takes and returns. All are frozen."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import msgspec

from ..model.claim import Claim
from ..model.effect import Effect
from ..model.event import Actor
from ..model.label import LabelFilter
from ..model.pod import Heartbeat
from ..model.pool import Pool, PoolSpec
from ..model.worker import Worker
from .recovery import Seen


class NewClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request for a claim. Its id is chosen before it is sent, so that the same request can be sent again when it is
    unknown whether it was stored."""

    id: str
    tenant: str
    key: str | None
    hash: str
    request: dict[str, Any]  # command, payload, env
    priority: int
    lease: float | None
    max_duration: float
    deadline: float
    park_ttl: float | None
    retry: str | None
    secrets: str | None  # encrypted (decision 0026)
    actor: Actor | None = None
    labels: dict[str, str] | None = None
    hash_before: str | None = None  # what the release before would have stored as `hash`; only compared, never stored
    lease_chosen: bool = False  # the request itself names the lease, and not the pool
    max_chosen: bool = False  # the same for the longest duration


class PoolChange(msgspec.Struct, frozen=True, kw_only=True):
    """A validated pool to be stored. `seen` is the live pool with this name during the validation, or None."""

    id: str  # of the new pool, if there was none
    name: str
    spec: PoolSpec
    seen: Pool | None


class Pair(msgspec.Struct, frozen=True):
    """A claim that was assigned to a worker and now has to be handed over."""

    claim: str
    worker: str
    fence: int
    uid: str | None
    tenant: str


# new: the request was stored. same: its key already belongs to an equal request. other: its key belongs to a different request.
# closed: the pool is draining. full: the tenant has as many waiting claims as it may have.
SubmittedAs = Literal["new", "same", "other", "closed", "full"]


class Batch(msgspec.Struct, frozen=True):
    """The result of one `match`. `answers` holds, per request id, what happened and the id of the claim that stands for the
    request; `pairs` are the assignments that were made."""

    answers: dict[str, tuple[SubmittedAs, str]]
    pairs: list[Pair]


class AcknowledgedClaim(msgspec.Struct, frozen=True):
    """The claim that an acknowledgement made active. `first` is False when an earlier acknowledgement had done so."""

    claim: Claim
    first: bool


class EndedClaim(msgspec.Struct, frozen=True):
    """The result of an attempt to end a claim. `claim` is the ended claim, or None unless the effect is Done."""

    effect: Effect
    claim: Claim | None = None


class FailedActivation(msgspec.Struct, frozen=True):
    """The result of a failed activation. `claim` is the claim if it has ended as refused, because it failed too often."""

    effect: Effect
    pool: str | None  # its name
    claim: Claim | None = None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to a worker's agent. Within one fence it is always the same."""

    claim: str
    fence: int
    tenant: str
    request: dict[str, Any]
    secrets: str | dict[str, str] | None  # encrypted, or not encrypted if the release before stored them
    protected: bool
    max_seconds: float


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A claim with something due, measured in heard time."""

    claim: str
    fence: int | None
    state: Literal["waiting", "assigned", "active"]
    pool_live: bool
    past_deadline: bool = False
    past_lease: bool = False
    past_max: bool = False
    idle: float = 0.0  # seconds since the hand-over last progressed
    offered: bool = False
    delivered: bool = False


class Directive(msgspec.Struct, frozen=True):
    """What an agent should do now."""

    do: Literal["nothing", "hold", "end", "exit", "unknown", "ahead", "outdated"]
    fence: int | None = None
    reason: str = ""
    park: bool = False
    freed: str | None = None  # the pool of the worker that this report made free
    incarnation: int | None = None  # the database's, if the report named an older one and so was "outdated" and changed nothing


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's report about itself."""

    worker: str
    uid: str
    doing: Literal["idle", "activating", "running", "resetting", "draining"]
    claim: str | None = None
    fence: int | None = None
    tenant: str | None = None
    served_fence: int | None = None  # of the last claim that the agent has served, from the end of that claim on
    endpoint: str | None = None
    incarnation: int | None = None  # of the database, as the agent saw it last; None for an agent that does not send it


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A worker with its claim and heartbeat, which `converge` compares with the pod."""

    worker: Worker
    age: float  # seconds of heard time in its current state
    epoch: int
    pool_frozen: bool
    agent: bool
    protection: Literal["claim", "always", "off"]
    silence: Literal["alert", "retire"]
    seal: bool
    start_timeout: float
    grace: float
    scheduled_age: float | None = None
    claim_state: str | None = None
    claim_retry: str | None = None
    claim_secret: bool = False  # it came with secrets, which are erased when it is acknowledged
    claim_losses: int = 0
    claim_delivered: bool = False
    pod_protected: bool = False
    heartbeat: Heartbeat | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster reports about a worker's pod. It is shown, and it decides whether the worker can be given out."""

    worker: str
    uid: str
    node: str | None
    terminating: bool
    schedulable: bool
    protected: bool
    endpoint: str | None = None


class PoolLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A pool with the counts of its workers and claims, from which `scale` plans."""

    pool: Pool
    now: float
    stopping: bool = False  # the whole installation is being stopped with its workers
    spawning: int
    warm: int  # can be given out, now or after a reset
    held: int
    parked: int
    retiring: int
    unusable: int = 0  # free, but suspect, terminating or on a cordoned node, so not counted as capacity
    waiting: int  # all waiting claims
    servable: int  # waiting claims of tenants that are below their caps
    oldest_wait: float = 0.0
    free_ready: int = 0  # can be given out now
    brake_room: int = 1_000_000  # how many more endings the brake allows now
    outdated_starting: list[tuple[str, int]] = []  # starting workers of an old revision: id, version
    outdated_warm: list[tuple[str, int]] = []  # free workers of an old revision: id, version
    current_warm: list[tuple[str, int]] = []  # free workers of the current revision, oldest first
    starting: list[tuple[str, int]] = []  # spawning, of the current revision
    parked_free: list[tuple[str, int]] = []
    parked_expired: list[tuple[str, int]] = []  # past their TTL, oldest first
    shrunk_ago: float | None = None


class DeletedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a tenant. It is not deleted while it has claims, or if it has neither limits nor tokens."""

    deleted: bool
    tokens: int  # how many of its tokens were deleted
    live: int
    waiting: int


class TermState(msgspec.Struct, frozen=True, kw_only=True):
    duty: str
    holder: str | None
    number: int
    expired: bool
    idle: float


class DutyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica did for a duty since its last stored beat."""

    duty: str
    number: int
    progressed: bool
    succeeded: bool
    seconds: float | None
    actions: int
    skips: int
    failure: str | None


class Beat(msgspec.Struct, frozen=True):
    seen: Seen  # what the database shows after this beat
    recovering: bool
    terms: list[TermState]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    cursor: str
    at: float
    kind: str
    reason: str
    also: str | None = None
    pool: str | None = None
    worker: str | None = None
    claim: str | None = None
    tenant: str | None = None
    data: dict[str, Any] | None = None
    actor: Actor | None = None  # None if Holdfast or an agent caused it


class EventFilters(TypedDict, total=False):
    """Which events a reader wants. A filter that is left out, or None, excludes nothing."""

    claim: str | None
    worker: str | None
    pool: str | None  # its name; pools of this name that are gone count as well
    tenant: str | None
    kinds: Sequence[str]
    since: float | None  # seconds since 1970, by the database's clock
    until: float | None
    labels: LabelFilter | None  # only events of claims with these labels


class ClaimFilters(TypedDict, total=False):
    """Which claims a reader wants. A filter that is left out, or None, excludes nothing."""

    pool: str | None  # its name; pools of this name that are gone count as well
    tenant: str | None
    state: str | None
    outcome: str | None
    key: str | None  # only while it names its claim
    worker: str | None  # only claims that were active on it
    since: float | None  # when the claim was created; seconds since 1970, by the database's clock
    labels: LabelFilter | None


class WorkerFilters(TypedDict, total=False):
    """Which workers a reader wants. A filter that is left out, or None, excludes nothing."""

    pool: str | None
    tenant: str | None
    state: str | None
    since: float | None  # when the worker was created
