"""What goes in and out of the store: frozen values, one for each question."""

from typing import Any, Literal

import msgspec

from ..model.claim import Claim
from ..model.outcome import Outcome
from ..model.pod import Heartbeat
from ..model.pool import Pool
from ..model.worker import Worker
from .recovery import Seen


class NewClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request. Its id is made before it is sent, so that an unknown commit can be settled by sending it again."""

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
    secrets: dict[str, str] | None


class Pair(msgspec.Struct, frozen=True):
    """A claim that got a worker: it is `assigned`, and has to be handed over."""

    claim: str
    worker: str
    fence: int
    uid: str | None
    tenant: str


# new: it is stored. same: its key names this very request already. other: its key names another request. closed: the pool drains.
SubmittedAs = Literal["new", "same", "other", "closed"]


class Batch(msgspec.Struct, frozen=True):
    """What became of each request (by its id: what, and the claim that stands for it), and the pairs that were made."""

    answers: dict[str, tuple[SubmittedAs, str]]
    pairs: list[Pair]


class AcknowledgedClaim(msgspec.Struct, frozen=True):
    """The claim that an acknowledgement made active. `first` is False when an earlier acknowledgement had done so."""

    claim: Claim
    first: bool


class EndedClaim(msgspec.Struct, frozen=True):
    """What became of an attempt to end a claim, and the claim as it is after its end; None unless the outcome is Done."""

    outcome: Outcome
    claim: Claim | None = None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told, exactly once per fence."""

    claim: str
    fence: int
    tenant: str
    request: dict[str, Any]
    secrets: dict[str, str]
    protected: bool
    max_seconds: float


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A claim with something due, by heard time."""

    claim: str
    fence: int | None
    worker: str | None
    state: Literal["waiting", "assigned", "active"]
    pool_live: bool
    past_deadline: bool = False
    past_lease: bool = False
    past_max: bool = False
    idle: float = 0.0  # seconds since the hand-over last progressed
    offered: bool = False
    delivered: bool = False
    agent: bool = True


class Directive(msgspec.Struct, frozen=True):
    """What an agent should do now."""

    do: Literal["nothing", "hold", "end", "exit", "unknown", "ahead"]
    fence: int | None = None
    reason: str = ""
    park: bool = False
    freed: str | None = None  # the pool in which this word made a worker free


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent says of itself."""

    worker: str
    uid: str
    doing: Literal["idle", "activating", "running", "resetting", "draining"]
    claim: str | None = None
    fence: int | None = None
    tenant: str | None = None
    reset_fence: int | None = None
    endpoint: str | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A worker with its claim and heartbeat: what `converge` compares with the pod."""

    worker: Worker
    age: float  # seconds in its state, in heard time
    epoch: int
    pool_frozen: bool
    pool_live: bool
    agent: bool
    protection: Literal["claim", "always", "off"]
    silence: Literal["alert", "retire"]
    seal: bool
    start_timeout: float
    grace: float
    park_left: float | None = None
    scheduled_age: float | None = None
    claim_state: str | None = None
    claim_fence: int | None = None
    claim_protected: bool | None = None
    claim_retry: str | None = None
    claim_secret: bool = False  # it came with secrets, which nobody has any more once it was acknowledged
    claim_losses: int = 0
    claim_delivered: bool = False
    pod_protected: bool = False
    heartbeat: Heartbeat | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster reports of a worker's pod, to be shown beside its row."""

    worker: str
    uid: str
    node: str | None
    terminating: bool
    schedulable: bool
    protected: bool
    endpoint: str | None = None


class PoolLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A pool with what it has and what waits for it: what `scale` plans from."""

    pool: Pool
    now: float
    stopping: bool = False  # the whole installation is being stopped with its workers
    spawning: int
    warm: int  # can be given out, or will be once it is reset
    held: int
    parked: int
    retiring: int
    unusable: int = 0  # free, but suspect, terminating or on a cordoned node: not capacity
    waiting: int  # all claims that wait
    servable: int  # those whose tenants are below their caps
    oldest_wait: float = 0.0
    free_ready: int = 0  # could be given out this instant
    brake_room: int = 1_000_000  # how many more endings the brake would let pass now
    stale_starting: list[tuple[str, int]] = []  # starting workers of an old revision: nobody can use them yet
    stale_warm: list[tuple[str, int]] = []  # free workers of an old revision: id, version
    fresh_warm: list[tuple[str, int]] = []  # free workers of the current revision, oldest first
    starting: list[tuple[str, int]] = []  # spawning, of the current revision
    parked_free: list[tuple[str, int]] = []
    parked_expired: list[tuple[str, int]] = []  # past their TTL, oldest first
    shrunk_ago: float | None = None


class TermState(msgspec.Struct, frozen=True, kw_only=True):
    duty: str
    holder: str | None
    number: int
    expired: bool
    idle: float


class DutyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica did for a duty since its last beat."""

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
