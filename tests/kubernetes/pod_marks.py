"""What a pod shows of its holder, and what others than Holdfast do to it: write marks, evict it, delete it by force."""

from typing import Any

from kube_fleet import KubeFleet

from holdfast.kubernetes import names
from holdfast_testcluster.access import MERGE, Access

HELD = (names.BUSY, names.OWNER, names.CLAIM, names.FENCE)


def marks(pod: dict[str, Any] | None) -> dict[str, str | None]:
    """Everything on a pod that says whether it is held, and by whom."""
    assert pod is not None, "the pod is gone"
    labels, annotations = pod["metadata"].get("labels", {}), pod["metadata"].get("annotations", {})
    shown = {key: labels.get(key) for key in HELD}
    return shown | {key: annotations.get(key) for key in (names.DO_NOT_DISRUPT, names.SAFE_TO_EVICT)}


def busy_marks(claim: dict[str, Any]) -> dict[str, str | None]:
    labels = {names.BUSY: "true", names.OWNER: claim["tenant"], names.CLAIM: claim["id"], names.FENCE: str(claim["fence"])}
    return labels | {names.DO_NOT_DISRUPT: "true", names.SAFE_TO_EVICT: "false"}


FREE_MARKS: dict[str, str | None] = dict.fromkeys(HELD) | {names.DO_NOT_DISRUPT: None, names.SAFE_TO_EVICT: "true"}


def write(fleet: KubeFleet, pod: str, marks: dict[str, str | None]) -> None:
    """Onto a pod, as somebody else than a living replica does it."""
    labels = {key: value for key, value in marks.items() if key in HELD}
    annotations = {key: value for key, value in marks.items() if key not in HELD}
    body = {"metadata": {"labels": labels, "annotations": annotations}}
    fleet.access.ask("PATCH", f"{fleet.pods_path}/{pod}", body, MERGE)


def evict(fleet: KubeFleet, pod: str) -> int:
    """As `kubectl drain` and autoscalers do; the status of the answer."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": fleet.namespace}}
    return fleet.access.request("POST", f"{fleet.pods_path}/{pod}/eviction", body).status


def force_delete(fleet: KubeFleet, pod: str) -> None:
    """What an operator does when a node is dead. It waits for nothing: a finalizer may hold the object."""
    fleet.access.kubectl("delete", "pod", pod, "-n", fleet.namespace, "--force", "--grace-period=0", "--wait=false")


def pod_patches(access: Access) -> float:
    """How often the API server was asked to patch a pod (its status apart), by its own count."""
    text = access.request("GET", "/metrics").body
    mine = ('resource="pods"', 'verb="PATCH"', 'subresource=""')
    lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total") and all(m in line for m in mine)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
