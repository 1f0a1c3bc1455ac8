"""A pod: what the cluster reports about the process of one worker. It holds facts, never states."""

from typing import Literal

import msgspec

Phase = Literal["pending", "running", "ended"]


class Stamp(msgspec.Struct, frozen=True):
    """The labels on a pod that show its holder. They are a copy of the claim, from which recovery adopts."""

    tenant: str = msgspec.field(name="owner")  # `stamp.json` and the label keep the name of the first release
    claim: str
    fence: int
    at: float = 0.0  # when it was stamped, by the cluster's clock


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: str
    worker: str
    install: str
    pool_id: str
    pool: str
    revision: str
    phase: Phase
    version: str  # changes with every change of the pod; a clear sends it, so that a late clear fails
    created_at: float
    ready: bool = False
    terminating: bool = False
    schedulable: bool = True  # False when its node is cordoned
    node: str | None = None
    endpoint: str | None = None
    stamp: Stamp | None = None
    protected: bool = False
    partly_protected: bool = False  # the pod has some part of the protection, from Holdfast or from another writer
    epoch: int = 0  # the database's epoch when it was created
    exit_code: int | None = None  # of the claim's command, if the cluster knows it
    exit_fence: int | None = None  # the assignment that the exit code belongs to
    trouble: str | None = None  # why it does not start: image, unschedulable, …
    left_to: int | None = (
        None  # the fence of the assignment for which the job's agent has exited and left the container to the command
    )
    untouched: bool = False  # the pod ended, and its command provably never started
    sealed: bool = False  # its control channel is closed

    @property
    def agent_running(self) -> bool:
        """False when the agent has done its work and exited. Silence then means nothing, and the end of the container is the
        report."""
        return self.left_to is None


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's last report. `age` is in heard time, so time in which no report could be received does not count."""

    worker: str
    age: float
    doing: Literal["idle", "activating", "running", "resetting", "draining"]
    claim: str | None = None
    fence: int | None = None
    tenant: str | None = None
    served_fence: int | None = None  # of the last claim that the agent has served, from the end of that claim on
    claim_ended: bool = False  # the claim in the report has a row, and has ended
    ahead: bool = False  # the worker's row and the claim's row are older than the assignment in the report
    reported_since_recovery: bool = False
