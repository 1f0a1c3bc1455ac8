"""Reads the marks on a pod that show its holder, and acts like other programs: writes marks, evicts, deletes by force."""

from typing import Any

from kube_fleet import KubeFleet

from holdfast.kubernetes import names
from holdfast_testcluster.access import MERGE, Access

HELD = (names.BUSY, names.OWNER, names.CLAIM, names.FENCE)


def marks(pod: dict[str, Any] | None) -> dict[str, str | None]:
    """Returns everything on a pod that shows whether it is held, and for which claim."""
    assert pod is not None, "the pod is gone"
    labels, annotations = pod["metadata"].get("labels", {}), pod["metadata"].get("annotations", {})
    shown = {key: labels.get(key) for key in HELD}
    return shown | {key: annotations.get(key) for key in (names.DO_NOT_DISRUPT, names.SAFE_TO_EVICT)}


def busy_marks(claim: dict[str, Any]) -> dict[str, str | None]:
    labels = {names.BUSY: "true", names.OWNER: claim["tenant"], names.CLAIM: claim["id"], names.FENCE: str(claim["fence"])}
    return labels | {names.DO_NOT_DISRUPT: "true", names.SAFE_TO_EVICT: "false"}


FREE_MARKS: dict[str, str | None] = dict.fromkeys(HELD) | {names.DO_NOT_DISRUPT: None, names.SAFE_TO_EVICT: "true"}


def write(fleet: KubeFleet, pod: str, marks: dict[str, str | None]) -> None:
    """Writes marks onto a pod, as another program or a replica that has died since would have written them."""
    labels = {key: value for key, value in marks.items() if key in HELD}
    annotations = {key: value for key, value in marks.items() if key not in HELD}
    body = {"metadata": {"labels": labels, "annotations": annotations}}
    fleet.access.ask("PATCH", f"{fleet.pods_path}/{pod}", body, MERGE)


def evict(fleet: KubeFleet, pod: str) -> int:
    """Evicts a pod as `kubectl drain` and autoscalers do. Returns the status of the answer."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": fleet.namespace}}
    return fleet.access.request("POST", f"{fleet.pods_path}/{pod}/eviction", body).status


def force_delete(fleet: KubeFleet, pod: str) -> None:
    """Deletes a pod as an operator does when its node is dead. It does not wait, because a finalizer may keep the object."""
    fleet.access.kubectl("delete", "pod", pod, "-n", fleet.namespace, "--force", "--grace-period=0", "--wait=false")


def pod_patches(access: Access) -> float:
    """Returns how many patches of pods (without their status) the API server has counted."""
    text = access.request("GET", "/metrics").body
    mine = ('resource="pods"', 'verb="PATCH"', 'subresource=""')
    lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total") and all(m in line for m in mine)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
