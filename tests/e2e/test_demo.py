"""The guided minute: it counts nothing wrong, and leaves neither a process nor a file."""

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

from fleet import eventually
from holdfast.demo import machine

COUNTER = re.compile(r"^ +(\d+) lost, (\d+) doubled, (\d+) leaked$", re.MULTILINE)


@pytest.fixture
def folder() -> Iterator[Path]:
    """The demo's TMPDIR, and so a name that everything it starts carries."""
    path = Path(tempfile.mkdtemp(prefix="hf-"))
    path.chmod(0o755)
    yield path
    machine.end_all(path)
    shutil.rmtree(path, ignore_errors=True)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.demo", *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left(folder: Path) -> list[object]:
    return [*machine.processes(folder), *folder.iterdir()]


def test_the_demo_counts_nothing_wrong_and_leaves_nothing(folder: Path) -> None:
    demo = start(folder, "--calm", "3", "--outage", "8")
    said, _ = demo.communicate(timeout=170)
    counted = [tuple(map(int, found)) for found in COUNTER.findall(said)]
    assert counted == [(0, 0, 0)] * 6, said
    assert demo.returncode == 0, said
    assert "\033" not in said, "colours are for terminals"
    assert not left(folder)


@pytest.mark.parametrize("step", ["1  A fleet starts", "4  Postgres is stopped"])
def test_an_interrupted_demo_leaves_nothing(folder: Path, step: str) -> None:
    demo = start(folder, "--calm", "1")
    assert demo.stdout is not None
    for line in demo.stdout:
        if step in line:
            break
    if step.startswith("1"):
        eventually(lambda: len(machine.processes(folder)) > 1, 30, "something of the fleet runs")
    demo.send_signal(signal.SIGINT)
    said = demo.stdout.read()
    assert demo.wait(60) == 130, said
    assert not left(folder)
