"""A plan that is interrupted ends its processes, removes its files, and prints one line."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from waiting import eventually

pytestmark = pytest.mark.whole  # each plan simulates whole fleets
LONG = ["plan", "--synthetic", "steady", "--rate", "2000/h", "--length", "24h", "--whole", "--warm", "2..8/2", "--jobs", "2"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("phase", ["Postgres starts", "settings run"])
def test_an_interrupted_plan_leaves_nothing_and_prints_no_traceback(
    home: Path, number: signal.Signals, code: int, phase: str
) -> None:
    log = home / "log"
    home.chmod(0o755)  # because Postgres runs as another account when the tests run as root
    folder = home / "tmp"
    folder.mkdir()
    folder.chmod(0o755)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *LONG],
            stdout=out, stderr=out, start_new_session=True, env={**os.environ, "TMPDIR": str(folder)},
        )  # fmt: skip
    try:
        if phase == "Postgres starts":
            eventually(lambda: list(folder.glob("hf-sim-*/postgres*")), 60, "Postgres is being prepared")
        else:
            eventually(lambda: len(_planning(process.pid)) == 2, 60, "two settings run")
        started = _postgres(folder)
        os.killpg(process.pid, number)  # as a terminal does: all processes of the group receive it
        eventually(lambda: process.poll() is not None, 60, "the plan exits")
        assert process.returncode == code, log.read_text()
        assert _postgres(folder) == []
        # The interpreter's own tracker of semaphores ends when it sees that the plan has exited, so shortly after it.
        eventually(lambda: _group(process.pid) == [], 20, "no process is left")
    finally:
        process.poll()
        for each in _postgres(folder) + _group(process.pid):
            each.kill()
    assert phase == "Postgres starts" or started, "a Postgres ran"
    assert list(folder.glob("hf-sim-*")) == []
    assert log.read_text().splitlines()[-1] == "holdfast: interrupted; all processes have ended and the files are removed"
    assert "Traceback" not in log.read_text()


def _planning(pid: int) -> list[psutil.Process]:
    """Returns the processes that run settings, once they use the processor for the simulation."""
    found = []
    for each in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # programs that prepare Postgres come and go
            if "spawn_main" in " ".join(each.cmdline()) and each.cpu_times().user > 1:
                found.append(each)
    return found


def _postgres(folder: Path) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(each.info["cmdline"] or ())]


def _group(pid: int) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(each.pid) == pid and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found
