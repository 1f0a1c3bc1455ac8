"""One write stamps and protects a worker, and an API server that does not answer delays no claim (seed 002)."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet_probes import metric, worker
from kube_fleet import KubeFleet
from pod_marks import busy_marks, marks, pod_patches
from pool_specs import Gate, jobs

from holdfast.kubernetes import names
from holdfast_testcluster.control_plane import ControlPlane
from waiting import Deadline, eventually

Make = Callable[..., Any]
A_FEW_SECONDS = 10  # three tries of one second each, on a busy machine


def test_one_write_protects_and_an_api_server_that_does_not_answer_delays_no_other_claim(
    own_control_plane: ControlPlane, make_namespace: Make, make_nodes: Make, tmp_path: Path
) -> None:
    plane, namespace = own_control_plane, make_namespace(own_control_plane)
    gate = Gate(tmp_path)
    pools = {"linux": jobs(warm=3), "strict": jobs(warm=1, protection={"required": True})}
    with KubeFleet(plane, namespace, make_nodes(plane, namespace), pools=pools) as fleet:
        fleet.warm(4, within=90)
        _one_write_for_each_claim(plane, fleet, gate)
        fleet.warm(4, within=90)
        _told_when_it_could_not_be_protected(plane, fleet, gate)
        _refused_where_protection_is_required(plane, fleet)
        gate.open()


def _one_write_for_each_claim(plane: ControlPlane, fleet: KubeFleet, gate: Gate) -> None:
    """Seed 000: labels and annotations are in one patch, and are on the pod when its holder is informed."""
    before = pod_patches(plane)
    held = [fleet.claim("linux", tenant="acme", command=gate.job(), wait="30s", replica=n % 2) for n in range(3)]
    for claim in held:
        assert (claim["state"], claim["protected"]) == ("active", True), fleet.last_log()
        pod = fleet.pod(claim["worker"])
        assert marks(pod) == busy_marks(claim)
        assert pod is not None
        assert float(pod["metadata"]["annotations"][names.STAMPED_AT]) <= time.time()
        assert not pod["metadata"].get("managedFields"), "a third of the pod's size, and of the patch's time"
    eventually(lambda: gate.ran == 3, 30, "they run")
    assert pod_patches(plane) - before == len(held), "one write for each claim"


def _told_when_it_could_not_be_protected(plane: ControlPlane, fleet: KubeFleet, gate: Gate) -> None:
    """Seed 002: after three tries the job runs unprotected, and its holder, the event log and the metrics show it."""
    unprotected = metric(fleet, 'holdfast_handover_unprotected_total{pool="linux"}')
    plane.pause_apiserver()
    try:
        deadline = Deadline(A_FEW_SECONDS)
        claim = fleet.claim("linux", command=gate.job(), wait="30s")
        assert not deadline.over()
        assert (claim["state"], claim["protected"]) == ("active", False), fleet.last_log()
        events = fleet.api("GET", f"/v1/events?claim={claim['id']}").json["items"]
        assert "claim.unprotected" in [event["kind"] for event in events]
        assert metric(fleet, 'holdfast_handover_unprotected_total{pool="linux"}') == unprotected + 1
    finally:
        plane.resume_apiserver()
    eventually(lambda: marks(fleet.pod(claim["worker"])) == busy_marks(claim), 15, "the protection is repaired")
    assert fleet.see(claim["id"])["state"] == "active"
    eventually(lambda: gate.ran == 4, 15, "its command runs, once")


def _refused_where_protection_is_required(plane: ControlPlane, fleet: KubeFleet) -> None:
    free = next(each["id"] for each in fleet.workers("warm") if each["pool"] == "strict")
    plane.stop_apiserver()
    try:
        deadline = Deadline(A_FEW_SECONDS)
        refused = fleet.claim("strict", command=["true"], wait="30s")
        assert not deadline.over()
        assert (refused["state"], refused["outcome"]) == ("ended", "refused"), fleet.last_log()
        assert "protection" in refused["reason"]
        assert (worker(fleet, free)["state"], worker(fleet, free)["claim"]) == ("warm", None), "nothing was delivered to it"
    finally:
        plane.start_apiserver()
    ended = fleet.see(fleet.claim("strict", command=["true"])["id"], wait="60s")
    assert (ended["outcome"], ended["protected"], ended["worker"]) == ("completed", True, free), fleet.last_log()
