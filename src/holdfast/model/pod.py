"""A pod: what the cluster reports of one worker's process. Facts, never states."""

from typing import Literal

import msgspec

Phase = Literal["pending", "running", "ended"]


class Stamp(msgspec.Struct, frozen=True):
    """The labels on a pod that say who holds it: a projection of the claim, and what recovery adopts from."""

    owner: str
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
    version: str  # changes with every change of the pod: a clear carries it, so that a late one fails
    created_at: float
    ready: bool = False
    terminating: bool = False
    schedulable: bool = True  # false: its node is cordoned
    node: str | None = None
    endpoint: str | None = None
    stamp: Stamp | None = None
    protected: bool = False
    partly_protected: bool = False  # some part of the protection is there, whoever put it
    epoch: int = 0  # the database's epoch when it was created
    exit_code: int | None = None  # of the claim's command, where the cluster knows it
    exit_fence: int | None = None  # the assignment that the exit code belongs to
    trouble: str | None = None  # why it does not start: image, unschedulable, …
    left_to: int | None = None  # the fence of the assignment to which a job's agent has left its container
    untouched: bool = False  # it ended, and provably never started what it was given
    sealed: bool = False  # its control channel is closed

    @property
    def agent_running(self) -> bool:
        """False: its agent's work is done and it has left, so silence says nothing, and the container's end is its report."""
        return self.left_to is None


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent last said. `age` is in heard time: silence while nobody could listen does not count."""

    worker: str
    age: float
    doing: Literal["idle", "activating", "running", "resetting", "draining"]
    claim: str | None = None
    fence: int | None = None
    tenant: str | None = None
    reset_fence: int | None = None
    claim_ended: bool = False  # we know the claim that it names, and it has ended
    spoke_since_recovery: bool = False
