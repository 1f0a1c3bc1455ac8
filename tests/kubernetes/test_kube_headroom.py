"""Headroom keeps capacity for workers, and for nothing else (seed 003)."""

from typing import Any

from kube_fleet import KubeFleet, Made
from pool_specs import sized

from waiting import eventually

SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}


def with_headroom(fleet_of: Made) -> KubeFleet:
    fleet = fleet_of()
    body = {"metadata": {"name": "holdfast-headroom"}, "value": -10, "preemptionPolicy": "Never"}
    fleet.access.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    return fleet


def placeholders(fleet: KubeFleet) -> list[dict[str, Any]]:
    query = f"labelSelector=holdfast.dev/headroom%3D{fleet.install}"
    return list(fleet.access.ask("GET", f"{fleet.pods_path}?{query}")["items"])


def test_headroom_keeps_room_and_goes_when_it_is_switched_off(fleet_of: Made) -> None:
    fleet = with_headroom(fleet_of)
    spec = sized(SMALL, warm=1, headroom={"mode": "constant", "slots": 2})
    assert fleet.api("PUT", "/v1/pools/linux", spec).status == 201
    found = eventually(lambda: len(placeholders(fleet)) == 2 and placeholders(fleet), 60, "two placeholders")
    for each in found:
        assert each["spec"]["priority"] == -10, "not below what cluster-autoscaler still counts"
        assert each["spec"]["containers"][0]["resources"]["requests"] == SMALL["requests"]
        assert "holdfast.dev/install" not in each["metadata"]["labels"], "it is no worker"
    fleet.warm(1, within=60)
    assert len(fleet.workers()) == 1, "placeholders are not workers"
    assert fleet.api("PUT", "/v1/pools/linux", sized(SMALL, warm=1)).status == 200
    eventually(lambda: not placeholders(fleet), 60, "off means that they go")


def test_a_worker_gets_the_room_that_a_placeholder_kept_for_it(fleet_of: Made) -> None:
    """There are two nodes with 32 CPUs. The workers only have limits, and a node has room for one of them."""
    fleet = with_headroom(fleet_of)
    large, room = {"limits": {"cpu": "20"}}, {"mode": "constant", "slots": 1}
    assert fleet.api("PUT", "/v1/pools/linux", sized(large, warm=1, headroom=room)).status == 201
    fleet.warm(1, within=60)
    node = lambda pod: pod["spec"].get("nodeName")  # noqa: E731
    (kept,) = eventually(lambda: [each for each in placeholders(fleet) if node(each)], 60, "a placeholder has its place")
    (first,) = fleet.pods()
    assert node(kept) != node(first), "it takes as much as a worker"
    assert fleet.api("PUT", "/v1/pools/linux", sized(large, warm=2, headroom=room)).status == 200
    fleet.warm(2, within=60)
    (second,) = [pod for pod in fleet.pods() if pod["metadata"]["name"] != first["metadata"]["name"]]
    assert node(second) == node(kept), "there was no other room"
    assert kept["metadata"]["uid"] not in [each["metadata"]["uid"] for each in placeholders(fleet)], "it gave way"
