"""Decode the fields of a Kubernetes pod that matter to us, and convert them to our Pod."""

import time
from datetime import datetime
from typing import Literal

import msgspec

from ..model.pod import Pod, Stamp
from . import names

# Reasons why a container waits and will not start by itself.
IMAGE_TROUBLE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
START_TROUBLE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff")
KILLED = (137, 143)  # by SIGKILL, by SIGTERM
# Reasons of a container whose end was not observed: the kubelet sets the first if its runtime has no record of the container,
# and containerd sets the second after a reboot.
MISSED, UNSEEN = "ContainerStatusUnknown", "Unknown"


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class Running(_Part, frozen=True):
    started_at: str | None = None


class Waiting(_Part, frozen=True):
    reason: str = ""
    message: str = ""


class Terminated(_Part, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(_Part, frozen=True):
    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Part, frozen=True):
    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0


class Condition(_Part, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class PodStatus(_Part, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []

    def condition(self, type_: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == type_), None)


class Container(_Part, frozen=True):
    name: str


class PodSpecPart(_Part, frozen=True):
    node_name: str | None = None
    containers: list[Container] = []


class Metadata(_Part, frozen=True):
    name: str = ""
    uid: str = ""
    resource_version: str = "0"
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []

    @property
    def age(self) -> float:
        return time.time() - (seconds(self.creation_timestamp) or 0.0)


class PodObject(_Part, frozen=True):
    metadata: Metadata
    spec: PodSpecPart = PodSpecPart()
    status: PodStatus = PodStatus()

    @property
    def version(self) -> int:
        return int(self.metadata.resource_version)

    @property
    def worker_container(self) -> str:
        return self.spec.containers[0].name if self.spec.containers else ""


class Left(_Part, frozen=True):
    """A job's agent writes this when it exits: the claim whose command the worker's container runs next."""

    claim: str
    fence: int


def is_ours(pod: PodObject, install: str) -> bool:
    return pod.metadata.labels.get(names.INSTALL) == install


def is_recorded_later(pod: PodObject) -> bool:
    """Returns whether our finalizer keeps the pod until its end is recorded."""
    return names.FINALIZER in pod.metadata.finalizers


def facts(pod: PodObject, cordoned: frozenset[str]) -> Pod:
    """Returns the pod in the form that the rest of the system uses."""
    labels, meta, status = pod.metadata.labels, pod.metadata, pod.status
    kind = labels.get(names.KIND, "plain")
    ended, left = has_ended(pod), _left(pod)
    stamp = _stamp(meta)
    code, fence = _exit(pod, kind, left, stamp) if ended else (None, None)
    node = pod.spec.node_name or None
    ready = status.condition("Ready")
    return Pod(
        name=meta.name,
        uid=meta.uid,
        worker=labels.get(names.WORKER, meta.name),
        install=labels.get(names.INSTALL, ""),
        pool_id=labels.get(names.POOL_ID, ""),
        pool=labels.get(names.POOL, ""),
        revision=labels.get(names.REVISION, ""),
        phase=_phase(pod, ended),
        version=meta.resource_version,
        created_at=seconds(meta.creation_timestamp) or 0.0,
        ready=kind == "plain" and not ended and ready is not None and ready.status == "True",
        terminating=meta.deletion_timestamp is not None,
        schedulable=node not in cordoned,
        node=node,
        stamp=stamp,
        protected=all(_protections(meta)),
        partly_protected=any(_protections(meta)),
        epoch=int(labels.get(names.EPOCH, "0")) if labels.get(names.EPOCH, "0").isdecimal() else 0,
        exit_code=code,
        exit_fence=fence,
        trouble=trouble(pod),
        left_to=left.fence if kind == "job" and left is not None else None,
        untouched=ended and kind == "job" and never_ran(pod),
        sealed=labels.get(names.SEALED) == "true",
    )


def _protections(meta: Metadata) -> tuple[bool, bool, bool]:
    """Returns whether the pod is protected from the Eviction API, Karpenter and cluster-autoscaler. Each reads only its own
    mark."""
    annotations = meta.annotations
    return (
        meta.labels.get(names.BUSY) == "true",
        annotations.get(names.DO_NOT_DISRUPT) == "true",
        annotations.get(names.SAFE_TO_EVICT) == "false",
    )


def has_ended(pod: PodObject) -> bool:
    """Returns whether the worker has ended, or can never start. The worker's container decides, even while sidecars still run,
    because no template may restart it. (Without sidecars, the pod's phase follows immediately.) `ContainerStatusUnknown` is no
    proof while the pod lives."""
    if is_over(pod):
        return True
    worker = _status(pod.status.container_statuses, pod.worker_container)
    done = worker.state.terminated if worker is not None else None
    every = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return done is not None and done.reason != MISSED and any(each.state.terminated is None for each in every)


def is_over(pod: PodObject) -> bool:
    """Returns whether no container of the pod runs. A force deletion (grace 0) counts, because it removes a pod whose node is
    dead: without our finalizer, the UID would be gone now, and that is proof of death. A deleted pod without a node never ran."""
    if pod.status.phase in ("Succeeded", "Failed"):
        return True
    if pod.metadata.deletion_timestamp is None:
        return False
    return pod.metadata.deletion_grace_period_seconds == 0 or not pod.spec.node_name


def ended_at(pod: PodObject) -> float:
    """Returns when the pod's last container finished, or when the pod was created if that is unknown."""
    ends = [seconds(s.state.terminated.finished_at) for s in pod.status.container_statuses if s.state.terminated]
    return max((end for end in ends if end is not None), default=seconds(pod.metadata.creation_timestamp) or 0.0)


def _phase(pod: PodObject, ended: bool) -> Literal["pending", "running", "ended"]:
    if ended:
        return "ended"
    # While a job's agent waits warm, Kubernetes reports the pod as Pending, because the agent is an init container.
    agent = _status(pod.status.init_container_statuses, names.AGENT)
    lives = agent is not None and (agent.state.running is not None or agent.state.terminated is not None)
    return "running" if lives or pod.status.phase == "Running" else "pending"


def _left(pod: PodObject) -> Left | None:
    agent = _status(pod.status.init_container_statuses, names.AGENT)
    done = agent.state.terminated if agent is not None else None
    if done is None or done.exit_code != 0:
        return None
    try:
        return msgspec.json.decode(done.message, type=Left)
    except msgspec.MsgspecError:
        return None


def _exit(pod: PodObject, kind: str, left: Left | None, stamp: Stamp | None) -> tuple[int | None, int | None]:
    """Returns the worker's exit code and the fence of its assignment, or (None, None) unless both are certain."""
    worker = _status(pod.status.container_statuses, pod.worker_container)
    done = worker.state.terminated if worker is not None else None
    if done is None or done.started_at is None or done.reason in (MISSED, UNSEEN):
        return None, None
    disrupted = pod.status.condition("DisruptionTarget")
    if done.exit_code in KILLED and (pod.status.reason or (disrupted is not None and disrupted.status == "True")):
        return None, None  # ended by its node or the scheduler, so the claim is lost and has no result
    if kind == "job":
        return (done.exit_code, left.fence) if left is not None else (None, None)
    return (done.exit_code, stamp.fence) if stamp is not None else (None, None)


def never_ran(pod: PodObject) -> bool:
    """Returns whether it is proven that the worker's container never started. The proof is the kubelet's final status, if the
    runtime still has its record of the agent. An older status proves nothing, because the container may have started after it. So
    there is no proof for a pod that was deleted by force, or that the garbage collector failed because its node is gone. There is
    also none if the runtime lost its record of the agent, because it may have lost the worker's too: `ContainerStatusUnknown` is
    reported both for containers that never started and for containers without a record."""
    if not pod.spec.node_name:
        return True
    disrupted = pod.status.condition("DisruptionTarget")
    if pod.status.phase not in ("Succeeded", "Failed") or (disrupted is not None and disrupted.reason == "DeletionByPodGC"):
        return False
    agent = _status(pod.status.init_container_statuses, names.AGENT)
    worker = _status(pod.status.container_statuses, pod.worker_container)
    if agent is None or worker is None or agent.restart_count or worker.restart_count or worker.last_state.terminated is not None:
        return False
    left, waits = agent.state.terminated, worker.state.waiting
    known = left is not None and left.started_at is not None and left.reason != MISSED
    return known and waits is not None and waits.reason == "PodInitializing"


def _stamp(meta: Metadata) -> Stamp | None:
    claim, fence = meta.labels.get(names.CLAIM), meta.labels.get(names.FENCE, "")
    if not claim or not fence.isdecimal():
        return None
    at = meta.annotations.get(names.STAMPED_AT, "")
    return Stamp(meta.labels.get(names.OWNER, ""), claim, int(fence), float(at) if at.replace(".", "", 1).isdecimal() else 0.0)


def trouble(pod: PodObject) -> str | None:
    """Returns why the pod does not start, in the cluster's words, or None."""
    scheduled = pod.status.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return f"unschedulable: {scheduled.message or scheduled.reason}"[:500]
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waits = status.state.waiting
        if waits is not None and waits.reason in (*IMAGE_TROUBLE, *START_TROUBLE):
            kind = "image" if waits.reason in IMAGE_TROUBLE else "container"
            return f"{kind}: {waits.reason}: {waits.message}"[:500]
        done = status.state.terminated
        if done is not None and done.exit_code != 0 and status.name != pod.worker_container:
            return f"container: {status.name} exited with {done.exit_code} ({done.reason})"[:500]
    return None


def _status(statuses: list[ContainerStatus], name: str) -> ContainerStatus | None:
    return next((status for status in statuses if status.name == name), None)


def seconds(timestamp: str | None) -> float | None:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
