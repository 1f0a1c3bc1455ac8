"""Read a pod as the API server tells it: only the fields that matter are decoded, and they become facts."""

import time
from datetime import datetime
from typing import Literal

import msgspec

from ..model.pod import Pod, Stamp
from . import names

# Why a container waits, when waiting will not help by itself.
IMAGE_TROUBLE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
START_TROUBLE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff")
KILLED = (137, 143)  # by SIGKILL, by SIGTERM
# Of a container whose end nobody saw: the kubelet's word where its runtime has no record, and containerd's after a reboot.
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
    """What a job's agent says with its end: whose command the worker's container runs."""

    claim: str
    fence: int


def is_ours(pod: PodObject, install: str) -> bool:
    return pod.metadata.labels.get(names.INSTALL) == install


def facts(pod: PodObject, cordoned: frozenset[str]) -> Pod:
    """The pod as everything above the port knows it."""
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
        untouched=ended and kind == "job" and _never_ran(pod),
        sealed=labels.get(names.SEALED) == "true",
    )


def _protections(meta: Metadata) -> tuple[bool, bool, bool]:
    """For the Eviction API, Karpenter and cluster-autoscaler: each is blind to what the others look at."""
    says = meta.annotations
    return (
        meta.labels.get(names.BUSY) == "true",
        says.get(names.DO_NOT_DISRUPT) == "true",
        says.get(names.SAFE_TO_EVICT) == "false",
    )


def has_ended(pod: PodObject) -> bool:
    """The worker is over, or can never have been. Its container's status is its report, whatever the containers beside it do: no
    template may restart it. (Alone, its pod follows at once.) That its kubelet cannot find it is no proof while the pod lives."""
    if is_over(pod):
        return True
    worker = _status(pod.status.container_statuses, pod.worker_container)
    done = worker.state.terminated if worker is not None else None
    every = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return done is not None and done.reason != MISSED and any(each.state.terminated is None for each in every)


def is_over(pod: PodObject) -> bool:
    """Nothing of it runs. Force deletion (a grace of 0) is what removes a pod whose node is dead: our finalizer keeps the record
    of it, and without that the UID would be gone, which is proof of death."""
    if pod.status.phase in ("Succeeded", "Failed"):
        return True
    if pod.metadata.deletion_timestamp is None:
        return False
    return pod.metadata.deletion_grace_period_seconds == 0 or not pod.spec.node_name


def ended_at(pod: PodObject) -> float:
    """When its last container finished; else when it was created."""
    ends = [seconds(s.state.terminated.finished_at) for s in pod.status.container_statuses if s.state.terminated]
    return max((end for end in ends if end is not None), default=seconds(pod.metadata.creation_timestamp) or 0.0)


def _phase(pod: PodObject, ended: bool) -> Literal["pending", "running", "ended"]:
    if ended:
        return "ended"
    # A job's pod stays Pending for Kubernetes while its agent, an init container, waits warm.
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
    """The worker's exit code and the assignment that it belongs to, where both are sure."""
    worker = _status(pod.status.container_statuses, pod.worker_container)
    done = worker.state.terminated if worker is not None else None
    if done is None or done.started_at is None or done.reason in (MISSED, UNSEEN):
        return None, None
    disrupted = pod.status.condition("DisruptionTarget")
    if done.exit_code in KILLED and (pod.status.reason or (disrupted is not None and disrupted.status == "True")):
        return None, None  # its node or the scheduler ended it: that is a loss, not a result
    if kind == "job":
        return (done.exit_code, left.fence) if left is not None else (None, None)
    return (done.exit_code, stamp.fence) if stamp is not None else (None, None)


def _never_ran(pod: PodObject) -> bool:
    """Proof that the worker's container never started: its kubelet's last word, where its runtime remembers the agent before it.
    An older word is none, since it may have started after it: so not of a pod that was taken away by force, or that the garbage
    collector wrote off with its node; nor where a node came back and its runtime had forgotten the agent, and then perhaps the
    worker. So `terminated: ContainerStatusUnknown` is none either: it is said of what never started and of what was forgotten."""
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
    """Why it does not start, in the cluster's words."""
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
