"""A duty that failed is tried again, and its last success changes only after successful reads (seed 003)."""

import time
from typing import Any

import pytest
from fleet_probes import ending, metric, release
from kube_fleet import KubeFleet
from pool_specs import sessions

from holdfast_testcluster.control_plane import ControlPlane
from waiting import eventually

LAST_SUCCESS = 'holdfast_duty_last_success_timestamp_seconds{duty="converge"}'


@pytest.mark.timeout(300)
def test_a_duty_that_failed_is_taken_up_again_and_its_last_success_moves_only_with_good_reads(
    own_fleet: KubeFleet, own_control_plane: ControlPlane
) -> None:
    fleet, plane = own_fleet, own_control_plane
    assert fleet.api("PUT", "/v1/pools/notebook", sessions(park={"ttl": "5s"})).status == 201
    fleet.warm(1, within=90)
    claim = fleet.claim("notebook", tenant="acme", wait="60s")
    plane.stop_apiserver()
    eventually(lambda: term(fleet)["failure"], 40, "a pass that could not read stores its failure")
    failed = term(fleet)
    release(fleet, claim)
    eventually(lambda: term(fleet)["skips"] > failed["skips"], 40, "another one is skipped, and counted")
    assert term(fleet)["success_at"] == failed["success_at"], "that was no success"
    # Every replica exports the value from the database, and an alert uses it.
    eventually(lambda: abs(metric(fleet, LAST_SUCCESS) / 2 - failed["success_at"].timestamp()) < 0.01, 20, "the gauge stands")
    assert term(fleet)["holder"] == failed["holder"], "no other replica can do better, so none takes it over"
    back = time.time()
    plane.start_apiserver()
    eventually(lambda: metric(fleet, LAST_SUCCESS) / 2 > back, 60, "the same duty succeeds again")
    assert term(fleet)["failure"] is None
    eventually(lambda: ending(fleet, claim["worker"]), 60, "what was due meanwhile is done: a parked worker ends")


def term(fleet: KubeFleet) -> dict[str, Any]:
    return fleet.sql("SELECT holder, success_at, skips, failure FROM holdfast.term WHERE duty = 'converge'")[0]
