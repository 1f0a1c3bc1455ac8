"""A claim: one holder's right to one worker, from the queue to its outcome."""

from typing import Literal

import msgspec

from .machine import Machine, Transition

State = Literal["waiting", "assigned", "active", "ended"]
Outcome = Literal["completed", "failed", "released", "expired", "cancelled", "lost", "refused"]

# P2: the closed list of ways in which a claim can end. Each is a metric label. An agent's silence is not on the list.
How = Literal[
    "result", "release", "cancel", "lease", "max_duration", "force", "death", "deadline", "pool_deleted", "unprotected",
    "activation",  # its activation failed too often, so nothing of it had begun
    "forgotten",  # it had left its worker in lost commits, so it had ended in one of these ways, or may have run elsewhere
]  # fmt: skip

CLAIM = Machine(
    noun="claim",
    states=("waiting", "assigned", "active", "ended"),
    initial=("waiting", "active"),
    final="ended",
    transitions=(
        Transition("create", (), "waiting", "claim.created", "a request was accepted"),
        Transition("assign", ("waiting",), "assigned", "claim.assigned", "a worker was picked and fenced"),
        Transition(
            "activate", ("assigned",), "active", "claim.active", "its worker acknowledged it or, without an agent, was protected"
        ),
        Transition("requeue", ("assigned",), "waiting", "claim.requeued", "the worker proved unusable"),
        Transition("retry", ("active",), "waiting", "claim.retried", "its worker died, and its request has retry: lost"),
        Transition("end", ("waiting", "assigned", "active"), "ended", "claim.ended", "one of the ways in P2's closed list"),
        Transition("adopt", (), "active", "claim.adopted", "found on a worker, and has no row, after lost commits"),
        Transition("readopt", ("waiting", "assigned"), "active", "claim.adopted", "found active on a worker, after lost commits"),
    ),
)

LIVE = ("assigned", "active")  # the states in which a claim has a worker

OUTCOMES: dict[str, tuple[str, ...]] = {
    "waiting": ("cancelled", "refused", "lost"),
    "assigned": ("cancelled", "released", "lost", "refused"),
    "active": ("completed", "failed", "released", "expired", "cancelled", "lost"),
}

MAX_LOST_RETRIES = 2  # P8: with `retry: lost`, a command runs at most three times
KEY_HOURS = 24  # P1: a key still finds its claim for this long after the claim's end
KEPT_CLAIMS = 100_000  # ended claims of one tenant that are kept longer than their keys, the newest ones
BATCH = 128  # requests stored together; larger batches delay the first request more than they help the last one

# A fence is one integer: the epoch in the high bits, the assignment's number in the low ones. It stays below 2^53, because larger
# integers lose digits in JSON.
FENCE_BITS = 40
FENCE_LIMIT = 2**53
# A fence or a mark of an epoch that is further ahead than this is damaged. A backup may be older than some recoveries, but not
# than so many, and a recovery by a damaged fence would use up the epochs.
EPOCH_MARGIN = 100


def fence_of(epoch: int, number: int) -> int:
    assert 0 < epoch < 2**13
    assert 0 < number < 2**FENCE_BITS
    return (epoch << FENCE_BITS) | number


def epoch_of(fence: int) -> int:
    return fence >> FENCE_BITS


def can_be_given(fence: int, epoch: int) -> bool:
    """Returns whether a database can have given this fence, if this one is in `epoch` now and may have lost commits."""
    return 0 < fence < FENCE_LIMIT and epoch_of(fence) <= epoch + EPOCH_MARGIN


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim as stored. Its deadlines are converted from heard time to the database's clock."""

    id: str
    pool_id: str
    pool: str
    tenant: str
    state: State
    reason: str
    priority: int
    attempts: int
    created_at: float
    requested_priority: int | None = None  # only if it is more than its tenant may use
    retried_at: float | None = None  # when it last went back to the queue because its worker had died
    key: str | None = None
    worker: str | None = None
    fence: int | None = None
    protected: bool | None = None
    endpoint: str | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    assigned_at: float | None = None
    active_at: float | None = None
    ended_at: float | None = None
    deadline_at: float | None = None
    lease_until: float | None = None
    max_until: float | None = None
    labels: dict[str, str] = {}

    @property
    def priority_reason(self) -> str | None:
        """Returns why its priority is lower than requested, or None if it is what was requested."""
        if self.requested_priority is None:
            return None
        return (
            f"priority {self.requested_priority} was requested and {self.priority} granted, because tenant {self.tenant!r} may"
            f" use at most {self.priority} (its maxPriority, which an admin can raise)"
        )

    @property
    def queued_at(self) -> float:
        """Returns when it joined the queue. After a retry this is the second time, because it did not wait while it was held."""
        return self.created_at if self.retried_at is None else self.retried_at

    @property
    def waited(self) -> float | None:
        """Returns for how many seconds it waited for its last worker, or None before it got one."""
        return None if self.assigned_at is None else max(0.0, self.assigned_at - self.queued_at)
