"""A protection is tried three times. Then its holder is informed and the pod is repaired (seed 002)."""

from pathlib import Path

import pytest
from flaky_api import Call, FlakyApi
from fleet_probes import metric
from kube_fleet import KubeFleet, Made
from pod_marks import busy_marks, marks
from pool_specs import Gate, jobs

from holdfast.kubernetes import names
from waiting import eventually

ERRORS = "holdfast_protect_errors_total"
UNPROTECTED = 'holdfast_handover_unprotected_total{pool="linux"}'
WARM = 3


@pytest.fixture
def fleet(flaky: FlakyApi, fleet_of: Made) -> KubeFleet:
    made = fleet_of(kubeconfig=flaky.kubeconfig, pools={"linux": jobs(warm=WARM)})
    made.warm(WARM, within=90)
    return made


def test_a_protection_is_tried_three_times_and_then_the_claim_is_marked_unprotected(
    fleet: KubeFleet, flaky: FlakyApi, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    _the_second_try_succeeds(fleet, flaky, gate)
    _after_the_third_it_is_told_and_repaired(fleet, flaky, gate)
    gate.open()


def _the_second_try_succeeds(fleet: KubeFleet, flaky: FlakyApi, gate: Gate) -> None:
    errors, unprotected = metric(fleet, ERRORS), metric(fleet, UNPROTECTED)
    flaky.calls.clear()
    flaky.fault = lambda call: 503 if call.patches(names.BUSY) and len(tries(flaky)) == 1 else None
    claim = fleet.claim("linux", tenant="acme", command=gate.job(), wait="30s")
    assert (claim["state"], claim["protected"]) == ("active", True), fleet.last_log()
    assert marks(fleet.pod(claim["worker"])) == busy_marks(claim)
    assert len(tries(flaky)) == 2, "one that failed, one that did not"
    assert metric(fleet, ERRORS) == errors + 1
    assert metric(fleet, UNPROTECTED) == unprotected
    assert "claim.unprotected" not in kinds(fleet, claim["id"])


def _after_the_third_it_is_told_and_repaired(fleet: KubeFleet, flaky: FlakyApi, gate: Gate) -> None:
    errors, unprotected = metric(fleet, ERRORS), metric(fleet, UNPROTECTED)
    flaky.calls.clear()
    flaky.fault = lambda call: 503 if call.patches(names.BUSY) else None
    claim = fleet.claim("linux", tenant="acme", command=gate.job(), wait="30s")
    assert (claim["state"], claim["protected"]) == ("active", False), fleet.last_log()
    assert metric(fleet, ERRORS) == errors + 3, "exactly three tries, not one more"
    first, second, third = tries(flaky)[:3]
    assert min(second.at - first.at, third.at - second.at) >= 0.1, "100 ms apart"
    assert metric(fleet, UNPROTECTED) == unprotected + 1
    assert kinds(fleet, claim["id"]).count("claim.unprotected") == 1
    eventually(lambda: gate.ran == 2, 30, "its command runs all the same")
    flaky.fault = lambda call: None
    eventually(lambda: marks(fleet.pod(claim["worker"])) == busy_marks(claim), 5 + 20, "`converge` repairs it")
    assert metric(fleet, ERRORS) == errors + 3, "by a duty, not by another hand-over"
    assert fleet.see(claim["id"])["state"] == "active"
    assert gate.ran == 2, "and once"


def tries(flaky: FlakyApi) -> list[Call]:
    return [call for call in flaky.calls if call.patches(names.BUSY)]


def kinds(fleet: KubeFleet, claim: str) -> list[str]:
    return [event["kind"] for event in fleet.api("GET", f"/v1/events?claim={claim}").json["items"]]
