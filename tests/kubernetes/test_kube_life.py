"""The whole way on a real API server: a warm pod, a claim, its command in an unmodified image, its result, its end."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kube_fleet import KubeFleet, job

from kube.access import Access
from waiting import eventually

Made = Callable[..., KubeFleet]


@pytest.fixture
def fleet_of(control_plane: Access, namespace: str, make_nodes: Callable[..., Any]) -> Iterator[Made]:
    made: list[KubeFleet] = []
    kubelet = make_nodes(control_plane, namespace, nodes=2)

    def make(**options: Any) -> KubeFleet:
        fleet = KubeFleet(control_plane, namespace, kubelet, **options)
        made.append(fleet)
        return fleet.__enter__()

    yield make
    for fleet in made:
        fleet.__exit__()


def test_a_claims_command_runs_in_an_unmodified_image_and_its_status_is_the_result(fleet_of: Made) -> None:
    fleet = fleet_of(pools={"linux": job(warm=2)})
    fleet.warm(2, within=60)
    said = fleet.claim("linux", command=["sh", "-c", "echo $GREETING from $HOLDFAST_CLAIM; exit 3"], env={"GREETING": "hello"})
    ended = fleet.see(said["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], ended["protected"]) == ("failed", 3, True), fleet.said()
    output = fleet.api("GET", f"/v1/claims/{said['id']}/output").raw
    assert output == f"hello from {said['id']}\n".encode()
    fleet.warm(2, within=60)
    eventually(lambda: fleet.pod(ended["worker"]) is None or (fleet.workers() and True), 30, "its slot is free")
