"""A stamp whose answer is lost is written again, or removed at once if nothing was delivered (seed 000)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flaky_api import Call, FlakyApi
from fleet_probes import metric, nobody_looks, worker
from kube_fleet import KubeFleet, Made, account
from pod_marks import FREE_MARKS, busy_marks, marks
from pool_specs import Gate, jobs

from holdfast.kubernetes import names
from holdfast_testcluster.access import Access
from waiting import eventually

ERRORS = "holdfast_protect_errors_total"
TRIES = 3
AT_ONCE = 5  # seconds for two calls to the API server on a busy machine; no other replica could do it


@pytest.fixture
def flaky(control_plane: Access, namespace: str, tmp_path: Path) -> Iterator[FlakyApi]:
    with FlakyApi(control_plane, account(control_plane, namespace, "one"), tmp_path) as flaky:
        yield flaky


def test_a_stamp_whose_answer_is_lost_is_its_claims_own_or_goes_at_once(flaky: FlakyApi, fleet_of: Made, tmp_path: Path) -> None:
    pools = {"linux": jobs(warm=2), "strict": jobs(warm=1, protection={"required": True})}
    fleet, gate = fleet_of(kubeconfig=flaky.kubeconfig, pools=pools), Gate(tmp_path)
    fleet.warm(3, within=90)
    _written_again_it_is_the_same(fleet, flaky, gate)
    _told_that_it_may_be_missing_though_it_is_there(fleet, flaky, gate)
    _taken_off_where_protection_is_required(fleet, flaky)
    _taken_off_where_the_claim_was_cancelled_meanwhile(fleet, flaky)
    gate.open()
    fleet.check_promises()


def _written_again_it_is_the_same(fleet: KubeFleet, flaky: FlakyApi, gate: Gate) -> None:
    errors = metric(fleet, ERRORS)
    lose(flaky, first=1)
    claim = fleet.claim("linux", tenant="acme", command=gate.job(), wait="30s")
    assert (claim["state"], claim["protected"], claim["attempts"]) == ("active", True, 1), fleet.last_log()
    assert marks(fleet.pod(claim["worker"])) == busy_marks(claim)
    assert [stamped(call) for call in stamps(flaky)] == [stamped_as(claim)] * 2, "the same pod, claim and fence again"
    assert metric(fleet, ERRORS) == errors + 1
    assert [pod["metadata"]["name"] for pod in fleet.pods() if marks(pod) != FREE_MARKS] == [claim["worker"]]
    eventually(lambda: gate.ran == 1, 30, "its command runs, once")


def _told_that_it_may_be_missing_though_it_is_there(fleet: KubeFleet, flaky: FlakyApi, gate: Gate) -> None:
    """The replica only knows that it tried three times. The pod still has the marks of its claim, and keeps them."""
    fleet.warm(3, within=90)
    lose(flaky, first=TRIES)
    claim = fleet.claim("linux", tenant="acme", command=gate.job(), wait="30s")
    assert (claim["state"], claim["protected"]) == ("active", False), fleet.last_log()
    assert marks(fleet.pod(claim["worker"])) == busy_marks(claim)
    eventually(lambda: gate.ran == 2, 30, "its command runs, once")
    seen = "SELECT 1 FROM holdfast.worker WHERE id = $1 AND protected"
    eventually(lambda: fleet.sql(seen, claim["worker"]), 20, "what the pod shows is noticed")
    assert len(stamps(flaky)) == TRIES, "nothing was left to repair"
    assert marks(fleet.pod(claim["worker"])) == busy_marks(claim)


def _taken_off_where_protection_is_required(fleet: KubeFleet, flaky: FlakyApi) -> None:
    """The holder is refused although the pod is stamped, so the replica that gave up removes the stamp again."""
    free, uid = strict(fleet)
    lose(flaky, first=TRIES)
    with nobody_looks(fleet):
        refused = fleet.claim("strict", tenant="acme", command=["true"], wait="30s")
        assert (refused["state"], refused["outcome"]) == ("ended", "refused"), fleet.last_log()
        warm_again(fleet, free, uid)
    assert [stamped(call) for call in stamps(flaky)] == [(free, refused["id"])] * TRIES
    as_good_as_new(fleet, free)


def _taken_off_where_the_claim_was_cancelled_meanwhile(fleet: KubeFleet, flaky: FlakyApi) -> None:
    """The holder cancels during the second try. The second and third try stamp a worker that is free again."""
    free, uid = strict(fleet)
    flaky.calls.clear()

    def cancelled(call: Call) -> Any:
        if not call.patches(names.BUSY):
            return None
        if len(stamps(flaky)) == 2:
            answer = fleet.api("POST", f"/v1/claims/{stamped(call)[1]}/cancel", {}, timeout=10)
            assert answer.json["outcome"] == "cancelled"
        return "lost" if len(stamps(flaky)) < TRIES else None

    flaky.fault = cancelled
    with nobody_looks(fleet):
        claim = fleet.claim("strict", command=["true"], wait="30s")
        assert (claim["state"], claim["outcome"]) == ("ended", "cancelled"), fleet.last_log()
        eventually(lambda: len(stamps(flaky)) == TRIES, AT_ONCE, "the third try is written")
        warm_again(fleet, free, uid)
    as_good_as_new(fleet, free)


# Helpers


def lose(flaky: FlakyApi, first: int) -> None:
    """Loses the answers of the first stamps. The stamps themselves are written."""
    flaky.calls.clear()
    flaky.fault = lambda call: "lost" if call.patches(names.BUSY) and len(stamps(flaky)) <= first else None


def stamps(flaky: FlakyApi) -> list[Call]:
    return [call for call in flaky.calls if call.patches(names.BUSY)]


def stamped(call: Call) -> tuple[str, str]:
    """Returns the pod and the claim of a stamp."""
    return call.path.rsplit("/", 1)[1], call.body["metadata"]["labels"][names.CLAIM]


def stamped_as(claim: dict[str, Any]) -> tuple[str, str]:
    return claim["worker"], claim["id"]


def strict(fleet: KubeFleet) -> tuple[str, str]:
    """Returns the free worker of the pool that requires protection."""
    found = lambda: [each for each in fleet.workers("warm") if each["pool"] == "strict" and each["ready"]]  # noqa: E731
    (free,) = eventually(found, 90, "a warm worker")
    return free["id"], free["uid"]


def warm_again(fleet: KubeFleet, free: str, uid: str) -> None:
    eventually(lambda: marks(fleet.pod(free)) == FREE_MARKS, AT_ONCE, "the stamp is gone, and no sweep did it")
    pod = fleet.pod(free) or {}
    assert names.STAMPED_AT not in pod["metadata"]["annotations"]
    assert (pod["metadata"]["uid"], "deletionTimestamp" in pod["metadata"]) == (uid, False)
    now = worker(fleet, free)
    assert (now["state"], now["claim"], now["uid"]) == ("warm", None, uid)


def as_good_as_new(fleet: KubeFleet, free: str) -> None:
    ended = fleet.see(fleet.claim("strict", tenant="globex", command=["true"], wait="30s")["id"], wait="60s")
    assert (ended["worker"], ended["outcome"], ended["protected"]) == (free, "completed", True), fleet.last_log()
