"""Fixtures for tests on Kubernetes: a namespace with a node in it for each test, and fleets."""

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from flaky_api import FlakyApi
from kube_fleet import KubeFleet, Made, account
from kube_stage import KubeStage

from holdfast_testcluster.access import Access
from holdfast_testcluster.control_plane import ControlPlane


@pytest.fixture
def stage(control_plane: Access, namespace: str, make_nodes: Callable[..., Any]) -> KubeStage:
    return KubeStage(control_plane, namespace, make_nodes(control_plane, namespace, nodes=1))


@pytest.fixture
def flaky(control_plane: Access, namespace: str, tmp_path: Path) -> Iterator[FlakyApi]:
    """Starts a proxy to the API server with the rights of an installation. The test can make it fail."""
    with FlakyApi(control_plane, account(control_plane, namespace, "one"), tmp_path) as flaky:
        yield flaky


@pytest.fixture
def own_fleet(
    own_control_plane: ControlPlane, make_namespace: Callable[..., str], make_nodes: Callable[..., Any]
) -> Iterator[KubeFleet]:
    """Starts a fleet on its own control plane, for tests that change the cluster as a whole."""
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


@pytest.fixture
def fleet(fleet_of: Made) -> KubeFleet:
    """Returns a fleet in a cluster that has the CRD of WorkerPool."""
    made = fleet_of()
    made.access.kubectl("apply", "--server-side", "-f", str(files("holdfast.install") / "crd.yaml"))
    made.access.kubectl("wait", "--for=condition=Established", "crd/workerpools.holdfast.dev", "--timeout=30s")
    return made
