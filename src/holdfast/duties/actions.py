"""What a plan may ask for. Engine's `apply` is the one place where these become effects."""

from dataclasses import dataclass, field

from ..model.pool import Pool
from ..ports.declared import Declared, PoolStatus
from ..ports.store import Facts
from ..recovery.actions import RecoveryAction


@dataclass(frozen=True)
class Match:
    """Pair what waits in a pool with what is free."""

    pool_id: str


@dataclass(frozen=True)
class HandOver:
    """Protect and offer again: the replica that assigned it may have died in between."""

    claim: str


@dataclass(frozen=True)
class EndClaim:
    """One of P2's ways. With `proof`, only after a direct read showed that this pod is gone or ended."""

    claim: str
    fence: int | None
    states: tuple[str, ...]
    outcome: str
    how: str
    reason: str
    exit_code: int | None = None
    proof: "Proof | None" = None


@dataclass(frozen=True)
class Proof:
    name: str
    uid: str | None


@dataclass(frozen=True)
class Requeue:
    """Back to its place in the queue. `keep_worker`: nothing was delivered, so it may go back where it came from."""

    claim: str
    fence: int
    reason: str
    keep_worker: bool = False
    suspect: bool = False
    proof: Proof | None = None
    untouched: bool = False  # acknowledged, and provably never begun
    idle: float | None = None  # only if the hand-over still has not moved for so long


@dataclass(frozen=True)
class Spawn:
    """More workers for a pool: so many free or coming, so many starting at once."""

    pool_id: str
    free_target: int
    starting_limit: int
    count: int


@dataclass(frozen=True)
class CreatePod:
    """The pod of a row whose creation is unknown: looked up by its name, created if it is not there."""

    worker: str
    epoch: int


@dataclass(frozen=True)
class NoteUid:
    """The pod exists: its UID is the worker's identity from now on."""

    worker: str
    uid: str


@dataclass(frozen=True)
class Warm:
    worker: str
    version: int
    endpoint: str | None


@dataclass(frozen=True)
class Condemn:
    """A free worker is to go. `counted`: the brake counts it. `trouble`: a start failed, and the pool should say so."""

    worker: str
    version: int
    reason: str
    counted: bool = True
    pool_id: str | None = None
    trouble: str | None = None
    proof: Proof | None = None  # only after a direct read showed that its pod is gone
    floor: int | None = None  # only while its pool has more free workers than this


@dataclass(frozen=True)
class DeletePod:
    """Of a worker that is retiring, or of a pod without a row. Never under a live claim: `apply` asks the store again."""

    name: str
    uid: str
    grace: float
    orphan: bool = False
    counted: bool = True  # by the brake: one that ends already is not one more that we end
    reason: str = ""


@dataclass(frozen=True)
class ForgetPod:
    name: str
    uid: str


@dataclass(frozen=True)
class Bury:
    """Only after a direct read showed that the pod is absent or ended."""

    worker: str
    uid: str | None
    reason: str


@dataclass(frozen=True)
class Suspect:
    worker: str
    version: int
    reason: str


@dataclass(frozen=True)
class HeardAgain:
    worker: str


@dataclass(frozen=True)
class Acknowledged:
    """A job's agent has left, which it does only after its acknowledgement was accepted: if we do not know of it, it was lost."""

    worker: str
    fence: int


@dataclass(frozen=True)
class Protect:
    """Restore stamp and protection on a busy worker."""

    worker: str
    uid: str
    claim: str
    tenant: str
    fence: int


@dataclass(frozen=True)
class Clear:
    """Remove left-over stamp and protection from a free worker: a guarded change first, then a versioned write."""

    worker: str
    version: int
    uid: str
    pod_version: str


@dataclass(frozen=True)
class StartBlocked:
    """A worker cannot start yet, and its pod says why."""

    pool_id: str
    reason: str


@dataclass(frozen=True)
class Seal:
    """Close the control channel of a busy worker whose agent has left."""

    worker: str
    uid: str


@dataclass(frozen=True)
class Ensure:
    """What stands beside the pods of these pools."""

    pools: tuple[Pool, ...]


@dataclass(frozen=True)
class ShowFacts:
    facts: tuple[Facts, ...]


@dataclass(frozen=True)
class FinishPool:
    pool_id: str


@dataclass(frozen=True)
class PutPool:
    """An object's pool, as the object wants it. What is wrong with it is told to the object."""

    declared: Declared


@dataclass(frozen=True)
class DrainPool:
    """Durably. With `gone`, only after a direct read showed that the object with this UID is gone."""

    name: str
    pool_id: str
    gone: str | None = None


@dataclass(frozen=True)
class Guard:
    """The object must not vanish before its pool's drain is durable."""

    declared: Declared


@dataclass(frozen=True)
class Release:
    declared: Declared


@dataclass(frozen=True)
class UpdateStatus:
    declared: Declared
    status: PoolStatus


@dataclass(frozen=True)
class Quarantine:
    """Something that we do not understand and must not touch: say so, once."""

    name: str
    reason: str


@dataclass(frozen=True)
class PruneHistory:
    days: int


@dataclass(frozen=True)
class PruneOutputs:
    keep: frozenset[str] = field(repr=False)


Action = (
    Match
    | HandOver
    | EndClaim
    | Requeue
    | Spawn
    | CreatePod
    | NoteUid
    | Warm
    | Condemn
    | DeletePod
    | ForgetPod
    | Bury
    | Suspect
    | HeardAgain
    | Acknowledged
    | Protect
    | Clear
    | StartBlocked
    | Seal
    | Ensure
    | ShowFacts
    | FinishPool
    | PutPool
    | DrainPool
    | Guard
    | Release
    | UpdateStatus
    | RecoveryAction
    | Quarantine
    | PruneHistory
    | PruneOutputs
)
