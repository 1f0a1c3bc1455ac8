"""The cluster in which pods run: Kubernetes, processes on one machine, or a simulation. One contract suite tests all three."""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import Literal, Protocol

import msgspec

from ..model.output import Stream
from ..model.pod import Pod, Stamp
from ..model.pool import FieldProblem, Pool
from .declared import Declarations
from .recovery import Remembered


class ClusterUnavailable(Exception):
    """The cluster did not answer, or its answer cannot be trusted. Nothing may be concluded from that (P7)."""


class NoCluster(Exception):
    """No cluster is configured, or the configuration is invalid. Trying again does not help."""


class OutcomeUnknown(ClusterUnavailable):
    """The call may or may not have taken effect. The caller must read the pod before it does anything else."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One pod to create. Its name is deterministic, so that the pod can be looked up when the outcome is unknown."""

    worker: str
    pool: Pool
    epoch: int

    @property
    def name(self) -> str:
        return self.worker


class Refused(msgspec.Struct, frozen=True):
    """The cluster refused the pod, and trying again without a change does not help: a quota, a limit, or a bad template. `kind`
    is a metric label."""

    kind: Literal["quota", "limit", "webhook", "invalid", "image", "unschedulable", "other"]
    reason: str


class AgentIdentity(msgspec.Struct, frozen=True):
    """The worker that a token belongs to, and the UID of its pod."""

    worker: str
    uid: str


Mark = tuple[int, Stream]  # the position of the first byte, and the stream from there on


class Output(msgspec.Struct, frozen=True):
    """A part of a claim's output.

    `offset` is where `data` begins. It is later than requested if the bytes before it are not kept. `size` is the number of bytes
    printed so far. `missing` bytes between the beginning and the end are not kept. `truncated` is set when the end is not kept.
    Without `marks`, all bytes are stdout, or both streams where they cannot be told apart.
    """

    data: bytes
    offset: int
    size: int
    truncated: bool = False
    missing: int = 0
    marks: tuple[Mark, ...] = ()

    def pieces(self) -> Iterator[tuple[int, Stream, bytes]]:
        """Yields the position, the stream and the bytes of each piece, in order of arrival."""
        marks: tuple[Mark, ...] = self.marks or ((self.offset, "stdout"),)
        for (begin, stream), (end, _) in pairwise((*marks, (self.offset + len(self.data), "stdout"))):
            if end > begin:
                yield begin, stream, self.data[begin - self.offset : end - self.offset]


class Finding(msgspec.Struct, frozen=True):
    """One result of `doctor`: the promise that depends on it, whether it is as it should be, and otherwise what to change."""

    promise: str
    name: str
    ok: bool
    detail: str
    advice: str
    warning: bool = False  # it is as it should be, but a safer way exists, which the advice names


class Cluster(Protocol):
    """Every method raises ClusterUnavailable when the cluster cannot be reached, and OutcomeUnknown when a write may have taken
    effect. A cluster makes no decisions, and the state that they depend on is kept in the store."""

    install: str
    declarations: Declarations | None  # None when pools can only be declared through the API
    passes_input: bool  # whether the agent of a job runs beside its command, and can pass input to it
    separates_jobs: bool  # whether a command cannot read the files of the fleet, of the operator and of other commands

    async def pods(self) -> list[Pod]:
        """Returns all pods of this installation as they are now, ended pods too. Pods of another installation are never listed.
        Raises when the list may be incomplete."""

    def changes(self) -> AsyncIterator[set[str]]:
        """Yields the names of pods that changed, as soon as the cluster reports them. Names may be repeated, merged or missed, so
        they are hints only."""

    async def read(self, name: str) -> Pod | None:
        """Returns one pod by a direct read, never from a cache. None proves that no pod of this name exists."""

    async def read_cached(self, names: Sequence[str]) -> dict[str, Pod]:
        """Returns these pods, possibly a moment old. For a name that is missing from the result, a direct read has proved that
        the pod is absent."""

    async def create(self, order: Order) -> Pod | Refused:
        """Creates the pod, or returns the pod that an earlier try of the same order created. Never creates two."""

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        """Writes stamp and protection in one write, if the pod still has this UID. Returns the pod after the write, which shows
        whether it is terminating, or None when the pod is gone. Takes at most 1 s."""

    async def clear(self, name: str, uid: str, version: str) -> bool:
        """Removes stamp and protection, if the pod still has exactly this version. Returns False when the pod has changed: the
        caller must read it again."""

    async def delete(self, name: str, uid: str, grace: float) -> None:
        """Ends the pod with this UID, by force after `grace` seconds. It is a success when the pod is absent or ending already.
        Never touches a pod with another UID."""

    async def forget(self, name: str, uid: str) -> None:
        """Removes what an ended pod left behind: its record, but not the output of a claim. It is a success when nothing is
        left."""

    async def output(self, claim: str, worker: str, offset: int, limit: int, reader: str = "") -> Output:
        """Returns a part of what a claim's command printed. The output is kept after the worker's end, until `prune_output`
        removes it. `reader` names a reader that follows the output and has received everything before `offset`. Where possible,
        the command waits a little for such a reader, before bytes that it has not read are deleted."""

    async def output_sizes(self) -> dict[str, int]:
        """Returns how many bytes are stored per claim. It is empty where an output is the container's log."""

    async def prune_output(self, keep: set[str]) -> int:
        """Removes the outputs of claims that are not in `keep`, and returns how many it removed."""

    async def verify(self, token: str) -> AgentIdentity | None:
        """Returns the worker and pod that this bootstrap token belongs to, or None when the token is forged, expired, or of
        another installation."""

    async def check(self, pool: Pool) -> list[FieldProblem]:
        """Returns what the cluster would refuse in this pool: each field with the reason."""

    async def diagnose(self, pools: Sequence[Pool]) -> list[Finding]:
        """Returns what an operator should know about this cluster before running these pools in it."""

    async def ensure(self, pools: Sequence[Pool]) -> None:
        """Creates, updates and removes the objects beside the pods (accounts, policies, budgets), so that they fit these pools:
        all that are not gone."""

    async def seal(self, name: str, uid: str) -> None:
        """Closes the control channel of a worker that has acknowledged and no longer needs it. It is a success when the pod is
        absent."""

    async def remember(self, mark: Remembered) -> None:
        """Stores the mark in a place that a restore of the database does not change."""

    async def remembered(self) -> Remembered | None:
        """Returns the mark that was stored last, or None."""

    async def close(self) -> None:
        """Closes connections and watches. Pods are not touched."""
