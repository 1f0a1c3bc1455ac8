"""Pods for tests: made in one line, and waited for by what they say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast_testcluster.access import Access
from holdfast_testcluster.kubelet_process import KubeletProcess
from holdfast_testcluster.status import Object
from waiting import eventually

STAY = "trap 'exit 0' TERM; while true; do sleep 0.05; done"  # PID 1 hears only what it has a trap for
DEAF = "trap '' TERM; while true; do sleep 0.05; done"
SIDECAR: dict[str, Any] = {"restartPolicy": "Always"}  # of an init container
VOLUME: dict[str, Any] = {"volumes": [{"name": "shared", "emptyDir": {}}]}  # of a pod
SHARED: dict[str, Any] = {"volumeMounts": [{"name": "shared", "mountPath": "/run/shared"}]}  # of a container


def container(name: str, script: str = "", **more: Any) -> Object:
    """One that runs a shell script; without a script it is what its image says."""
    command = {"command": ["sh", "-c", script]} if script else {}
    return {"name": name, "image": "busybox:test", **command, **more}


class Pods:
    """The pods of one namespace."""

    def __init__(self, access: Access, namespace: str) -> None:
        self.access, self.namespace = access, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, name: str, *containers: Object, labels: dict[str, str] | None = None, **spec: Any) -> str:
        """Its UID. Nothing is restarted, and it is given 5 s to end, unless the spec says otherwise."""
        whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": list(containers), **spec}
        # The account that every pod runs as is made a moment after its namespace.
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
        eventually(lambda: self.access.request("GET", account).status == 200, what="the default service account")
        pod = self.access.ask("POST", self.path, {"metadata": {"name": name, "labels": labels or {}}, "spec": whole})
        uid: str = pod["metadata"]["uid"]
        return uid

    def get(self, name: str) -> Object | None:
        answer = self.access.request("GET", f"{self.path}/{name}")
        assert answer.status in (200, 404), answer
        return answer.body if answer.status == 200 else None

    def until(self, name: str, check: Callable[[Object], object], within: float = 20) -> Object:
        """The pod, as soon as the check holds."""

        def look() -> Object:
            pod = self.get(name)
            assert pod, "no such pod"
            assert check(pod), pod["status"]
            return pod

        return eventually(look, within, f"what was expected of pod {name}")

    def until_phase(self, name: str, phase: str, within: float = 20) -> Object:
        return self.until(name, lambda pod: pod["status"].get("phase") == phase, within)

    def until_gone(self, name: str, within: float = 20) -> None:
        eventually(lambda: self.get(name) is None, within, f"end of pod {name}")

    def delete(self, name: str, grace: int | None = None) -> None:
        self.access.ask("DELETE", f"{self.path}/{name}", {} if grace is None else {"gracePeriodSeconds": grace})


def container_status(pod: Object, container: str) -> Object:
    """The whole status of one container; empty before there is one."""
    every = (pod["status"].get("initContainerStatuses") or []) + (pod["status"].get("containerStatuses") or [])
    return next((each for each in every if each["name"] == container), {})


def state(pod: Object, container: str) -> Object:
    """`{"running": …}` and so on."""
    state: Object = container_status(pod, container).get("state", {})
    return state


def condition(pod: Object, kind: str) -> str | None:
    return next((each["status"] for each in pod["status"].get("conditions", []) if each["type"] == kind), None)


def exit_code(pod: Object, container: str) -> int:
    code: int = state(pod, container)["terminated"]["exitCode"]
    return code


def running(pods: Pods, nodes: KubeletProcess, name: str, uid: str, which: str = "main") -> int:
    """The PID of a container, once it says that it runs."""
    pods.until(name, lambda pod: "running" in state(pod, which))
    pid = nodes.pid(uid, which)
    assert pid
    assert lives(pid)
    return pid


def lives(pid: int) -> bool:
    """A zombie does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
