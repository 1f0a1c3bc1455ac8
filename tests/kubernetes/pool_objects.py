"""WorkerPool objects of a fleet, and a busy worker that must finish although they change."""

import json
from typing import Any

from kube_fleet import KubeFleet

from waiting import eventually

GROUP = "/apis/holdfast.dev/v1alpha1"
LONG = ["sh", "-c", "while test ! -e $STOP; do sleep 0.1; done; exit 7"]


def declare(fleet: KubeFleet, name: str, spec: dict[str, Any]) -> None:
    body = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": name, "namespace": fleet.namespace, "labels": {"holdfast.dev/install": fleet.install}},
        "spec": spec,
    }
    fleet.access.kubectl("apply", "-f", "-", input=json.dumps(body))


def declared(fleet: KubeFleet, name: str) -> dict[str, Any] | None:
    answer = fleet.access.request("GET", f"{GROUP}/namespaces/{fleet.namespace}/workerpools/{name}")
    return dict(answer.body) if answer.status == 200 else None


def ready(fleet: KubeFleet, name: str) -> dict[str, Any]:
    def look() -> Any:
        found = declared(fleet, name) or {}
        conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", [])}
        return found if conditions.get("Ready", {}).get("reason") == "WarmTargetMet" else None

    return dict(eventually(look, 90, f"{name} is ready"))


def busy(fleet: KubeFleet, pool: str) -> dict[str, Any]:
    held = fleet.claim(pool, command=LONG, env={"STOP": str(fleet.home / "stop")}, wait="60s")
    assert held["state"] == "active", fleet.last_log()
    return held


def uid(fleet: KubeFleet, worker: str) -> str:
    pod = fleet.pod(worker)
    assert pod is not None
    return str(pod["metadata"]["uid"])


def finishes(fleet: KubeFleet, held: dict[str, Any], pod_uid: str) -> None:
    """Fails unless the claim completes on the same pod, with its own exit code."""
    pod = fleet.pod(held["worker"])
    assert pod is not None
    assert pod["metadata"]["uid"] == pod_uid
    assert "deletionTimestamp" not in pod["metadata"], "the pod must not be deleted"
    (fleet.home / "stop").touch()
    ended = fleet.see(held["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 7), fleet.last_log()
