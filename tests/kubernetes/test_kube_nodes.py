"""Nodes are cordoned, tainted, drained and die while a fleet works on them (seed 004)."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet_probes import begins_unseen, judged, nodes_of_free, quiet
from kube_fleet import KubeFleet
from pod_marks import force_delete
from pool_specs import Gate, jobs

from holdfast_testcluster import binaries
from holdfast_testcluster.access import Access
from holdfast_testcluster.control_plane import ControlPlane
from waiting import always, eventually

Make = Callable[..., Any]
KARPENTER = "karpenter.sh/disrupted:NoSchedule"


def test_a_cordoned_node_empties_itself_and_a_drain_ends_when_its_jobs_have(
    control_plane: Access, namespace: str, make_nodes: Make, tmp_path: Path
) -> None:
    kubelet = make_nodes(control_plane, namespace, nodes=2)
    with KubeFleet(control_plane, namespace, kubelet, pools={"linux": jobs(warm=4, max=16)}) as fleet:
        fleet.warm(4, within=90)
        busy = _held(fleet, Gate(tmp_path, "cordon"), 5)
        node = busy["node"]
        eventually(lambda: set(nodes_of_free(fleet)) == set(kubelet.nodes), 60, "free workers on both nodes")
        control_plane.kubectl("cordon", node)
        _emptied(fleet, node)
        _finishes(fleet, busy, 5)
        control_plane.kubectl("uncordon", node)

        other = next(each for each in kubelet.nodes if each != node)
        control_plane.kubectl("taint", "node", other, KARPENTER)
        _emptied(fleet, other)
        control_plane.kubectl("taint", "node", other, KARPENTER + "-")

        _drained(fleet, tmp_path)
        fleet.check_promises()
        quiet(fleet)


def _held(fleet: KubeFleet, gate: Gate, code: int) -> dict[str, Any]:
    claim = fleet.claim("linux", command=gate.job(code), wait="60s")
    eventually(lambda: gate.ran == 1, 30, "it runs")
    pod = fleet.pod(claim["worker"])
    assert pod is not None
    return {**claim, "node": pod["spec"]["nodeName"], "gate": gate}


def _finishes(fleet: KubeFleet, busy: dict[str, Any], code: int) -> None:
    assert fleet.see(busy["id"])["state"] == "active", "it was not touched"
    busy["gate"].open()
    ended = fleet.see(busy["id"], wait="30s")
    assert (ended["outcome"], ended["exit_code"], ended["attempts"]) == ("failed", code, 1), fleet.last_log()
    assert busy["gate"].ran == 1


def _emptied(fleet: KubeFleet, node: str) -> None:
    """Checks that its free workers are replaced on other nodes, and that it gets no new claim."""
    eventually(lambda: len(free := nodes_of_free(fleet)) >= 4 and node not in free, 60, f"no free worker on {node}, 4 elsewhere")
    for n in range(3):
        claim = fleet.claim("linux", command=["true"], wait="60s", replica=n % 2)
        pod = fleet.pod(claim["worker"])
        assert pod is not None
        assert pod["spec"]["nodeName"] != node
        assert fleet.see(claim["id"], wait="60s")["outcome"] == "completed"


def _drained(fleet: KubeFleet, folder: Path) -> None:
    eventually(lambda: len(nodes_of_free(fleet)) >= 4, 60, "refilled")
    held = [_held(fleet, Gate(folder, f"drain-{n}"), 10 + n) for n in range(3)]
    node = max({each["node"] for each in held}, key=lambda name: sum(each["node"] == name for each in held))
    here = [each for each in held if each["node"] == node]
    command = [str(binaries.path("kubectl")), "drain", node, "--delete-emptydir-data", "--timeout=120s"]
    drain = subprocess.Popen(command, env=fleet.access.kubectl_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: len(free := nodes_of_free(fleet)) >= 4 and node not in free, 60, "free workers left, others came")
        always(lambda: drain.poll() is None and all(fleet.see(each["id"])["state"] == "active" for each in here), 3, "it waits")
        for each in held:
            _finishes(fleet, each, 10 + held.index(each))
        out, _ = drain.communicate(timeout=120)
        assert drain.returncode == 0, out.decode()
    finally:
        drain.kill()
        drain.wait()
    assert node not in [pod["spec"].get("nodeName") for pod in fleet.pods()], "nothing of ours is left there"
    fleet.access.kubectl("uncordon", node)


def test_what_a_node_kills_is_lost_or_with_retry_served_again(
    control_plane: Access, namespace: str, make_nodes: Make, tmp_path: Path
) -> None:
    kubelet = make_nodes(control_plane, namespace, nodes=2)
    once, again, never = (Gate(tmp_path, name) for name in ("once", "again", "never"))
    with KubeFleet(control_plane, namespace, kubelet, pools={"linux": jobs(warm=3)}) as fleet:
        fleet.warm(3, within=90)
        lost = fleet.claim("linux", command=once.job(), wait="30s")
        retried = fleet.claim("linux", command=again.job(3), retry="lost", wait="30s")
        eventually(lambda: once.ran == again.ran == 1, 30, "both run")
        kubelet.pause()  # the job is acknowledged, but its container never starts
        begun = fleet.claim("linux", command=never.job(2), wait="30s")
        assert begun["state"] == "active", fleet.last_log()
        kubelet.kill()
        kubelet.start()  # the nodes return and report how their containers ended
        ended = fleet.see(lost["id"], wait="60s")
        assert (ended["outcome"], ended["exit_code"]) == ("lost", None), fleet.last_log()
        eventually(lambda: again.ran == 2 and never.ran == 1, 60, "served again")
        for gate in (again, never):
            gate.open()
        second = fleet.see(retried["id"], wait="30s")
        assert (second["outcome"], second["exit_code"], second["attempts"]) == ("failed", 3, 2), fleet.last_log()
        first = fleet.see(begun["id"], wait="30s")
        assert (first["outcome"], first["exit_code"]) == ("failed", 2), fleet.last_log()
        assert (once.ran, again.ran, never.ran) == (1, 2, 1)
        fleet.warm(3, within=90)


def test_what_the_scheduler_preempts_is_lost_and_not_a_result(
    control_plane: Access, namespace: str, make_nodes: Make, tmp_path: Path
) -> None:
    """A pod with a higher priority takes its place. No protection prevents that, and the exit code is not the job's own."""
    kubelet, gate = make_nodes(control_plane, namespace, options=("--capacity", "pods=1")), Gate(tmp_path)
    urgent = f"urgent-{namespace}"
    control_plane.kubectl("create", "priorityclass", urgent, "--value=1000")
    try:
        with KubeFleet(control_plane, namespace, kubelet, pools={"linux": jobs(warm=1, max=1, drain={"grace": "2s"})}) as fleet:
            claim = fleet.claim("linux", command=gate.job(), wait="60s")
            eventually(lambda: gate.ran == 1, 60, "it runs")
            container = {"name": "main", "image": "urgent:test", "command": ["true"]}
            spec = {"priorityClassName": urgent, "containers": [container], "restartPolicy": "Never"}
            control_plane.ask("POST", fleet.pods_path, {"metadata": {"name": "urgent"}, "spec": spec})
            ended = fleet.see(claim["id"], wait="60s")
            assert (ended["outcome"], ended["exit_code"]) == ("lost", None), fleet.last_log()
            assert gate.ran == 1
            quiet(fleet)
    finally:
        control_plane.kubectl("delete", "priorityclass", urgent)


def test_a_job_that_began_unseen_is_not_run_again_after_a_forced_deletion(
    own_control_plane: ControlPlane, make_namespace: Make, make_nodes: Make, tmp_path: Path
) -> None:
    """P8: the node could not report that the container started, and was then cut off. Nothing proves that it did not run."""
    plane, namespace = own_control_plane, make_namespace(own_control_plane)
    kubelet, gate = make_nodes(plane, namespace), Gate(tmp_path)
    with KubeFleet(plane, namespace, kubelet, pools={"linux": jobs(warm=2)}) as fleet:
        fleet.warm(2, within=90)
        claim = begins_unseen(plane, fleet, gate)
        kubelet.pause()
        plane.start_apiserver()
        force_delete(fleet, claim["worker"])
        try:
            after = judged(fleet, claim["id"])
            assert (after["outcome"], after["attempts"], gate.ran) == ("lost", 1, 1), fleet.last_log()
        finally:
            kubelet.resume()
