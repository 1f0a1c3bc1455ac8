"""What a user sees of a job's output on a real fleet: both ends of a long one, stdout and stderr apart, live and afterwards."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet import JOB, Fleet
from waiting import eventually

LINES = 9_000_000  # 80 MB, more than the 64 MB that are kept


def test_a_user_who_reads_the_log_of_a_very_long_output_sees_its_beginning_and_its_end(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    claim = fleet.claim("linux", wait="30s", command=["seq", "-f", "%08.0f", str(LINES)])
    eventually(lambda: fleet.see(claim["id"], wait="60s")["state"] == "ended", 120, "the job ended")
    shown = holdfast(fleet, "logs", claim["id"])
    lines = shown.stdout.splitlines()
    assert (lines[0], lines[-1], shown.stderr) == ("00000001", f"{LINES:08d}", "")
    [between] = [number for number, line in enumerate(lines) if not line.isdigit()]
    missing = int(lines[between].removeprefix("[holdfast: ").split()[0])
    kept = 9 * LINES - missing
    assert 56 * 1024**2 < kept <= 64 * 1024**2
    assert 0 <= len(shown.stdout) - len(lines[between]) - kept <= 2, "nothing else is in it, but perhaps a newline"
    raw = fleet.api("GET", f"/v1/claims/{claim['id']}/output").raw.decode()
    assert (raw[:9], raw[-9:]) == ("00000001\n", f"{LINES:08d}\n")
    assert f"[holdfast: {missing} bytes are missing here" in raw


def test_a_user_who_follows_a_job_sees_every_byte_of_an_output_that_is_not_kept_whole(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    command = ["head", "-c", str(3 * 64 * 1024**2), "/dev/zero"]  # faster than any reader
    with (tmp_path / "out").open("wb") as out:
        arguments = [sys.executable, "-m", "holdfast", "run", "--pool", "linux", "--", *command]
        ran = subprocess.run(arguments, env=environment(fleet), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert (tmp_path / "out").stat().st_size == 3 * 64 * 1024**2


def test_stdout_and_stderr_of_a_job_stay_apart_and_in_order(make_fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    # Each line is printed only after the one before was seen, so their order is certain.
    step = f"until test -e {tmp_path}/$1; do sleep 0.02; done"
    job = f"wait_for() {{ {step}; }}; echo one; wait_for 1; echo oops >&2; wait_for 2; echo two; wait_for 3; echo again >&2"
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "--pool", "linux", "--", "sh", "-c", job],
        env=environment(fleet), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "one\n"
    (tmp_path / "1").touch()
    assert process.stderr.readline() == "oops\n"
    fleet.kill(0)  # the reader continues at the other replica, in the middle of the output
    (tmp_path / "2").touch()
    assert process.stdout.readline() == "two\n"
    (tmp_path / "3").touch()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert err.endswith("again\n")
    [claim] = fleet.api("GET", "/v1/claims", replica=1).json["items"]
    again = holdfast(fleet, "logs", claim["id"], replica=1)
    assert (again.stdout, again.stderr) == ("one\ntwo\n", "oops\nagain\n")
    assert fleet.api("GET", f"/v1/claims/{claim['id']}/output", replica=1).raw == b"one\noops\ntwo\nagain\n"


def environment(fleet: Fleet) -> dict[str, str]:
    urls = ",".join(f"http://127.0.0.1:{port}" for port in fleet.ports)
    return {**os.environ, "HOLDFAST_URL": urls, "HOLDFAST_TOKEN": fleet.token}


def holdfast(fleet: Fleet, *arguments: str, replica: int = 0, **options: Any) -> "subprocess.CompletedProcess[str]":
    env = {**environment(fleet), "HOLDFAST_URL": f"http://127.0.0.1:{fleet.ports[replica]}"}
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], env=env, capture_output=True, text=True, timeout=300, **options
    )
