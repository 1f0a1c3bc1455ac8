"""Fixtures for tests on real Kubernetes: one control plane per run, a fresh namespace per test, nodes for that namespace only."""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_testcluster import binaries
from holdfast_testcluster.access import Access
from holdfast_testcluster.control_plane import ControlPlane
from holdfast_testcluster.keeper import shared_control_plane
from holdfast_testcluster.kubelet_process import KubeletProcess
from holdfast_testcluster.node import NAMESPACE_KEY

__all__ = ["control_plane", "make_namespace", "make_nodes", "namespace", "own_control_plane"]
OURS = {"control_plane", "own_control_plane"}
REQUIRED = "HOLDFAST_REQUIRE_KUBE"  # set to 1 where a run that skips these tests must fail
_numbers = itertools.count(1)


def skip_without_binaries(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips the Kubernetes tests, with one warning, if binaries are missing. Does nothing if the tests are required."""
    lacking = binaries.missing()
    ours = [each for each in items if OURS & set(getattr(each, "fixturenames", ()))]
    if lacking is None or not ours or _required():
        return
    for each in ours:
        each.add_marker(pytest.mark.skip(reason=lacking))
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            os.write(2, f"\n!!! {len(ours)} KUBERNETES TESTS DO NOT RUN: {lacking}\n\n".encode())


def want_binaries() -> None:
    if lacking := binaries.missing():
        (pytest.fail if _required() else pytest.skip)(lacking)


def _required() -> bool:
    return os.environ.get(REQUIRED) == "1"


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """Returns the control plane that all test processes of a run share. Tests that stop parts of it use `own_control_plane`."""
    want_binaries()
    base = tmp_path_factory.getbasetemp()
    with shared_control_plane(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as access:
        yield access


@pytest.fixture
def own_control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Returns a control plane for this test only, so that the test can stop parts of it. It takes six seconds to start."""
    want_binaries()
    with ControlPlane(tmp_path / "control-plane") as plane:
        yield plane
    shutil.rmtree(tmp_path / "control-plane" / "etcd", ignore_errors=True)


@pytest.fixture
def make_namespace() -> Iterator[Callable[..., str]]:
    """`make_namespace(access)` creates a namespace whose pods run on its own nodes. It is deleted after the test."""
    made: list[tuple[Access, str]] = []

    def make(access: Access) -> str:
        name = f"t{os.getpid()}-{next(_numbers)}"
        tolerations = [{"key": NAMESPACE_KEY, "operator": "Equal", "value": name, "effect": "NoSchedule"}]
        annotations = {
            "scheduler.alpha.kubernetes.io/node-selector": f"{NAMESPACE_KEY}={name}",
            "scheduler.alpha.kubernetes.io/defaultTolerations": json.dumps(tolerations),
        }
        access.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name, "annotations": annotations}})
        made.append((access, name))
        return name

    yield make
    for access, name in made:
        with contextlib.suppress(OSError):  # the control plane may have stopped already
            access.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def namespace(control_plane: Access, make_namespace: Callable[..., str]) -> str:
    """Returns a fresh namespace on the shared control plane."""
    return make_namespace(control_plane)


@pytest.fixture
def make_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., KubeletProcess]]:
    """`make_nodes(access, namespace, nodes=3, images={…})` starts nodes and ends them before the namespace is deleted."""
    with contextlib.ExitStack() as stack:

        def make(access: Access, namespace: str, **options: Any) -> KubeletProcess:
            folder = tmp_path_factory.mktemp("nodes")
            stack.callback(shutil.rmtree, folder / "pods", ignore_errors=True)
            return stack.enter_context(KubeletProcess(access, folder, namespace=namespace, **options))

        yield make
