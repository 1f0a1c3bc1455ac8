"""The guided minute on a cluster: it counts nothing wrong, and leaves neither a process nor a file."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.demo import machine
from kube.fixtures import want_binaries
from waiting import eventually

TESTS = Path(__file__).parents[1]
COUNTER = re.compile(r"^ +(\d+) lost, (\d+) doubled, (\d+) leaked$", re.MULTILINE)
STEPS = 8


@pytest.fixture
def folder() -> Iterator[Path]:
    """The demo's TMPDIR, and so a name that everything it starts carries."""
    path = Path(tempfile.mkdtemp(prefix="hf-"))
    path.chmod(0o755)
    yield path
    machine.end_all(path)
    shutil.rmtree(path, ignore_errors=True)


def start(folder: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kube_demo", *arguments],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": "kubernetes", "TMPDIR": str(folder), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left(folder: Path) -> list[object]:
    return [*machine.processes(folder), *folder.iterdir()]


@pytest.mark.timeout(400)
def test_the_demo_counts_nothing_wrong_and_leaves_nothing(folder: Path) -> None:
    want_binaries()
    demo = start(folder, "--calm", "3")
    said, _ = demo.communicate(timeout=380)
    counted = [tuple(map(int, found)) for found in COUNTER.findall(said)]
    assert counted == [(0, 0, 0)] * STEPS, said
    assert demo.returncode == 0, said
    assert "drained" in said
    assert "\033" not in said, "colours are for terminals"
    assert not left(folder)


@pytest.mark.parametrize("step", ["1  A cluster starts", "3  Jobs and sessions flow"])
def test_an_interrupted_demo_leaves_nothing(folder: Path, step: str) -> None:
    want_binaries()
    demo = start(folder)
    assert demo.stdout is not None
    for line in demo.stdout:
        if step in line:
            break
    if step.startswith("1"):
        eventually(lambda: len(machine.processes(folder)) > 1, 30, "something of the cluster runs")
    demo.send_signal(signal.SIGINT)
    said = demo.stdout.read()
    assert demo.wait(60) == 130, said
    assert not left(folder)


def test_without_a_control_plane_it_says_what_to_do_and_starts_nothing(folder: Path) -> None:
    demo = start(folder, KUBEBUILDER_ASSETS="", HOLDFAST_KUBE_CACHE=str(folder / "empty"))
    said, _ = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert "run `make kube`" in said
    assert len(said.splitlines()) == 1
    assert not left(folder)
