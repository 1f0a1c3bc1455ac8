"""A pool that is deleted, renamed or refused lets its busy workers finish, and its object shows the reason (seed 001)."""

from pathlib import Path
from typing import Any

import pytest
from fleet_probes import uids, worker
from kube_fleet import KubeFleet, Made, job
from pod_marks import busy_marks, marks
from pool_objects import GROUP, busy, declare, declared, finishes, ready, uid
from pool_specs import Gate, jobs

from waiting import eventually


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_a_pool_deleted_in_any_cascade_mode_lets_the_busy_finish(fleet: KubeFleet, cascade: str) -> None:
    declare(fleet, "linux", job(warm=2))
    ready(fleet, "linux")
    held = busy(fleet, "linux")
    pod, old = uid(fleet, held["worker"]), declared(fleet, "linux")
    fleet.access.kubectl("-n", fleet.namespace, "delete", "wp", "linux", f"--cascade={cascade}", "--wait=true", "--timeout=60s")
    eventually(lambda: len(fleet.workers()) == 1, 60, "the free workers go")
    # A new pool can use the name at once, while the old pool still has a busy worker.
    declare(fleet, "linux", job(warm=1))
    new = ready(fleet, "linux")
    assert old is not None
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    finishes(fleet, held, pod)
    eventually(lambda: held["worker"] not in [w["id"] for w in fleet.workers()], 60, "the old pool's last worker goes")
    pools = {each["id"]: each["state"] for each in fleet.api("GET", "/v1/pools").json["items"]}
    assert pools[f"p-{new['metadata']['uid']}"] == "live"


def test_a_pool_whose_object_vanished_without_us_drains_all_the_same(fleet: KubeFleet) -> None:
    declare(fleet, "linux", job(warm=2))
    ready(fleet, "linux")
    held = busy(fleet, "linux")
    pod, path = uid(fleet, held["worker"]), f"{GROUP}/namespaces/{fleet.namespace}/workerpools/linux"
    for n in range(2):
        fleet.kill(n)  # no replica sees the deletion
    fleet.access.ask("PATCH", path, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")
    fleet.access.ask("DELETE", path)
    for n in range(2):
        fleet.start(n)
    eventually(lambda: [w["state"] for w in fleet.workers()] == ["held"], 90, "the free workers go, the busy one stays")
    finishes(fleet, held, pod)
    eventually(lambda: not fleet.workers(), 60, "and then it goes")


def test_a_pool_belongs_to_its_object_and_is_frozen_through_the_api(fleet: KubeFleet) -> None:
    declare(fleet, "linux", job(warm=1))
    ready(fleet, "linux")
    assert fleet.api("PUT", "/v1/pools/linux", job(warm=3)).status == 409
    assert fleet.api("DELETE", "/v1/pools/linux").status == 409
    assert fleet.api("POST", "/v1/pools/linux/freeze", {"reason": "looking into it"}).status == 200

    def frozen() -> Any:
        conditions = {c["type"]: c for c in (declared(fleet, "linux") or {})["status"]["conditions"]}
        return conditions["Frozen"]["status"] == "True" and conditions["Frozen"]["message"]

    assert eventually(frozen, 30, "its object shows it") == "looking into it"
    assert fleet.api("POST", "/v1/pools/linux/thaw", {}).status == 200
    fleet.access.kubectl("-n", fleet.namespace, "scale", "wp", "linux", "--replicas=3")
    fleet.warm(3, within=60)
    assert eventually(lambda: (declared(fleet, "linux") or {})["status"]["free"] == 3, 30, "its status counts them")


def test_a_template_that_the_api_server_refuses_shows_in_its_objects_status(fleet: KubeFleet) -> None:
    bad = job(warm=1)
    bad["pod"]["spec"]["containers"][0]["image"] = ""
    declare(fleet, "linux", bad)
    # Without its misspelled field the rule would allow everything.
    declare(fleet, "leaky", job(warm=1, network={"egress": [{"too": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}]}))

    def refused(name: str) -> Any:
        conditions = {c["type"]: c for c in (declared(fleet, name) or {}).get("status", {}).get("conditions", [])}
        return conditions.get("Ready", {}).get("reason") == "Refused" and conditions["Ready"]["message"]

    assert "pod.spec.containers[0].image" in eventually(lambda: refused("linux"), 30, "its object shows why")
    assert "network.egress[0].too: unknown field" in eventually(lambda: refused("leaky"), 30, "and the other's")
    assert fleet.api("GET", "/v1/pools").json["items"] == []
    events = fleet.access.kubectl("-n", fleet.namespace, "get", "events", "--field-selector=involvedObject.kind=WorkerPool")
    assert "Refused" in events
    declare(fleet, "linux", job(warm=1))
    ready(fleet, "linux")


def test_a_renamed_pool_lets_free_workers_go_and_busy_ones_finish(fleet_of: Made, tmp_path: Path) -> None:
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
    assert (ended["outcome"], ended["exit_code"], gate.ran) == ("failed", 7, 1), fleet.last_log()
    eventually(lambda: not [each for each in fleet.workers() if each["pool"] == "old"], 60, "and then nothing of the old is left")


def over(fleet: KubeFleet, id_: str) -> bool:
    """Returns whether the row is closed and the rest of its pod has ended."""
    pod = fleet.pod(id_)
    return worker(fleet, id_)["state"] == "gone" and (pod is None or pod["status"]["phase"] in ("Succeeded", "Failed"))
