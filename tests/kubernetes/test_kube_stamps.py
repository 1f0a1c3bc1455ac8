"""A stamp without a claim is removed, caps are counted in the database, and an unknown holder is not ended (seed 000)."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet_probes import holder_of, quiet, stopped, worker
from kube_fleet import KubeFleet
from pod_marks import FREE_MARKS, busy_marks, force_delete, marks, write
from pool_specs import Gate, get, jobs, sessions

from holdfast.kubernetes import names
from holdfast_testcluster.access import MERGE, Access
from waiting import always, eventually

Make = Callable[..., Any]
BESIDE = ("serviceaccounts", "secrets", "configmaps", "controllerrevisions", "poddisruptionbudgets", "networkpolicies", "leases")


def test_a_stamp_without_a_claim_is_taken_off_caps_come_from_the_database_and_nothing_is_left(
    control_plane: Access, namespace: str, make_nodes: Make, tmp_path: Path
) -> None:
    gate, kubelet = Gate(tmp_path), make_nodes(control_plane, namespace)
    with KubeFleet(control_plane, namespace, kubelet, pools={"one": jobs(warm=1), "linux": jobs(warm=3)}) as fleet:
        fleet.warm(4, within=90)
        _unstamped_and_warm_again(fleet)
        _labels_do_not_count(fleet, gate)
        _nothing_beside_the_pods(fleet)
        _a_pod_that_is_gone_is_deleted(fleet)
        fleet.check_promises()
        quiet(fleet)


def _unstamped_and_warm_again(fleet: KubeFleet) -> None:
    """A replica stamped the pod and died. Another worker served the claim, which has ended."""
    past = fleet.see(fleet.claim("one", tenant="acme", command=["true"])["id"], wait="60s")
    assert past["outcome"] == "completed", fleet.last_log()
    fleet.warm(4, within=90)
    free = next(each["id"] for each in fleet.workers("warm") if each["pool"] == "one")
    uid = worker(fleet, free)["uid"]
    write(fleet, free, busy_marks(past) | {names.STAMPED_AT: f"{time.time():.3f}"})
    pod = eventually(lambda: (p := fleet.pod(free)) and marks(p) == FREE_MARKS and p, 60, "the stamp is gone")
    assert names.STAMPED_AT not in pod["metadata"]["annotations"]
    assert (worker(fleet, free)["state"], worker(fleet, free)["uid"]) == ("warm", uid)
    again = fleet.see(fleet.claim("one", command=["true"])["id"], wait="60s")
    assert (again["worker"], again["outcome"]) == (free, "completed"), "it is as good as new"


def _labels_do_not_count(fleet: KubeFleet, gate: Gate) -> None:
    """Seed 002: the cap of a tenant is counted in Postgres, whatever labels others write."""
    assert fleet.api("PUT", "/v1/tenants/acme", {"maxClaims": 1}).status == 200
    for each in fleet.warm(4, within=90):
        write(fleet, each["id"], {names.OWNER: "acme"})
    first = fleet.claim("linux", tenant="acme", command=gate.job(), wait="30s")
    assert first["state"] == "active", "forged labels take nothing of its cap"
    second = fleet.claim("linux", tenant="acme", command=gate.job(), wait="0s")
    write(fleet, first["worker"], {names.OWNER: "somebody-else"})
    always(lambda: fleet.see(second["id"])["state"] == "waiting", 4, "its cap holds, whatever the label is")
    gate.open()
    assert fleet.see(first["id"], wait="30s")["outcome"] == "completed"
    assert fleet.see(second["id"], wait="60s")["outcome"] == "completed"


def _nothing_beside_the_pods(fleet: KubeFleet) -> None:
    """Seed 000: there is no account, secret or other object per claim or pod."""
    before = _beside(fleet)
    for n in range(6):
        ended = fleet.see(fleet.claim("linux", tenant=f"t{n}", command=["true"], replica=n % 2)["id"], wait="60s")
        assert ended["outcome"] == "completed", fleet.last_log()
    fleet.warm(4, within=90)
    assert _beside(fleet) == before


def _beside(fleet: KubeFleet) -> set[str]:
    return set(fleet.access.kubectl("get", ",".join(BESIDE), "-n", fleet.namespace, "-o", "name").split())


def _a_pod_that_is_gone_is_deleted(fleet: KubeFleet) -> None:
    """Seed 000: 404 is success. The duty that ends pods is blocked, and meanwhile the pod is deleted by force."""
    fleet.kubelet.pause()  # otherwise its agent would exit and end the pod
    ender = holder_of(fleet, "converge")
    try:
        with stopped(fleet, ender):
            gone = fleet.warm(4, within=90, replica=1 - ender)[0]["id"]
            assert fleet.api("POST", f"/v1/workers/{gone}/retire", {"reason": "test"}, replica=1 - ender).status == 200
            force_delete(fleet, gone)
            fleet.access.request("PATCH", f"{fleet.pods_path}/{gone}", {"metadata": {"finalizers": None}}, MERGE)
            eventually(lambda: fleet.pod(gone) is None, 10, "there is nothing left to delete")
        eventually(lambda: worker(fleet, gone)["state"] == "gone", 30, "its row is closed")
    finally:
        fleet.kubelet.resume()
    fleet.warm(4, within=90)


def test_a_stamped_worker_whose_agent_holds_what_we_do_not_know_is_not_ended(
    control_plane: Access, namespace: str, make_nodes: Make
) -> None:
    with KubeFleet(control_plane, namespace, make_nodes(control_plane, namespace), pools={"notebook": sessions()}) as fleet:
        fleet.warm(1, within=90)
        held = fleet.claim("notebook", tenant="acme", wait="30s")
        assert held["state"] == "active", fleet.last_log()
        reported_claim = "SELECT 1 FROM holdfast.heartbeat WHERE worker_id = $1 AND claim_id IS NOT NULL"
        eventually(lambda: fleet.sql(reported_claim, held["worker"]), 20, "its agent's report is stored")
        # The claim is deleted while the session works. Row and claim look free, but stamp and agent do not.
        fleet.sql("DELETE FROM holdfast.claim WHERE id = $1", held["id"])
        forget = "UPDATE holdfast.worker SET state = 'warm', claim_id = NULL, held_from = NULL, tenant = NULL, delivered = false,"
        fleet.sql(f"{forget} state_heard = state_heard - interval '2 min' WHERE id = $1", held["worker"])
        eventually(lambda: worker(fleet, held["worker"])["suspect"], 30, "it is suspect")
        passed = "SELECT success_at FROM holdfast.term WHERE duty = 'converge'"
        before = eventually(lambda: fleet.sql(passed)[0]["success_at"], 40, "a first pass")

        def untouched() -> bool:
            pod = fleet.pod(held["worker"])
            assert pod is not None
            assert "deletionTimestamp" not in pod["metadata"]
            assert worker(fleet, held["worker"])["state"] == "warm"
            assert marks(pod) == busy_marks(held), "its agent works: it needs its protection"
            return get(held["endpoint"], held["credential"]) == 200

        always(untouched, 20, "the session without a row goes on")
        assert fleet.sql(passed)[0]["success_at"] > before
        other = fleet.claim("notebook", tenant="globex", wait="60s")
        assert other["state"] == "active"
        assert other["worker"] != held["worker"], "no other tenant gets it"
