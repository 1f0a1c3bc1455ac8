"""Where pods run: Kubernetes, processes on one machine, or a simulation. One contract suite holds them all to this."""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

import msgspec

from ..model.pod import Pod, Stamp
from ..model.pool import FieldProblem, Pool
from .declared import Declarations
from .recovery import Remembered


class ClusterUnavailable(Exception):
    """The cluster could not be asked, or its answer is not to be trusted. Nothing may be concluded from it (P7)."""


class NoCluster(Exception):
    """No cluster is configured, or its configuration makes no sense. It does not pass by itself."""


class OutcomeUnknown(ClusterUnavailable):
    """The call may or may not have taken effect: look before anything else."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One pod to create. The name is deterministic, so that an unknown outcome can be looked up."""

    worker: str
    pool: Pool
    epoch: int

    @property
    def name(self) -> str:
        return self.worker


class Refused(msgspec.Struct, frozen=True):
    """The cluster said no, for good: a quota, a limit, a bad template. `kind` is a metric label."""

    kind: Literal["quota", "limit", "webhook", "invalid", "image", "unschedulable", "other"]
    reason: str


class Identity(msgspec.Struct, frozen=True):
    """Whose token this is: a worker and the UID of its pod."""

    worker: str
    uid: str


class Output(msgspec.Struct, frozen=True):
    """A piece of a claim's output. `size` is what there is so far; `truncated` says that the bound cut it."""

    data: bytes
    offset: int
    size: int
    truncated: bool = False


class Finding(msgspec.Struct, frozen=True):
    """One thing that `doctor` looked at: which promise depends on it, and what to change where it is not as it should be."""

    promise: str
    name: str
    ok: bool
    detail: str
    advice: str


class Cluster(Protocol):
    """Every method raises ClusterUnavailable when the cluster cannot be asked, and OutcomeUnknown when a write may have
    happened. Nothing here decides; nothing here remembers what matters."""

    install: str
    declarations: Declarations | None  # None: pools are declared through the API alone

    async def pods(self) -> list[Pod]:
        """All pods of this installation, ended ones too, as of now. Pods of another installation are never listed. Raises
        rather than answers when the list may be partial."""

    def changes(self) -> AsyncIterator[set[str]]:
        """Names of pods that changed, as soon as known. May repeat, merge or miss some: a hint, never a truth."""

    async def read(self, name: str) -> Pod | None:
        """One pod, straight from the source. None is proof: no pod of this name exists."""

    async def read_cached(self, names: Sequence[str]) -> dict[str, Pod]:
        """These pods, as they are or were a moment ago. Who is not in the answer is absent by a direct read."""

    async def create(self, order: Order) -> Pod | Refused:
        """Create the pod, or find the one that an earlier try of the same order created. Never two."""

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        """Stamp and protect in one write, if the pod still has this UID. None: it is gone. The answer shows whether it is
        terminating. Bounded to 1 s."""

    async def clear(self, name: str, uid: str, version: str) -> bool:
        """Take stamp and protection off, if the pod is still exactly as seen. False: it changed, so look again."""

    async def delete(self, name: str, uid: str, grace: float) -> None:
        """Ask the pod with this UID to end, by force after `grace` seconds. Absent or already ending is success. Never
        touches a pod with another UID."""

    async def forget(self, name: str, uid: str) -> None:
        """Remove what an ended pod left behind (its record, not a claim's output). Absent is success."""

    async def output(self, claim: str, worker: str, offset: int, limit: int) -> Output:
        """A piece of what a claim's command printed. Kept after the worker's end until pruned."""

    async def prune_output(self, keep: set[str]) -> int:
        """Remove outputs of claims that are not in `keep`; how many."""

    async def verify(self, token: str) -> Identity | None:
        """The worker and pod that this bootstrap token belongs to; None: forged, expired or foreign."""

    async def check(self, pool: Pool) -> list[FieldProblem]:
        """What of this pool the cluster would refuse, with the field and the reason."""

    async def diagnose(self, pools: Sequence[Pool]) -> list[Finding]:
        """What a person should know of this cluster before he trusts it with these pools."""

    async def ensure(self, pools: Sequence[Pool]) -> None:
        """Bring what stands beside the pods (accounts, policies, budgets) to what all pools that are not gone need."""

    async def seal(self, name: str, uid: str) -> None:
        """Close the control channel of a worker that has acknowledged and needs it no more. Absent is success."""

    async def remember(self, mark: Remembered) -> None:
        """Keep the high-water mark where a restore of the database does not reach it."""

    async def remembered(self) -> Remembered | None:
        """The high-water mark last kept, if any."""

    async def close(self) -> None:
        """Let go of connections and watches. Pods are not touched."""
