"""What tests on real Kubernetes share: one control plane a run, a fresh namespace for each test, nodes that serve it alone.

A `conftest.py` elsewhere gets them by `from kube.fixtures import *  # noqa: F403`.
"""

import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kube import binaries
from kube.access import Access
from kube.control_plane import ControlPlane
from kube.keeper import shared_control_plane
from kube.kubelet_process import KubeletProcess
from kube.node import NAMESPACE_KEY

__all__ = ["control_plane", "make_namespace", "make_nodes", "namespace", "own_control_plane"]
REQUIRED = "HOLDFAST_REQUIRE_KUBE"
_numbers = itertools.count(1)


def want_binaries() -> None:
    """Skip the test when there are none, or fail it where they are required."""
    if lacking := binaries.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(lacking)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """One for all test processes of a run. Nobody may stop it: who wants that takes `own_control_plane`."""
    want_binaries()
    base = tmp_path_factory.getbasetemp()
    with shared_control_plane(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as access:
        yield access


@pytest.fixture
def own_control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """One for this test alone, whose pieces it may stop. Costs six seconds."""
    want_binaries()
    with ControlPlane(tmp_path / "control-plane") as plane:
        yield plane
    shutil.rmtree(tmp_path / "control-plane" / "etcd", ignore_errors=True)


@pytest.fixture
def make_namespace() -> Iterator[Callable[..., str]]:
    """`make_namespace(access)`: a fresh one whose pods go to nodes made for it, deleted in the background after the test."""
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
        with contextlib.suppress(OSError):  # its control plane may be gone
            access.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def namespace(control_plane: Access, make_namespace: Callable[..., str]) -> str:
    """A fresh one on the shared control plane."""
    return make_namespace(control_plane)


@pytest.fixture
def make_nodes() -> Iterator[Callable[..., KubeletProcess]]:
    """`make_nodes(access, namespace, nodes=3, images={…})`: started, and ended with the test before its namespace is deleted."""
    with contextlib.ExitStack() as stack:

        def make(access: Access, namespace: str, **options: Any) -> KubeletProcess:
            folder = Path(tempfile.mkdtemp(prefix="hf-kubelet-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            return stack.enter_context(KubeletProcess(access, folder, namespace=namespace, **options))

        yield make
