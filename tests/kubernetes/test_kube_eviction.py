"""Busy pods are protected from eviction and free pods are not, as the pod itself shows (seed 004)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet_probes import parked_session, quiet, worker
from kube_fleet import KubeFleet
from pod_marks import FREE_MARKS, busy_marks, evict, marks, write
from pool_specs import Gate, jobs, sessions

from holdfast.kubernetes import names
from holdfast_testcluster.access import Access
from waiting import eventually

Make = Callable[..., Any]
REPAIRED = 15  # seconds, the limit of P3 after the death of a replica


def test_busy_pods_are_protected_free_ones_are_not_and_the_eviction_api_distinguishes_them(
    control_plane: Access, namespace: str, make_nodes: Make, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    pools = {"linux": jobs(warm=1, drain={"grace": "77s"}), "notebook": sessions(drain={"grace": "1m30s"})}
    with KubeFleet(control_plane, namespace, make_nodes(control_plane, namespace), pools=pools) as fleet:
        fleet.warm(2, within=90)
        job = fleet.claim("linux", tenant="acme", command=gate.job(4), wait="30s")
        session = fleet.claim("notebook", tenant="acme", wait="30s")
        eventually(lambda: gate.ran == 1, 30, "the job runs")
        parked = parked_session(fleet)
        free = [each["id"] for each in fleet.warm(2, within=90)]
        _said_both_ways(fleet, [job, session], [*free, parked])
        _restored_on_busy_pods(fleet, [job, session])
        _removed_from_free_pods(fleet, [*free, parked], session)
        for claim in (job, session):
            assert evict(fleet, claim["worker"]) == 429, "the budget refuses it"
        for each in (*free, parked):
            assert evict(fleet, each) == 201
        for each in (*free, parked):
            eventually(lambda each=each: worker(fleet, each)["state"] in ("retiring", "gone"), REPAIRED, f"{each} leaves")
        assert fleet.see(session["id"])["state"] == "active"
        gate.open()
        ended = fleet.see(job["id"], wait="30s")
        assert (ended["outcome"], ended["exit_code"]) == ("failed", 4), fleet.last_log()
        fleet.check_promises()
        quiet(fleet)


def _said_both_ways(fleet: KubeFleet, busy: list[dict[str, Any]], free: list[str]) -> None:
    for claim in busy:
        assert marks(fleet.pod(claim["worker"])) == busy_marks(claim), fleet.last_log()
    for each in free:
        eventually(lambda each=each: marks(fleet.pod(each)) == FREE_MARKS, REPAIRED, f"{each} is not protected")
    graces = {pod["metadata"]["labels"][names.POOL]: pod["spec"]["terminationGracePeriodSeconds"] for pod in fleet.pods()}
    assert graces == {"linux": 77, "notebook": 90}, "the pool's drain.grace"


def _restored_on_busy_pods(fleet: KubeFleet, busy: list[dict[str, Any]]) -> None:
    """Removes all marks by hand, and then each mark alone. They must be restored."""
    everything = [names.BUSY, names.OWNER, names.CLAIM, names.FENCE, names.DO_NOT_DISRUPT, names.SAFE_TO_EVICT]
    for lacking in (everything, [names.BUSY], [names.DO_NOT_DISRUPT], [names.SAFE_TO_EVICT]):
        for claim in busy:
            write(fleet, claim["worker"], dict.fromkeys(lacking))
        for claim in busy:
            what = f"{lacking} of a busy {claim['pool']} is restored"
            eventually(lambda claim=claim: marks(fleet.pod(claim["worker"])) == busy_marks(claim), REPAIRED, what)


def _removed_from_free_pods(fleet: KubeFleet, free: list[str], past: dict[str, Any]) -> None:
    """Writes all marks of a dead replica, and then each mark alone. They must be removed."""
    left = busy_marks({**past, "id": "c-long-gone"})
    for parts in (list(left), [names.BUSY], [names.DO_NOT_DISRUPT], [names.SAFE_TO_EVICT]):
        for each in free:
            write(fleet, each, {key: left[key] for key in parts})
        for each in free:
            eventually(lambda each=each: marks(fleet.pod(each)) == FREE_MARKS, REPAIRED, f"{parts} of a free worker is removed")
            assert worker(fleet, each)["state"] in ("warm", "parked")
