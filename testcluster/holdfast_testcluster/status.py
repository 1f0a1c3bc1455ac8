"""Computes a pod's status from the states of its containers, as a kubelet does. All functions are pure."""

import time
from dataclasses import dataclass, field
from typing import Any, Literal

Object = dict[str, Any]
Kind = Literal["init", "sidecar", "main"]
CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
LOST = {
    "exitCode": 137,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
}


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass
class Record:
    """What is known about one container."""

    spec: Object
    kind: Kind
    state: Object
    last: Object = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""

    @property
    def name(self) -> str:
        name: str = self.spec["name"]
        return name

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the container has not ended."""
        code: int | None = self.state["terminated"]["exitCode"] if "terminated" in self.state else None
        return code

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def initialized(self) -> bool:
        return self.started if self.kind == "sidecar" else self.exit_code == 0

    def as_object(self) -> Object:
        finished_init = self.kind == "init" and self.exit_code == 0  # a real kubelet reports it as ready
        image = self.spec["image"]
        return {
            "name": self.name,
            "state": self.state,
            "lastState": self.last,
            "ready": self.ready or finished_init,
            "started": self.started and self.running,
            "restartCount": self.restarts,
            "image": image,
            "imageID": f"test://{image}" if self.container_id else "",
            "containerID": self.container_id,
        }


def records_of(spec: Object) -> list[Record]:
    """Returns a record per container, in the order of their start, in the state before anything has happened."""
    waiting = {"waiting": {"reason": "PodInitializing" if spec.get("initContainers") else "ContainerCreating"}}
    inits = [
        Record(each, "sidecar" if each.get("restartPolicy") == "Always" else "init", dict(waiting))
        for each in spec.get("initContainers") or []
    ]
    return inits + [Record(each, "main", dict(waiting)) for each in spec["containers"]]


def settle(records: list[Record], known: Object) -> None:
    """Sets an end for containers that have none, as a kubelet does in its last report (`TerminatePod` in status_manager.go).

    These are main containers if the pod was initialized, and init containers that were started. `known` is the API server's
    status of the pod at the last change that the kubelet received, such as its deletion. Later changes do not count. So of two
    pods whose container never started, one may report `waiting` and the other `terminated`.
    """
    mains, inits = [each for each in records if each.kind == "main"], [each for each in records if each.kind != "main"]
    begun = [n for n, each in enumerate(inits) if "waiting" not in each.state or each.last]
    for each in inits[: max(begun, default=0) + 1] + (mains if was_initialized(inits, known) else []):
        if each.exit_code is None:
            each.state = {"terminated": dict(LOST)}


def was_initialized(inits: list[Record], known: Object) -> bool:
    """Returns whether the pod was initialized, like `hasPodInitialized` of a real kubelet."""
    if not inits:
        return True
    if any("terminated" in each["lastState"] or "waiting" not in each["state"] for each in known.get("containerStatuses") or []):
        return True
    last = (known.get("initContainerStatuses") or [{"state": {}, "lastState": {}}])[-1]
    if inits[-1].kind == "sidecar":
        return "running" in last["state"] and bool(last.get("started"))
    return any(each.get("terminated", {}).get("exitCode") == 0 for each in (last["state"], last["lastState"]))


def phase_of(records: list[Record], over: bool) -> str:
    """Returns the phase. `over` means that nothing runs and nothing will be started; before that, no phase is final."""
    mains = [each for each in records if each.kind == "main"]
    if over:
        return "Succeeded" if all(each.exit_code == 0 for each in mains) else "Failed"
    if any("waiting" in each.state and not each.last for each in mains):
        return "Pending"
    return "Running"


@dataclass
class PodStatus:
    """Computes the status of one pod from its records. It stores when each condition last changed."""

    records: list[Record]
    address: str
    start_time: str = field(default_factory=now)
    over: bool = False
    reason: str | None = None
    message: str | None = None
    _conditions: dict[str, Object] = field(default_factory=dict)

    def as_object(self) -> Object:
        phase = phase_of(self.records, self.over) if self.reason is None else "Failed"
        return {
            "phase": phase,
            "reason": self.reason,
            "message": self.message,
            "startTime": self.start_time,
            "hostIP": "127.0.0.1",
            "hostIPs": [{"ip": "127.0.0.1"}],
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [self._condition(kind, phase) for kind in CONDITIONS],
            "initContainerStatuses": [each.as_object() for each in self.records if each.kind != "main"],
            "containerStatuses": [each.as_object() for each in self.records if each.kind == "main"],
        }

    def _condition(self, kind: str, phase: str) -> Object:
        problem = self._problem(kind, phase)
        status = "False" if problem and not (kind == "Initialized" and phase == "Succeeded") else "True"
        condition = {
            "type": kind,
            "status": status,
            "reason": problem[0] if problem else None,
            "message": problem[1] if problem else None,
        }
        before = self._conditions.get(kind)
        same = before is not None and before["status"] == status
        condition["lastTransitionTime"] = before["lastTransitionTime"] if same and before else now()
        self._conditions[kind] = condition
        return condition

    def _problem(self, kind: str, phase: str) -> tuple[str, str] | None:
        """Returns reason and message of a condition that does not hold, otherwise None."""
        if kind == "PodReadyToStartContainers":
            return None
        inits = [each for each in self.records if each.kind != "main"]
        if kind == "Initialized":
            lacking = [each.name for each in inits if not each.initialized]
            if phase == "Succeeded":
                return ("PodCompleted", "")
            if not lacking or phase == "Running":
                return None
            return ("ContainersNotInitialized", f"containers with incomplete status: [{' '.join(lacking)}]")
        if phase in ("Succeeded", "Failed"):
            return ("PodCompleted" if phase == "Succeeded" else "PodFailed", "")
        unready = [each.name for each in self.records if each.kind != "init" and not each.ready]
        return ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]") if unready else None
