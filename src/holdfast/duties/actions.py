"""The actions that a plan can contain. `running/apply.py` is the only place that carries them out."""

from dataclasses import dataclass, field

from ..ports.store import Facts
from ..recovery.actions import RecoveryAction
from .pool_actions import PoolAction


@dataclass(frozen=True)
class Match:
    """Pairs a pool's waiting claims with its free workers."""

    pool_id: str


@dataclass(frozen=True)
class HandOver:
    """Protects and offers again, because the replica that assigned the claim may have died before it did so."""

    claim: str


@dataclass(frozen=True)
class EndClaim:
    """Ends a claim in one of P2's ways. With `proof`, only after a direct read showed that the pod is gone or has ended."""

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
    """Puts a claim back to its place in the queue. `keep_worker` means that nothing was delivered, so that the worker may return
    to where it came from."""

    claim: str
    fence: int
    reason: str
    keep_worker: bool = False
    suspect: bool = False
    proof: Proof | None = None
    untouched: bool = False  # acknowledged, but its command provably never started
    idle: float | None = None  # only if the hand-over has made no progress for so many seconds
    activation: bool = False  # its activation failed, so the claim and its pool wait before the next try


@dataclass(frozen=True)
class Spawn:
    """Spawns up to `count` workers, while fewer than `free_target` are free or starting and fewer than `starting_limit` are
    starting."""

    pool_id: str
    free_target: int
    starting_limit: int
    count: int


@dataclass(frozen=True)
class CreatePod:
    """Creates the pod of a row when it is unknown whether it exists. The pod is looked up by its name first."""

    worker: str
    epoch: int


@dataclass(frozen=True)
class NoteUid:
    """Stores the UID of the worker's pod, which is the worker's identity from now on."""

    worker: str
    uid: str


@dataclass(frozen=True)
class Warm:
    worker: str
    version: int
    endpoint: str | None


@dataclass(frozen=True)
class Condemn:
    """Retires a free worker. `counted` means that the brake counts it. `trouble` is why a start failed, to be stored with the
    pool."""

    worker: str
    version: int
    reason: str
    counted: bool = True
    pool_id: str | None = None
    trouble: str | None = None
    proof: Proof | None = None  # only after a direct read showed that its pod is gone or has ended
    floor: int | None = None  # only while its pool has more free workers than this


@dataclass(frozen=True)
class DeletePod:
    """Ends the pod of a retiring worker, or a pod without a row. Never under a live claim, because `apply` reads the row again
    first."""

    name: str
    uid: str
    grace: float
    orphan: bool = False
    counted: bool = True  # by the brake; a pod that is ending already is not counted
    reason: str = ""


@dataclass(frozen=True)
class ForgetPod:
    name: str
    uid: str


@dataclass(frozen=True)
class Bury:
    """Closes the row of a retiring worker, only after a direct read showed that its pod is absent or has ended."""

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
    """Removes `suspect` and `unconfirmed` from a worker whose agent or pod shows what its row shows."""

    worker: str
    version: int  # a recovery that ends later raises it, so that a plan from before that recovery confirms nothing


@dataclass(frozen=True)
class Acknowledged:
    """Makes a claim active, because its job's agent has exited. An agent exits only after its acknowledgement was accepted, so
    the commit of that acknowledgement was lost."""

    worker: str
    fence: int


@dataclass(frozen=True)
class Protect:
    """Restores stamp and protection on a busy worker."""

    worker: str
    uid: str
    claim: str
    tenant: str
    fence: int


@dataclass(frozen=True)
class Clear:
    """Removes a left-over stamp and protection from a free worker: first a guarded change of the row, then a versioned write to
    the pod."""

    worker: str
    version: int
    uid: str
    pod_version: str


@dataclass(frozen=True)
class StartBlocked:
    """Stores why a worker cannot start yet, as its pod reports it."""

    pool_id: str
    reason: str


@dataclass(frozen=True)
class Seal:
    """Closes the control channel of a busy worker whose agent has exited."""

    worker: str
    uid: str


@dataclass(frozen=True)
class ShowFacts:
    facts: tuple[Facts, ...]


@dataclass(frozen=True)
class Quarantine:
    """Records, once, a pod that Holdfast does not understand and must not touch."""

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
    | ShowFacts
    | PoolAction
    | RecoveryAction
    | Quarantine
    | PruneHistory
    | PruneOutputs
)
