"""Lists that are wrongly empty end nothing, and refused deletions are reported (seed 000)."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from flaky_api import Call, FlakyApi
from fleet_probes import metric, worker
from kube_fleet import KubeFleet, Made
from kube_stage import FollowingStage, KubeStage
from pod_marks import FREE_MARKS, marks
from pool_specs import jobs

from contracts.cluster import running, until
from holdfast.ports.cluster import Cluster, ClusterUnavailable
from holdfast_testcluster.access import Access
from waiting import eventually

WARM = 3


@pytest.fixture
def fleet(flaky: FlakyApi, fleet_of: Made) -> KubeFleet:
    made = fleet_of(kubeconfig=flaky.kubeconfig, pools={"linux": jobs(warm=WARM)})
    made.warm(WARM, within=90)
    return made


def test_an_empty_list_skips_the_pass_and_a_refused_deletion_surfaces(fleet: KubeFleet, flaky: FlakyApi) -> None:
    _an_empty_list_skips_the_pass(fleet, flaky)
    _a_deletion_that_is_refused_is_said(fleet, flaky)


def _an_empty_list_skips_the_pass(fleet: KubeFleet, flaky: FlakyApi) -> None:
    """No worker is treated as gone, and the pass that saw nothing does not count as a success."""
    uids = {each["id"]: each["uid"] for each in fleet.workers()}

    flaky.fault = lambda call: 503 if call.watches_pods else empty(call)
    for n in range(2):  # restarted, because their watches would still show the truth
        fleet.kill(n)
        fleet.start(n)
    before = skips(fleet)
    eventually(lambda: fleet.api("GET", "/readyz").status == 200, 60, "a replica is back")
    eventually(lambda: skips(fleet) > before, 90, "a pass is skipped, and counted")
    assert "no pods are listed" in term(fleet)["failure"]
    assert {each["id"]: each["uid"] for each in fleet.workers()} == uids, "the same workers"
    assert {pod["metadata"]["uid"] for pod in fleet.pods()} == set(uids.values()), "and the same pods"
    wrong = {call.query["resourceVersion"] for call in flaky.calls if call.watches_pods}
    assert not fleet.sql("SELECT id FROM holdfast.event WHERE kind IN ('worker.gone', 'worker.retiring')")
    flaky.fault = lambda call: 410 if call.watches_pods and call.query["resourceVersion"] in wrong else None
    succeeded = term(fleet)["success_at"]
    eventually(lambda: term(fleet)["success_at"] != succeeded and not term(fleet)["failure"], 90, "the next good list")
    ended = fleet.see(fleet.claim("linux", command=["true"])["id"], wait="60s")
    assert ended["outcome"] == "completed"


def _a_deletion_that_is_refused_is_said(fleet: KubeFleet, flaky: FlakyApi) -> None:
    """404 is success, but 403 is not, and the worker must not be forgotten."""
    failed = metric(fleet, 'holdfast_actions_total{action="DeletePod",outcome="failed"}')
    free = fleet.warm(WARM, within=90)[0]["id"]
    flaky.fault = lambda call: 403 if call.method == "DELETE" else None
    fleet.kubelet.pause()  # otherwise its agent would exit and end the pod
    try:
        assert fleet.api("POST", f"/v1/workers/{free}/retire", {"reason": "test"}).status == 200
        eventually(lambda: "Forbidden" in (term(fleet)["failure"] or ""), 40, "the duty stores why")
        assert metric(fleet, 'holdfast_actions_total{action="DeletePod",outcome="failed"}') > failed
        assert worker(fleet, free)["state"] == "retiring"
        pod = fleet.pod(free)
        assert marks(pod) == FREE_MARKS
        assert "deletionTimestamp" not in (pod or {})["metadata"]
    finally:
        flaky.fault = lambda call: None
        fleet.kubelet.resume()
    eventually(lambda: worker(fleet, free)["state"] == "gone", 60, "once it may, it does")


async def test_a_list_that_was_empty_by_mistake_is_not_believed_forever(
    cluster: Cluster, stage: KubeStage, control_plane: Access, tmp_path: Path
) -> None:
    with FlakyApi(control_plane, control_plane.kubeconfig, tmp_path) as way:
        pod = await running(cluster, stage.order("w-1"))
        following = FollowingStage.through(way.kubeconfig, stage).open()
        way.fault = empty
        with contextlib.suppress(ClusterUnavailable):
            assert await following.pods() == []
        way.fault = lambda call: None

        async def seen() -> bool:
            return [each.uid for each in await following.pods()] == [pod.uid]

        try:
            await until(seen, "it looks again, with a list of its own if need be")
        finally:
            await following.close()


def empty(call: Call) -> Any:
    """Makes lists empty, as from an API server with a fault."""
    return (lambda true: {**true, "items": []}) if call.lists_pods else None


def term(fleet: KubeFleet) -> dict[str, Any]:
    return fleet.sql("SELECT success_at, skips, failure FROM holdfast.term WHERE duty = 'converge'")[0]


def skips(fleet: KubeFleet) -> int:
    return int(term(fleet)["skips"])
