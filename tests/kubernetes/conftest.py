"""A namespace with a node in it, for each test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kube_fleet import KubeFleet, Made
from kube_stage import KubeStage

from kube.access import Access
from kube.control_plane import ControlPlane
from kube.fixtures import *  # noqa: F403


@pytest.fixture
def stage(control_plane: Access, namespace: str, make_nodes: Callable[..., Any]) -> KubeStage:
    return KubeStage(control_plane, namespace, make_nodes(control_plane, namespace, nodes=1))


@pytest.fixture
def own_fleet(
    own_control_plane: ControlPlane, make_namespace: Callable[..., str], make_nodes: Callable[..., Any]
) -> Iterator[KubeFleet]:
    """A fleet on a control plane of its own: for tests that change the cluster as a whole."""
    namespace = make_namespace(own_control_plane)
    with KubeFleet(own_control_plane, namespace, make_nodes(own_control_plane, namespace, nodes=2)) as fleet:
        yield fleet


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
