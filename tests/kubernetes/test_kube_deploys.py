"""Deploys and restarts of the control plane leave every running worker alone (seed 001)."""

import signal
from pathlib import Path

from fleet_probes import holder_of, uids
from kube_fleet import KubeFleet, Made, job
from pod_marks import busy_marks, marks
from pool_objects import busy, declare, finishes, ready, uid
from pool_specs import Gate, get, jobs, sessions
from steady_load import all_served, load

from waiting import eventually


def test_a_deploy_of_all_replicas_leaves_running_workers_alone(fleet: KubeFleet) -> None:
    declare(fleet, "linux", job(warm=2))
    ready(fleet, "linux")
    held = busy(fleet, "linux")
    pod = uid(fleet, held["worker"])
    for n in range(2):
        fleet.kill(n)
    for n in range(2):
        fleet.start(n)
    for n in range(2):
        eventually(lambda n=n: fleet.api("GET", "/readyz", replica=n).status == 200, 60, f"replica {n} is back")
    assert fleet.see(held["id"])["state"] == "active"
    finishes(fleet, held, pod)


def test_a_rolling_restart_touches_no_worker_and_fails_no_claim(fleet_of: Made, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    fleet = fleet_of(pools={"linux": jobs(warm=3), "idle": jobs(warm=1), "notebook": sessions()})
    fleet.warm(5, within=120)
    held = fleet.claim("linux", tenant="acme", command=gate.job(7), wait="30s")
    session = fleet.claim("notebook", tenant="acme", wait="30s")
    kept = [held["worker"], session["worker"], *(each["id"] for each in fleet.workers("warm") if each["pool"] == "idle")]
    before = uids(fleet, kept)
    with load(fleet, "linux") as ids:
        eventually(lambda: len(ids) >= 2, 60, "claims flow")
        for n in range(2):
            fleet.signal(n, signal.SIGTERM)
            fleet.replicas[n].wait(300)
            assert get(session["endpoint"], session["credential"]) == 200
            fleet.start(n)
            eventually(lambda n=n: fleet.api("GET", "/readyz", replica=n).status == 200, 60, f"replica {n} is back")
            assert uids(fleet, kept) == before, "the same pods"
        count = len(ids)
        eventually(lambda: len(ids) > count + 1, 60, "claims flow on")
    all_served(fleet, ids)
    assert marks(fleet.pod(held["worker"])) == busy_marks(held)
    assert {fleet.see(each["id"])["state"] for each in (held, session)} == {"active"}
    gate.open()
    ended = fleet.see(held["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], gate.ran) == ("failed", 7, 1), fleet.last_log()
    assert not fleet.sql("SELECT id, how FROM holdfast.claim WHERE how NOT IN ('result', 'death')")


def test_a_replica_that_gets_sigterm_releases_its_terms(fleet_of: Made) -> None:
    """So another replica takes its duties at once, and not when its terms expire."""
    fleet = fleet_of()
    leaves = eventually(lambda: [holder_of(fleet, "converge")], 30, "a replica has the duty")[0]
    pid = fleet.replicas[leaves].pid
    fleet.signal(leaves, signal.SIGTERM)
    fleet.replicas[leaves].wait(300)
    assert fleet.sql("SELECT stopped_at FROM holdfast.replica WHERE pid = $1", pid)[0]["stopped_at"]
    left = "SELECT t.duty FROM holdfast.term t JOIN holdfast.replica r ON r.id = t.holder WHERE r.pid = $1 AND until > now()"
    assert not fleet.sql(left, pid), "its terms are free at once"
