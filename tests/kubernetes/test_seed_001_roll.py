"""Seed 001: a rolling restart of the control plane and a renamed pool leave every running worker alone."""

import signal
from pathlib import Path
from typing import Any

from kube_fleet import KubeFleet, Made
from load_tools import all_served, load
from seed_tools import Gate, busy_marks, get, holder_of, jobs, marks, sessions, worker

from waiting import eventually


def test_seed_001_a_rolling_restart_touches_no_worker_and_fails_no_claim(fleet_of: Made, tmp_path: Path) -> None:
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
            fleet.replicas[n].wait(60)
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
    assert (ended["outcome"], ended["exit_code"], gate.ran) == ("failed", 7, 1), fleet.said()
    assert not fleet.sql("SELECT id, how FROM holdfast.claim WHERE how NOT IN ('result', 'death')")


def test_seed_001_a_replica_that_is_told_to_stop_takes_its_leave(fleet_of: Made) -> None:
    """So that its duties are another's at once, and not when its terms run out."""
    fleet = fleet_of()
    leaves = eventually(lambda: [holder_of(fleet, "converge")], 30, "somebody does it")[0]
    pid = fleet.replicas[leaves].pid
    fleet.signal(leaves, signal.SIGTERM)
    fleet.replicas[leaves].wait(60)
    assert fleet.sql("SELECT stopped_at FROM holdfast.replica WHERE pid = $1", pid)[0]["stopped_at"]
    left = "SELECT t.duty FROM holdfast.term t JOIN holdfast.replica r ON r.id = t.holder WHERE r.pid = $1 AND until > now()"
    assert not fleet.sql(left, pid), "nobody has to wait for what it held"


def test_seed_001_a_renamed_pool_lets_free_workers_go_and_busy_ones_finish(fleet_of: Made, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    fleet = fleet_of(pools={"old": jobs(warm=2)})
    fleet.warm(2, within=90)
    held = fleet.claim("old", tenant="acme", command=gate.job(7), wait="30s")
    fleet.warm(2, within=90)
    before = uids(fleet, [held["worker"]])
    free = [each["id"] for each in fleet.workers() if each["id"] != held["worker"]]
    assert fleet.api("DELETE", "/v1/pools/old").status == 200
    assert fleet.api("PUT", "/v1/pools/new", jobs(warm=1)).status == 201
    eventually(lambda: all(over(fleet, id_) for id_ in free), 90, "the free workers of the old name go")
    eventually(lambda: [each["pool"] for each in fleet.workers("warm")] == ["new"], 90, "the new name has its own")
    assert fleet.claim("new", command=["true"], wait="30s")["state"] in ("active", "ended")
    assert fleet.api("POST", "/v1/claims", {"pool": "old", "command": ["true"]}).status == 404
    assert uids(fleet, [held["worker"]]) == before, "the busy one is untouched"
    assert marks(fleet.pod(held["worker"])) == busy_marks(held), "and protected as before"
    gate.open()
    ended = fleet.see(held["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], gate.ran) == ("failed", 7, 1), fleet.said()
    eventually(lambda: not [each for each in fleet.workers() if each["pool"] == "old"], 60, "and then nothing of the old is left")


def over(fleet: KubeFleet, id_: str) -> bool:
    """Its row is closed, and what is left of its pod, which may have ended by itself, does nothing any more."""
    pod = fleet.pod(id_)
    return worker(fleet, id_)["state"] == "gone" and (pod is None or pod["status"]["phase"] in ("Succeeded", "Failed"))


def uids(fleet: KubeFleet, workers: list[str]) -> dict[str, Any]:
    """Of pods that nobody has told to end."""
    pods = {each["metadata"]["name"]: each["metadata"] for each in fleet.pods()}
    assert not [name for name in workers if "deletionTimestamp" in pods[name]]
    return {name: pods[name]["uid"] for name in workers}
