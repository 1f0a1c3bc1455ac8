"""Workers that are ending: busy ones drain, free ones end at once, and none of them gets a claim (seed 004)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleet_probes import nobody_looks, nodes_of_free, parked_session, quiet, worker
from kube_fleet import KubeFleet
from pod_marks import evict
from pool_specs import SPREAD, Gate, get, jobs, sessions

from holdfast.kubernetes import names
from holdfast_testcluster.access import Access
from waiting import always, eventually

Make = Callable[..., Any]
REPAIRED = 15  # seconds, the limit of P3 after the death of a replica


def test_a_busy_worker_on_a_terminating_pod_drains_and_a_free_one_leaves_at_once(
    control_plane: Access, namespace: str, make_nodes: Make, tmp_path: Path
) -> None:
    gate, kubelet = Gate(tmp_path), make_nodes(control_plane, namespace)
    pools = {"linux": jobs(warm=2), "notebook": sessions(drain={"grace": "1h"})}
    with KubeFleet(control_plane, namespace, kubelet, pools=pools) as fleet:
        fleet.warm(3, within=90)
        busy = fleet.claim("linux", command=gate.job(7), wait="30s")
        held = fleet.claim("notebook", wait="30s")
        eventually(lambda: gate.ran == 1, 30, "it runs")
        control_plane.kubectl("delete", "pod", busy["worker"], held["worker"], "-n", namespace, "--wait=false")
        free = _next([each for each in fleet.warm(3, within=90) if each["pool"] == "linux"])["id"]
        control_plane.kubectl("delete", "pod", free, "-n", namespace, "--wait=false")
        claim = fleet.claim("linux", command=["true"], wait="30s")
        assert claim["worker"] != free
        eventually(lambda: worker(fleet, free)["state"] in ("retiring", "gone"), REPAIRED, "the free one leaves")
        eventually(lambda: fleet.pod(free) is None, 30, "and nothing holds its pod")
        assert fleet.see(claim["id"], wait="60s")["outcome"] == "completed"
        always(lambda: fleet.see(busy["id"])["state"] == "active", 3, "the busy one drains")
        _still_serves(fleet, held)
        for each in (busy, held):
            pod = fleet.pod(each["worker"])
            assert pod is not None
            assert "deletionTimestamp" in pod["metadata"]
        gate.open()
        ended = fleet.see(busy["id"], wait="30s")
        assert (ended["outcome"], ended["exit_code"], ended["attempts"]) == ("failed", 7, 1), fleet.last_log()
        assert gate.ran == 1
        eventually(lambda: fleet.pod(busy["worker"]) is None, 60, "its end was recorded, and its pod is gone")
        assert fleet.api("POST", f"/v1/claims/{held['id']}/release", {"fence": held["fence"]}).status == 200
        eventually(lambda: fleet.pod(held["worker"]) is None, 120, "given back, it does not use up its hour of grace")
        quiet(fleet)


def _still_serves(fleet: KubeFleet, held: dict[str, Any]) -> None:
    """Checks that a holder can use and renew its session during the grace period of its pod."""
    always(lambda: get(held["endpoint"], held["credential"]) == 200, 3, "its endpoint answers")
    renewed = fleet.api("POST", f"/v1/claims/{held['id']}/renew", {"fence": held["fence"]})
    assert (renewed.status, renewed.json["state"]) == (200, "active"), fleet.last_log()


def _next(free: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the worker that has been warm for the longest time, because it is given out first."""
    return min(free, key=lambda each: (each["state_since"], each["id"]))


@pytest.mark.parametrize("leaving", ["terminating", "cordoned"])
def test_no_claim_is_given_to_a_leaving_worker_though_its_row_does_not_show_that_it_leaves(
    leaving: str, control_plane: Access, namespace: str, make_nodes: Make
) -> None:
    """The replica that hands over checks the worker in every path and protection mode. It may be the first to know."""
    kubelet = make_nodes(control_plane, namespace, nodes=2)
    pools = {mode: _on_both_nodes(mode, jobs(protection={"mode": mode})) for mode in ("claim", "always", "off")}
    pools["notebook"] = _on_both_nodes("notebook", sessions(warm=2))
    with KubeFleet(control_plane, namespace, kubelet, pools=pools) as fleet:
        eventually(lambda: len(nodes_of_free(fleet)) == 8, 120, "two workers of each pool")
        parked = parked_session(fleet, 8)
        node = worker(fleet, parked)["node"]
        there = {each["id"] for each in fleet.workers() if each["node"] == node and each["state"] in ("warm", "parked")}
        assert {worker(fleet, each)["pool"] for each in there} == set(pools), "each pool has some on both nodes"
        fleet.sql("UPDATE holdfast.worker SET state_since = state_since - interval '1 hour' WHERE id = ANY($1)", list(there))
        kubelet.pause()  # so that a deleted pod goes on for a while and could take a claim
        try:
            with nobody_looks(fleet):
                if leaving == "terminating":
                    control_plane.kubectl("delete", "pod", *there, "-n", namespace, "--wait=false")
                else:
                    _cordon_and_see(control_plane, node)
                run = {pool: {"command": ["true"]} for pool in pools} | {"notebook": {"tenant": "globex"}}
                claims = [fleet.claim(pool, wait="20s", replica=n % 2, **run[pool]) for n, pool in enumerate(pools)]
                assert {claim["state"] for claim in claims} == {"active"}, fleet.last_log()
                assert not {claim["worker"] for claim in claims} & there, f"{there} leave"
        finally:
            kubelet.resume()
        *work, session = claims
        for claim in work:
            assert fleet.see(claim["id"], wait="60s")["outcome"] == "completed", fleet.last_log()
        assert get(session["endpoint"], session["credential"]) == 200


def _on_both_nodes(pool: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Spreads the workers of this pool, not those of all pools together."""
    spread = {**SPREAD, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {names.POOL: pool}}}
    return {**spec, "pod": {"spec": {**spec["pod"]["spec"], "topologySpreadConstraints": [spread]}}}


def _cordon_and_see(access: Access, node: str) -> None:
    """Cordons a node, and waits a second so that watchers of nodes receive it."""
    before = access.ask("GET", "/api/v1/nodes")["metadata"]["resourceVersion"]
    access.kubectl("cordon", node)
    received = access.ask("GET", f"/api/v1/nodes?watch=1&timeoutSeconds=1&resourceVersion={before}")
    assert node in [event["object"]["metadata"]["name"] for event in received if event["object"]["spec"].get("unschedulable")]


def test_a_free_session_worker_is_gone_soon_though_its_server_ignores_sigterm(
    control_plane: Access, namespace: str, make_nodes: Make
) -> None:
    """An hour of grace is for holders. A free worker must not use its node or its pool's slot for that long."""
    pool = sessions(warm=2, drain={"grace": "1h"})
    with KubeFleet(control_plane, namespace, make_nodes(control_plane, namespace), pools={"notebook": pool}) as fleet:
        by_us, by_others = (each["id"] for each in fleet.warm(2, within=90))
        assert fleet.api("POST", f"/v1/workers/{by_us}/retire", {"reason": "test"}).status == 200
        assert evict(fleet, by_others) == 201
        for each in (by_us, by_others):
            eventually(lambda each=each: worker(fleet, each)["state"] == "gone", 120, f"{each} is gone")
            eventually(lambda each=each: fleet.pod(each) is None, 30, f"{each} has left its node")
        fleet.warm(2, within=90)
