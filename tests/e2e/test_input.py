"""What a user sends to a job: `run -i` passes stdin to the command, and without -i input is refused and not swallowed."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet import JOB, Fleet
from waiting import eventually

HINT = "use -i to pass it, or < /dev/null to run without it"


def test_a_user_pipes_input_through_a_job(make_fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": {**JOB, "warm": 2}})
    assert run(fleet, "-i", "--", "sort", input=b"pear\napple\n").stdout == b"apple\npear\n"
    empty = run(fleet, "-i", "--", "cat", stdin=subprocess.DEVNULL)
    assert (empty.returncode, empty.stdout) == (0, b""), "the end of the input closes the command's stdin"
    (tmp_path / "file").write_bytes(b"from a file\n")
    with (tmp_path / "file").open("rb") as file:
        assert run(fleet, "-i", "--", "cat", stdin=file).stdout == b"from a file\n"
    first = run(fleet, "-i", "--", "head", "-c", "3", input=b"abc" + bytes(5_000_000))
    assert (first.returncode, first.stdout) == (0, b"abc"), "a command may read less than it is sent"
    assert fleet.sql("SELECT count(*) AS n FROM holdfast.claim_input_piece")[0]["n"] == 0
    with_payload = fleet.api("POST", "/v1/claims", {"pool": "linux", "command": ["cat"], "stdin": True, "retry": "lost"})
    assert with_payload.status == 422
    assert "stdin" in with_payload.raw.decode()


def test_a_large_input_arrives_whole_though_a_replica_dies_meanwhile(make_fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    data = random.Random(1).randbytes(6_000_000)
    go = tmp_path / "go"
    # The command reads a part, waits for the test, and reads the rest. Meanwhile the caller has to wait for it.
    job = f"head -c 1000000 > part; echo part; until test -e {go}; do sleep 0.05; done; cat part - | sha256sum"
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "--pool", "linux", "-i", "--", "sh", "-c", job],
        env=environment(fleet), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    (tmp_path / "data").write_bytes(data)
    assert process.stdin is not None
    assert process.stdout is not None
    feeding = subprocess.Popen(["cat", str(tmp_path / "data")], stdout=process.stdin)
    process.stdin.close()
    process.stdin = None
    assert process.stdout.readline() == b"part\n"
    waiting = eventually(lambda: waits(fleet) > 1_000_000 and waits(fleet), 30, "the store is full of input")
    assert waiting <= 1024 * 1024
    assert feeding.poll() is None, "the user's program waits, because the command does"
    fleet.kill(0)
    go.touch()
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, f"{hashlib.sha256(data).hexdigest()}  -\n".encode()), err
    assert feeding.wait(30) == 0


def test_input_without_i_is_refused_with_a_hint_and_never_breaks_a_run_that_has_none(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": {**JOB, "warm": 2}})
    refused = run(fleet, "--", "cat", input=b"data\n")
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert HINT in refused.stderr.decode()
    (tmp_path / "file").write_bytes(b"from a file\n")
    with (tmp_path / "file").open("rb") as file:
        assert run(fleet, "--", "cat", stdin=file).returncode == 125
    assert fleet.api("GET", "/v1/claims").json["items"] == [], "nothing was claimed"

    fine: list[dict[str, Any]] = [{"stdin": subprocess.DEVNULL}, {"input": b""}, {"preexec_fn": lambda: os.close(0)}]
    for stdin in fine:
        ran = run(fleet, "--", "cat", **stdin)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b""), stdin
    reading, writing = os.pipe()  # open and never written to, as some CI systems do
    ran = run(fleet, "--", "echo", "ran", stdin=reading)
    os.close(reading)
    os.close(writing)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"ran\n", b"")
    # A CI system that pipes the whole script into a shell: the rest of the script is not for us.
    script = f"{sys.executable} -m holdfast run --pool linux -- echo one\necho two\n".encode()
    shell = subprocess.run(["sh"], input=script, env=environment(fleet), capture_output=True, timeout=120)
    assert (shell.returncode, shell.stdout) == (0, b"one\ntwo\n")
    loop = f"while read word; do {sys.executable} -m holdfast run --pool linux -- echo $word; done"
    shell = subprocess.run(["sh", "-c", loop], input=b"one\ntwo\n", env=environment(fleet), capture_output=True, timeout=120)
    assert (shell.returncode, shell.stdout) == (0, b"one\ntwo\n")
    assert shell.stderr.decode().count(HINT) == 1, "after the first word there is input left, and after the second there is none"


def test_input_that_arrives_late_without_i_is_reported(make_fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    job = f"echo started; until test -e {tmp_path}/go; do sleep 0.05; done"
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "--pool", "linux", "--", "sh", "-c", job],
        env=environment(fleet), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"started\n"
    process.stdin.write(b"too late\n")
    process.stdin.flush()
    assert HINT in process.stderr.readline().decode()
    (tmp_path / "go").touch()
    assert process.wait(60) == 0


def test_a_user_repeats_a_run_with_a_key_and_the_command_reads_its_input_once(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    data = random.Random(1).randbytes(100_000)
    job = ["--key", "K", "-i", "--", "sh", "-c", f"until test -e {tmp_path}/go; do sleep 0.05; done; sha256sum"]
    command = [sys.executable, "-m", "holdfast", "run", "--pool", "linux", *job]
    pipe = subprocess.PIPE
    first = subprocess.Popen(command, env=environment(fleet), stdin=pipe, stdout=pipe, stderr=pipe)
    assert first.stdin is not None
    first.stdin.write(data[:50_000])
    first.stdin.flush()
    eventually(lambda: sent(fleet) == (50_000, False), 30, "a part of the input was sent")
    first.kill()
    first.communicate(timeout=30)
    again = subprocess.Popen(command, env=environment(fleet), stdin=pipe, stdout=pipe, stderr=pipe)
    other = subprocess.Popen(command, env=environment(fleet), stdin=pipe, stdout=pipe, stderr=pipe)
    assert again.stdin is not None
    again.stdin.write(data)
    again.stdin.close()
    again.stdin = None
    eventually(lambda: sent(fleet) == (100_000, True), 30, "all of the input was sent")
    assert other.stdin is not None
    assert other.stderr is not None
    other.stdin.write(b"other input")
    other.stdin.close()
    other.stdin = None
    assert "its input could not be sent: the input cannot end after 11 bytes" in other.stderr.readline().decode()
    (tmp_path / "go").touch()
    out, err = again.communicate(timeout=60)
    assert (again.returncode, out) == (0, f"{hashlib.sha256(data).hexdigest()}  -\n".encode()), err
    assert other.communicate(timeout=60)[0] == out
    assert other.returncode == 125


def sent(fleet: Fleet) -> tuple[int, bool] | None:
    rows = fleet.sql("SELECT stored, complete FROM holdfast.claim_input")
    return (rows[0]["stored"], rows[0]["complete"]) if rows else None


def waits(fleet: Fleet) -> int:
    return int(fleet.sql("SELECT coalesce(sum(octet_length(data)), 0) AS n FROM holdfast.claim_input_piece")[0]["n"])


def environment(fleet: Fleet) -> dict[str, str]:
    urls = ",".join(f"http://127.0.0.1:{port}" for port in fleet.ports)
    return {**os.environ, "HOLDFAST_URL": urls, "HOLDFAST_TOKEN": fleet.token}


def run(fleet: Fleet, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "holdfast", "run", "--pool", "linux", *arguments]
    return subprocess.run(command, env=environment(fleet), capture_output=True, timeout=120, **options)
