"""`make kube-up` starts a usable cluster, and prints clearly what is missing on a machine without binaries."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_fixtures import REQUIRED, want_binaries
from demos import left, own_folder, start
from waiting import eventually

pytestmark = pytest.mark.whole  # each test starts a control plane

TESTS = Path(__file__).parents[1]
UP = re.compile(r"^Kubernetes \S+ with 1 nodes is up", re.MULTILINE)
NEEDS_A_CLUSTER = "testcluster/test_containers.py"


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_folder() as path:
        yield path


def test_the_commands_that_kube_up_prints_work_and_ctrl_c_ends_everything(folder: Path) -> None:
    want_binaries()
    cluster = start("holdfast_testcluster", folder, "up", "--nodes", "1", cwd=TESTS.parent / "testcluster")
    assert cluster.stdout is not None
    printed = ""
    for line in cluster.stdout:
        printed += line
        if "Ctrl-C" in line:
            break
    assert UP.search(printed), printed
    export, path, nodes, run, logs = (line.strip() for line in printed.splitlines() if line.startswith("  "))
    assert "Ready" in _typed(export, path, nodes)
    assert "created" in _typed(export, path, run)
    eventually(lambda: "hello from" in _typed(export, path, logs), 60, "the pod runs, and its output can be read")
    cluster.send_signal(signal.SIGINT)
    rest = cluster.stdout.read()
    assert cluster.wait(300) == 0, rest
    assert not left(folder)


def _typed(*lines: str) -> str:
    shell = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=300, check=False)
    return shell.stdout + shell.stderr


def _tests_without_binaries(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs tests on a machine where nothing was built."""
    bare = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_")) and key != REQUIRED}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", NEEDS_A_CLUSTER, *arguments]
    bare |= {"KUBEBUILDER_ASSETS": "", "HOLDFAST_KUBE_CACHE": str(folder / "empty"), **env}
    return subprocess.run(command, cwd=TESTS, env=bare, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("together", [(), ("-n", "2")])
def test_without_binaries_one_loud_line_names_make_kube(folder: Path, together: tuple[str, ...]) -> None:
    run = _tests_without_binaries(folder, *together)
    printed = run.stdout + run.stderr
    loud = [line for line in printed.splitlines() if line.startswith("!!!")]
    assert len(loud) == 1, printed
    assert re.fullmatch(r"!!! \d+ KUBERNETES TESTS DO NOT RUN: no .* run `make kube` .*", loud[0])
    assert run.returncode == 0
    assert re.search(r"\d+ skipped", printed), "and each shows it"
    assert "passed" not in printed


def test_where_they_are_required_a_run_without_them_fails(folder: Path) -> None:
    run = _tests_without_binaries(folder, "-x", **{REQUIRED: "1"})
    assert run.returncode == 1, run.stdout
    assert "run `make kube`" in run.stdout
    assert "skipped" not in run.stdout
