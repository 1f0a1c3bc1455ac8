"""The demo on a cluster counts nothing lost, doubled or leaked, and leaves neither a process nor a file behind."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_fixtures import want_binaries
from demos import counts_nothing_wrong, leaves_nothing_when_interrupted, left, own_folder, start

pytestmark = pytest.mark.whole  # each test starts a control plane

TESTS = Path(__file__).parents[1]


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_folder() as path:
        yield path


def begin(folder: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    return start("kube_demo", folder, *arguments, cwd=TESTS, PYTHONPATH="kubernetes:../testcluster", **env)


@pytest.mark.timeout(400)
def test_the_demo_counts_nothing_wrong_and_leaves_nothing(folder: Path) -> None:
    want_binaries()
    printed = counts_nothing_wrong(begin(folder, "--calm", "3"), folder, steps=8, within=380)
    assert "drained" in printed


@pytest.mark.parametrize("step", ["1  A cluster starts", "3  Jobs and sessions flow"])
def test_an_interrupted_demo_leaves_nothing(folder: Path, step: str) -> None:
    want_binaries()
    leaves_nothing_when_interrupted(begin(folder), folder, step)


def test_without_a_control_plane_the_demo_prints_what_to_do_and_starts_nothing(folder: Path) -> None:
    demo = begin(folder, KUBEBUILDER_ASSETS="", HOLDFAST_KUBE_CACHE=str(folder / "empty"))
    printed, _ = demo.communicate(timeout=300)
    assert demo.returncode == 1
    assert "run `make kube`" in printed
    assert len(printed.splitlines()) == 1
    assert not left(folder)
