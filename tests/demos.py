"""Helpers for the tests of both demos: they run a demo, check what it counted, and find what it left behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.demo import machine
from waiting import eventually

COUNTER = re.compile(r"^ +(\d+) lost, (\d+) doubled, (\d+) leaked$", re.MULTILINE)


@contextmanager
def own_folder() -> Iterator[Path]:
    """Creates the demo's TMPDIR. Every process of the demo has this path in its environment, so that the test can find it."""
    path = Path(tempfile.mkdtemp(prefix="hf-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        machine.end_all(path)
        shutil.rmtree(path, ignore_errors=True)


def start(module: str, folder: Path, *arguments: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(folder), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left(folder: Path) -> list[object]:
    return [*machine.processes(folder), *folder.iterdir()]


def counts_nothing_wrong(demo: subprocess.Popen[str], folder: Path, steps: int, within: float) -> str:
    """Fails unless the demo counted nothing lost, doubled or leaked, and left nothing behind. Returns its output."""
    output, _ = demo.communicate(timeout=within)
    counted = [tuple(map(int, found)) for found in COUNTER.findall(output)]
    assert counted == [(0, 0, 0)] * steps, output
    assert demo.returncode == 0, output
    assert "\033" not in output, "colours must be printed only on a terminal"
    assert not left(folder)
    return output


def leaves_nothing_when_interrupted(demo: subprocess.Popen[str], folder: Path, step: str) -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if step in line:
            break
    if step.startswith("1"):
        eventually(lambda: len(machine.processes(folder)) > 1, 30, "a process of the demo runs")
    demo.send_signal(signal.SIGINT)
    output = demo.stdout.read()
    assert demo.wait(300) == 130, output
    assert not left(folder)
