"""P8 if only the last status of a node is known: a job that provably never started is served again, and no other runs twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet_probes import begins_unseen, judged
from kube_fleet import KubeFleet, Made
from pool_specs import Gate, jobs

from cluster_pods import state
from holdfast.kubernetes import names
from holdfast_testcluster.access import Access
from holdfast_testcluster.control_plane import ControlPlane
from waiting import eventually

Make = Callable[..., Any]


def start_blocked(**spec: Any) -> dict[str, Any]:
    """Returns a pool whose container cannot start before a ConfigMap exists. Its jobs are acknowledged but not started."""
    pool = jobs(**spec)
    needs = {"name": "GO", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "go"}}}
    pool["pod"]["spec"]["containers"][0]["env"] = [needs]
    return pool


def let_go(access: Access, namespace: str) -> None:
    body = {"metadata": {"name": "later"}, "data": {"go": "now"}}
    access.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)


def take_away(fleet: KubeFleet, worker: str) -> None:
    """Deletes a pod as a drain does. A pod that is not running yet passes every budget."""
    fleet.access.kubectl("delete", "pod", worker, "-n", fleet.namespace, "--wait=false")


def container_status(fleet: KubeFleet, worker: str, container: str) -> dict[str, Any]:
    pod = fleet.pod(worker)
    assert pod is not None
    return state(pod, container)


def test_a_claim_whose_container_provably_never_started_is_served_again(fleet_of: Made, tmp_path: Path) -> None:
    """The pod is deleted before the API server knew that the agent had left. Then the last status proves that nothing started."""
    fleet, gate = fleet_of(pools={"linux": start_blocked(warm=1)}), Gate(tmp_path)
    fleet.warm(1, within=90)
    fleet.kubelet.pause()
    claim = fleet.claim("linux", command=gate.job(3), wait="30s")
    assert claim["state"] == "active", fleet.last_log()
    assert "running" in container_status(fleet, claim["worker"], names.AGENT)
    take_away(fleet, claim["worker"])
    fleet.kubelet.resume()
    eventually(lambda: fleet.see(claim["id"])["worker"] not in (None, claim["worker"]), 60, "it has another worker")
    let_go(fleet.access, fleet.namespace)
    eventually(lambda: gate.ran == 1, 60, "it runs")
    gate.open()
    ended = fleet.see(claim["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], gate.ran) == ("failed", 3, 1), fleet.last_log()


def test_a_claim_whose_container_cannot_be_proved_unstarted_is_lost_or_retried_if_it_asked_for_it(
    fleet_of: Made, tmp_path: Path
) -> None:
    """The pod is deleted after its agent had left. Then its status is that of a container that the kubelet forgot."""
    fleet = fleet_of(pools={"linux": start_blocked(warm=2)})
    once, again = Gate(tmp_path, "once"), Gate(tmp_path, "again")
    fleet.warm(2, within=90)
    claims = [fleet.claim("linux", command=once.job(), wait="30s")]
    claims.append(fleet.claim("linux", command=again.job(3), retry="lost", wait="30s"))
    for claim in claims:
        assert claim["state"] == "active", fleet.last_log()
        eventually(
            lambda claim=claim: "terminated" in container_status(fleet, claim["worker"], names.AGENT), 30, "its agent has left"
        )
        take_away(fleet, claim["worker"])
    lost = fleet.see(claims[0]["id"], wait="60s")
    assert (lost["outcome"], lost["exit_code"]) == ("lost", None), fleet.last_log()
    let_go(fleet.access, fleet.namespace)
    eventually(lambda: again.ran == 1, 90, "what asked for it is served again")
    again.open()
    ended = fleet.see(claims[1]["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], ended["attempts"]) == ("failed", 3, 2), fleet.last_log()
    assert (once.ran, again.ran) == (0, 1)


def test_a_job_that_began_unseen_is_not_run_again_when_its_node_comes_back(
    own_control_plane: ControlPlane, make_namespace: Make, make_nodes: Make, tmp_path: Path
) -> None:
    """The node could not report that the container started, and crashed. After a reboot it knows the start, not the end."""
    plane, namespace = own_control_plane, make_namespace(own_control_plane)
    kubelet, gate = make_nodes(plane, namespace), Gate(tmp_path)
    with KubeFleet(plane, namespace, kubelet, pools={"linux": jobs(warm=1)}) as fleet:
        fleet.warm(1, within=90)
        claim = begins_unseen(plane, fleet, gate)
        kubelet.kill()
        plane.start_apiserver()
        kubelet.start()
        after = judged(fleet, claim["id"])
        assert (after["outcome"], after["exit_code"], after["attempts"], gate.ran) == ("lost", None, 1, 1), fleet.last_log()
