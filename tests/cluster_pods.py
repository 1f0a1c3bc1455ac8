"""Creates pods for tests in one line, and waits until their status meets a condition."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast_testcluster.access import Access
from holdfast_testcluster.kubelet_process import KubeletProcess
from holdfast_testcluster.status import Object
from waiting import eventually

STAY = "trap 'exit 0' TERM; while true; do sleep 0.05; done"  # PID 1 receives only the signals that it has a trap for
DEAF = "trap '' TERM; while true; do sleep 0.05; done"
SIDECAR: dict[str, Any] = {"restartPolicy": "Always"}  # field of an init container
VOLUME: dict[str, Any] = {"volumes": [{"name": "shared", "emptyDir": {}}]}  # field of a pod
SHARED: dict[str, Any] = {"volumeMounts": [{"name": "shared", "mountPath": "/run/shared"}]}  # field of a container


def container(name: str, script: str = "", **more: Any) -> Object:
    """Returns a container that runs a shell script, or the command of its image if there is no script."""
    command = {"command": ["sh", "-c", script]} if script else {}
    return {"name": name, "image": "busybox:test", **command, **more}


class Pods:
    """The pods of one namespace."""

    def __init__(self, access: Access, namespace: str) -> None:
        self.access, self.namespace = access, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, name: str, *containers: Object, labels: dict[str, str] | None = None, **spec: Any) -> str:
        """Creates a pod and returns its UID. By default containers are not restarted, and the pod gets 5 s to end."""
        whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": list(containers), **spec}
        # Every pod runs as the default service account, which a controller creates shortly after the namespace.
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
        """Returns the pod as soon as the check holds."""

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
    """Returns the whole status of one container, or an empty object before it has a status."""
    every = (pod["status"].get("initContainerStatuses") or []) + (pod["status"].get("containerStatuses") or [])
    return next((each for each in every if each["name"] == container), {})


def state(pod: Object, container: str) -> Object:
    """Returns the state of a container, for example `{"running": …}`."""
    state: Object = container_status(pod, container).get("state", {})
    return state


def condition(pod: Object, kind: str) -> str | None:
    return next((each["status"] for each in pod["status"].get("conditions", []) if each["type"] == kind), None)


def exit_code(pod: Object, container: str) -> int:
    code: int = state(pod, container)["terminated"]["exitCode"]
    return code


def running(pods: Pods, nodes: KubeletProcess, name: str, uid: str, which: str = "main") -> int:
    """Returns the PID of a container as soon as the pod's status shows that the container runs."""
    pods.until(name, lambda pod: "running" in state(pod, which))
    pid = nodes.pid(uid, which)
    assert pid
    assert lives(pid)
    return pid


def lives(pid: int) -> bool:
    """Returns whether the process is alive. A zombie is not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
