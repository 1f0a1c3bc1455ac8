"""The exit codes of `holdfast run` on a real fleet: the command's own, a shell's, and Holdfast's."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fleet import JOB, Fleet
from waiting import eventually


def test_run_exits_with_what_happened_and_a_hang_up_leaves_the_job_to_its_end(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB, "none": {**JOB, "warm": 0, "max": 0}})
    own = _run(fleet, "linux", "sh", "-c", "exit 7")
    missing = _run(fleet, "linux", "/no/such/program")
    (tmp_path / "text").write_text("not a program")
    unable = _run(fleet, "linux", str(tmp_path / "text"))
    signalled = _run(fleet, "linux", "sh", "-c", "kill -9 $$")
    refused = _run(fleet, "none", "true", options=("--deadline", "1s"))
    assert [own.returncode, missing.returncode, unable.returncode] == [7, 127, 126]
    assert [signalled.returncode, refused.returncode] == [137, 124]

    go = tmp_path / "go"
    job = f"echo before; until test -e {go}; do sleep 0.1; done; echo after; exit 5"
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "--pool", "linux", "--", "sh", "-c", job],
        env=_environment(fleet), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "before\n"
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP
    attach = err.splitlines()[-1].partition("attach again: holdfast ")[2].split()
    assert attach[:2] == ["logs", "-f"]
    go.touch()
    again = subprocess.run(
        [sys.executable, "-m", "holdfast", *attach], env=_environment(fleet), capture_output=True, text=True, timeout=60
    )
    assert again.stdout == "before\nafter\n"
    eventually(lambda: fleet.see(attach[2])["exit_code"] == 5, 20, "the job ended by itself")


def _environment(fleet: Fleet) -> dict[str, str]:
    return {**os.environ, "HOLDFAST_URL": f"http://127.0.0.1:{fleet.ports[0]}", "HOLDFAST_TOKEN": fleet.token}


def _run(fleet: Fleet, pool: str, *command: str, options: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    arguments = [sys.executable, "-m", "holdfast", "run", "--pool", pool, *options, "--", *command]
    return subprocess.run(arguments, env=_environment(fleet), capture_output=True, text=True, timeout=120)
