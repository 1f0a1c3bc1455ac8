"""Faults around the fleet: the API server or Postgres is away under load, a watch expires, a pool is rolled out."""

import signal
import time
from pathlib import Path

from fleet_probes import worker
from kube_fleet import KubeFleet, Made, job
from pod_marks import busy_marks, marks
from pool_specs import Gate
from steady_load import all_served, load, sound

from holdfast_testcluster.access import MERGE
from holdfast_testcluster.control_plane import ControlPlane
from waiting import eventually

AWAY = 30.0  # seconds, as in the failure table


def nothing_leaks(fleet: KubeFleet, *pools: str) -> None:
    """Checks P5 on the API server and in the database."""
    for pool in pools:
        assert fleet.api("DELETE", f"/v1/pools/{pool}").status == 200
    eventually(lambda: not fleet.workers(), 120, "all rows are closed")
    living = lambda: [p for p in fleet.pods() if p["status"].get("phase") not in ("Succeeded", "Failed")]  # noqa: E731
    eventually(lambda: not living(), 60, "no pod lives")
    assert fleet.sql("SELECT id FROM holdfast.claim WHERE state <> 'ended'") == []


def test_the_api_server_away_for_30_s_under_load_ends_nothing(
    own_fleet: KubeFleet, own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    fleet, gate = own_fleet, Gate(tmp_path)
    for name, spec in {"linux": job(warm=3, max=8), "idle": job(warm=2)}.items():
        assert fleet.api("PUT", f"/v1/pools/{name}", spec).status == 201
    fleet.warm(5, within=60)
    idle = {each["id"]: each["uid"] for each in fleet.workers("warm") if each["pool"] == "idle"}
    long = fleet.claim("linux", command=["sh", "-c", f"sleep {AWAY + 10}; exit 5"], wait="30s")
    with load(fleet, "linux") as ids:
        eventually(lambda: len(ids) >= 3, 60, "claims flow")
        skipped = skips(fleet)
        own_control_plane.stop_apiserver()
        gone = time.monotonic()
        bare = fleet.claim("linux", command=gate.job(6), wait="30s")
        while time.monotonic() - gone < AWAY:
            assert fleet.see(long["id"])["state"] == "active", "a busy worker is not ended for it"
            time.sleep(1)
        assert skips(fleet) > skipped, "passes that could not read are counted"
        own_control_plane.start_apiserver()
        active = fleet.see(bare["id"], wait="60s", until="active")
        eventually(
            lambda: marks(fleet.pod(active["worker"])) == busy_marks(active),
            5 + 25,
            "the worker of a claim with `protected: false` has its protection",
        )
        before = len(ids)
        eventually(lambda: len(ids) > before + 3, 90, "claims flow again")
    gate.open()
    all_served(fleet, ids)
    assert fleet.see(long["id"], wait="60s")["exit_code"] == 5
    assert (fleet.see(bare["id"], wait="60s")["exit_code"], gate.ran) == (6, 1)
    assert idle == {each["id"]: each["uid"] for each in fleet.workers("warm") if each["pool"] == "idle"}, "free ones are the same"
    assert idle.items() <= {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in fleet.pods()}.items()
    sound(fleet)
    nothing_leaks(fleet, "linux", "idle")


def skips(fleet: KubeFleet) -> int:
    return int(fleet.sql("SELECT skips FROM holdfast.term WHERE duty = 'converge'")[0]["skips"])


def test_postgres_away_for_30_s_under_load_ends_nothing(fleet_of: Made, tmp_path: Path) -> None:
    fleet, gate = fleet_of(pools={"linux": job(warm=3, max=8)}), Gate(tmp_path)
    fleet.warm(3, within=60)
    long = fleet.claim("linux", command=["sh", "-c", f"sleep {AWAY + 15}; exit 5"], wait="30s")
    uid = (fleet.pod(long["worker"]) or {})["metadata"]["uid"]
    # The lease and the longest duration would both have expired if the outage counted.
    leased = fleet.claim("linux", command=gate.job(), lease="20s", maxDuration="29s", wait="30s")
    assert leased["state"] == "active"
    with load(fleet, "linux") as ids:
        eventually(lambda: len(ids) >= 3, 60, "claims flow")
        assert fleet.api("POST", f"/v1/claims/{leased['id']}/renew", {"fence": leased["fence"]}).status == 200
        names = {pod["metadata"]["name"] for pod in fleet.pods() if pod["status"]["phase"] == "Pending"}
        fleet.postgres.stop()
        gone = time.monotonic()
        while time.monotonic() - gone < AWAY:
            pods = {pod["metadata"]["name"]: pod for pod in fleet.pods()}
            assert pods[long["worker"]]["metadata"]["uid"] == uid
            assert not [n for n in names & pods.keys() if "deletionTimestamp" in pods[n]["metadata"]], "nothing is ended"
            time.sleep(1)
        fleet.postgres.start()
        renew = lambda: fleet.api("POST", f"/v1/claims/{leased['id']}/renew", {"fence": leased["fence"]})  # noqa: E731
        eventually(lambda: renew().status == 200, 30, "its holder is in time")
        gate.open()
        before = len(ids)
        eventually(lambda: len(ids) > before + 3, 90, "claims flow again")
    all_served(fleet, ids)
    assert fleet.see(long["id"], wait="60s")["exit_code"] == 5
    assert fleet.see(leased["id"], wait="60s")["outcome"] == "completed"
    ends = fleet.sql("SELECT id, how, reason FROM holdfast.claim WHERE how NOT IN ('result', 'death')")
    assert not ends, "no claim ended but by itself"
    sound(fleet)


def test_a_watch_that_expired_is_begun_again_and_what_went_meanwhile_is_noticed(
    own_fleet: KubeFleet, own_control_plane: ControlPlane
) -> None:
    fleet, plane = own_fleet, own_control_plane
    assert fleet.api("PUT", "/v1/pools/linux", job(warm=2, max=8)).status == 201
    gone, stays = (worker["id"] for worker in fleet.warm(2, within=60))
    watchers = 3  # both replicas and the kubelet
    eventually(lambda: pod_watches(plane) == watchers, 30, "they follow the namespace's pods")
    for n in range(2):
        fleet.signal(n, signal.SIGSTOP)  # so that the replicas do not read
    plane.restart_apiserver()  # otherwise these events would wait in their sockets until they continue
    plane.kubectl("delete", "pod", gone, "-n", fleet.namespace, "--wait=false")
    plane.request("PATCH", f"{fleet.pods_path}/{gone}", {"metadata": {"finalizers": None}}, MERGE)
    eventually(lambda: fleet.pod(gone) is None, 30, "a pod goes")
    plane.expire_watches()
    assert pod_watches(plane) < watchers
    for n in range(2):
        fleet.signal(n, signal.SIGCONT)
    eventually(lambda: pod_watches(plane) == watchers, 60, "each follows again, by the API server's own count")
    eventually(lambda: worker(fleet, gone)["state"] == "gone", 30, "what went while they were blind is noticed")
    assert worker(fleet, stays)["state"] == "warm"
    for n in range(3):
        ended = fleet.see(fleet.claim("linux", command=["sh", "-c", f"exit {n}"], wait="30s")["id"], wait="60s")
        assert ended["exit_code"] == n
    fleet.warm(2, within=60)
    sound(fleet)


def pod_watches(plane: ControlPlane) -> float:
    """Returns the watches of one namespace, without those of scheduler and controllers, which watch all namespaces."""
    mine = ('resource="pods"', 'scope="namespace"', 'verb="WATCH"')
    lines = [line for line in plane.request("GET", "/metrics").body.splitlines() if all(each in line for each in mine)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("apiserver_longrunning_requests"))


def test_a_rollout_of_the_template_under_load_fails_no_claim(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"linux": job(warm=3, max=8)})
    fleet.warm(3, within=60)
    before = fleet.api("GET", "/v1/pools/linux").json["revision"]
    with load(fleet, "linux") as ids:
        eventually(lambda: len(ids) >= 3, 60, "claims flow")
        new = job(warm=3, max=8)
        new["pod"]["spec"]["containers"][0]["env"] = [{"name": "NEW", "value": "1"}]
        assert fleet.api("PUT", "/v1/pools/linux", new).status == 200

        def rolled() -> bool:
            workers = fleet.workers()
            return len(workers) >= 3 and all(worker["revision"] != before for worker in workers)

        eventually(rolled, 120, "every worker is of the new revision")
    all_served(fleet, ids)
    ends = fleet.sql("SELECT how, count(*) AS n FROM holdfast.claim WHERE state = 'ended' GROUP BY how")
    assert {row["how"] for row in ends} <= {"result", "death"}, ends
