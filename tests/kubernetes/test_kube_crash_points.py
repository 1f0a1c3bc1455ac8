"""A replica is killed between two steps of a hand-over, an end or a spawn. The claim is served, and nothing leaks (seed 000)."""

import contextlib
import http.client
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet_probes import quiet, stopped
from kube_fleet import KubeFleet
from pod_marks import FREE_MARKS, busy_marks, marks
from pool_specs import Gate, jobs

from holdfast.kubernetes import names
from holdfast_testcluster.access import Access
from waiting import eventually

Make = Callable[..., Any]
WARM = 2


def test_a_replica_killed_in_the_middle_of_a_hand_over_costs_the_claim_nothing(
    control_plane: Access, namespace: str, make_nodes: Make, tmp_path: Path
) -> None:
    with KubeFleet(control_plane, namespace, make_nodes(control_plane, namespace), pools={"linux": jobs(warm=WARM)}) as fleet:
        for point in ("handover.protected", "handover.offered"):
            gate = Gate(tmp_path, point)
            fleet.warm(WARM, within=90)
            _restart(fleet, 0, HOLDFAST_CRASH_AT=point)
            request = {"pool": "linux", "tenant": "acme", "key": point, "command": gate.job(6), "wait": "20s"}
            with stopped(fleet, 1):  # so that the other replica does nothing in between
                with contextlib.suppress(OSError, http.client.HTTPException):
                    fleet.api("POST", "/v1/claims", request)
                assert fleet.replicas[0].wait(300) == -signal.SIGKILL
                row = fleet.sql("SELECT * FROM holdfast.claim WHERE key = $1", point)[0]
                # P3: the pod has all marks, before the agent or the holder gets anything.
                assert marks(fleet.pod(row["worker_id"])) == busy_marks(row)
                assert (row["state"], row["offered"], gate.ran) == ("assigned", point == "handover.offered", 0)
            answered = fleet.api("POST", "/v1/claims", {**request, "wait": "40s"}, replica=1).json
            assert (answered["id"], answered["state"], answered["worker"]) == (row["id"], "active", row["worker_id"]), (
                "the same worker"
            )
            gate.open()
            ended = fleet.see(answered["id"], wait="60s", replica=1)
            assert (ended["outcome"], ended["exit_code"], gate.ran) == ("failed", 6, 1), fleet.last_log()
            _restart(fleet, 0)
            eventually(lambda: _settled(fleet), 60, f"nothing is left after {point}")
        fleet.check_promises()
        quiet(fleet)


def test_a_replica_killed_while_it_ends_or_makes_a_worker_leaks_nothing(
    control_plane: Access, namespace: str, make_nodes: Make, tmp_path: Path
) -> None:
    kubelet = make_nodes(control_plane, namespace)
    with KubeFleet(control_plane, namespace, kubelet, pools={"linux": jobs(warm=WARM)}) as fleet:
        for point in ("condemn.stored", "delete.sent", "spawn.rows", "spawn.created"):
            free = fleet.warm(WARM, within=90)[0]["id"]
            crashed = tmp_path / point
            # The replica that holds the duty dies, and the other lives.
            _restart(fleet, 0, 1, HOLDFAST_CRASH_AT=point, HOLDFAST_CRASH_AT_ONCE=str(crashed))
            if point == "condemn.stored":
                control_plane.kubectl("delete", "pod", free, "-n", namespace, "--wait=false")
            elif point == "delete.sent":
                kubelet.pause()  # otherwise its agent would have exited by then
                assert fleet.api("POST", f"/v1/workers/{free}/retire", {"reason": "test"}).status == 200
            else:
                fleet.claim("linux", command=["true"], wait="0s")  # takes a worker, so that another is spawned
            eventually(crashed.exists, 40, f"a replica dies at {point}")
            kubelet.resume()
            dead = eventually(lambda: [n for n, each in fleet.replicas.items() if each.poll() is not None], 20, "it is dead")
            assert [fleet.replicas[n].returncode for n in dead] == [-signal.SIGKILL], fleet.last_log()
            eventually(lambda: _settled(fleet), 60, f"nothing is left after {point}")
            _restart(fleet, dead[0])
        fleet.check_promises()
        quiet(fleet)


def _restart(fleet: KubeFleet, *which: int, **env: str) -> None:
    for n in which:
        fleet.kill(n)
        fleet.start(n, **env)
    for n in which:
        eventually(lambda n=n: fleet.api("GET", "/readyz", replica=n).status == 200, 40, f"replica {n} is ready")


def _settled(fleet: KubeFleet) -> bool:
    """Returns whether pods and rows match, all workers are warm, none is held, and no free pod has the marks of a holder."""
    rows = fleet.sql("SELECT id, state, ready, pod_uid FROM holdfast.worker WHERE state <> 'gone'")
    assert [(row["state"], row["ready"]) for row in rows] == [("warm", True)] * WARM, rows
    assert not fleet.sql("SELECT id FROM holdfast.claim WHERE state <> 'ended'")
    ended = ("Succeeded", "Failed")  # kept for a while, so that the output can be read
    living = [pod for pod in fleet.pods() if pod["status"].get("phase") not in ended]
    assert {pod["metadata"]["uid"] for pod in living} == {row["pod_uid"] for row in rows}
    assert {pod["metadata"]["labels"][names.WORKER] for pod in living} == {row["id"] for row in rows}
    assert [marks(pod) for pod in living] == [FREE_MARKS] * WARM
    return True
