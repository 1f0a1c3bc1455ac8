"""`run` behaves as if the command ran on this machine: its output, its exit code, its interruption."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast, problem, unavailable

SLEEPY = ["-m", "holdfast.cli.main", "run", "--pool", "linux", "--", "sleep", "1000"]
HOLD = ["-m", "holdfast.cli.main", "claim", "--pool", "notebook", "--hold"]
HOLD_JOB = ["-m", "holdfast.cli.main", "claim", "--pool", "linux", "--hold"]


@pytest.mark.parametrize("code", [0, 3, 143])
def test_it_streams_the_output_and_exits_with_the_jobs_code(cli: Cli, server: FakeHoldfast, code: int) -> None:
    server.first_output = b"hello\xf0\x9f\x8c\x8d\n"
    server.ends_at_once = {"outcome": "completed" if code == 0 else "failed", "exit_code": code}
    result = cli("run", "--pool", "linux", "--env", "A=b=c", "--", "echo", "-n", "--pool", "x")
    assert (result.code, result.out) == (code, "hello🌍\n")
    assert server.bodies["c-1"]["command"] == ["echo", "-n", "--pool", "x"]
    assert server.bodies["c-1"]["env"] == {"A": "b=c"}


def test_without_a_command_the_pools_own_runs(cli: Cli, server: FakeHoldfast) -> None:
    server.first_output, server.ends_at_once = b"from the pool\n", {"outcome": "failed", "exit_code": 4}
    result = cli("run", "--pool", "linux", "--env", "A=b")
    assert (result.code, result.out) == (4, "from the pool\n"), result.err
    assert "command" not in server.bodies["c-1"]
    assert cli("run", "--pool", "linux", "--detach").out == "c-2\n"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"outcome": "lost", "reason": "its worker died"}, 125),
        ({"outcome": "expired", "reason": "past its longest duration"}, 124),
        ({"outcome": "refused", "reason": "protection is required"}, 124),
        ({"outcome": "cancelled", "reason": "an operator cancelled it"}, 125),
        ({"outcome": "refused", "reason": "no worker in time", "deadline_at": "2020-01-01T00:00:00Z"}, 124),
    ],
)
def test_other_ends_have_a_message_and_a_code(cli: Cli, server: FakeHoldfast, end: dict[str, Any], code: int) -> None:
    server.ends_at_once = end
    result = cli("run", "--pool", "linux", "--", "true")
    assert result.code == code
    assert f"ended as {end['outcome']}: {end['reason']}" in result.err


@pytest.mark.parametrize("keeps", [5, 6])
def test_a_truncated_output_is_reported_once(cli: Cli, server: FakeHoldfast, keeps: int) -> None:
    server.first_output, server.keeps = b"hello!", keeps
    server.ends_at_once = {"outcome": "completed", "exit_code": 0}
    ran = cli("run", "--pool", "linux", "--", "echo")
    expected = "the output of claim c-1 was truncated: only its first 5 bytes were kept\n" if keeps == 5 else ""
    assert (ran.code, ran.out, ran.err) == (0, "hello!"[:keeps], expected)
    for options in ((), ("-f",)):
        logged = cli("logs", "c-1", *options)
        assert (logged.code, logged.out, logged.err) == (0, "hello!"[:keeps], expected)


@pytest.mark.parametrize("command", [("run", "--pool", "linux", "--", "make"), ("logs", "c-1"), ("logs", "-f", "c-1")])
def test_stdout_and_stderr_go_to_the_callers_own(cli: Cli, server: FakeHoldfast, command: tuple[str, ...]) -> None:
    server.speaks_lines, server.first_output = True, b"one\n<oops\n>two\n<again\n>"
    server.ends_at_once = {"outcome": "completed", "exit_code": 0}
    if command[0] == "logs":
        cli("run", "--pool", "linux", "--", "make")
    ran = cli(*command)
    assert (ran.code, ran.out, ran.err) == (0, "one\ntwo\n", "<oops\n><again\n>")


def test_logs_of_a_long_output_shows_both_ends_and_what_is_missing(cli: Cli, server: FakeHoldfast) -> None:
    server.speaks_lines, server.first_output = True, b"first\nhal~~~~~~~lf\nlast\n"
    server.ends_at_once = {"outcome": "failed", "exit_code": 2}
    assert cli("run", "--pool", "linux", "--detach", "--", "make").code == 0
    shown = cli("logs", "c-1")
    between = "[holdfast: 7 bytes are missing here; only the beginning and the end of an output are kept]"
    assert (shown.code, shown.out.splitlines(), shown.err) == (0, ["first", "hal", between, "lf", "last"], "")


def test_input_cannot_be_passed_to_a_command_that_is_left_alone(cli: Cli, server: FakeHoldfast) -> None:
    result = cli("run", "--pool", "linux", "-i", "--detach", "--", "cat")
    assert result.code == 125
    assert "--interactive" in result.err
    assert server.claims == {}


def test_it_resumes_when_its_replica_dies(server: FakeHoldfast, tmp_path: Path) -> None:
    server.first_output = b"before "
    process = _start(server, tmp_path)
    server.until(lambda _: server.asked("GET", "/output"))
    server.kill(0)
    server.write("c-1", b"after")
    server.change("c-1", state="ended", outcome="failed", exit_code=9)
    out, _ = process.communicate(timeout=300)
    assert (process.returncode, out) == (9, b"before after")


def test_it_says_why_it_waits(server: FakeHoldfast, tmp_path: Path) -> None:
    server.serves = False
    process = _start(server, tmp_path)
    assert process.stderr is not None
    assert b"c-1 is waiting: 0 of 8 workers free; 8 held" in process.stderr.readline()
    server.change("c-1", **server.active(1, leased=False))
    server.change("c-1", state="ended", outcome="completed", exit_code=0)
    assert process.wait(300) == 0


def test_ctrl_c_cancels_the_claim_and_waits_for_its_end(server: FakeHoldfast, tmp_path: Path) -> None:
    process = _start(server, tmp_path)
    server.until(lambda _: server.asked("GET", "/output"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert server.claims["c-1"]["outcome"] == "cancelled"
    assert b"Traceback" not in err


def test_a_second_ctrl_c_leaves(server: FakeHoldfast, tmp_path: Path) -> None:
    async def swallow(_: Any) -> Any:
        return problem(500, "broken", "not today")

    server.fail_next("POST", "/cancel", swallow)
    process = _start(server, tmp_path)
    server.until(lambda _: server.asked("GET", "/output"))
    process.send_signal(signal.SIGINT)
    server.until(lambda _: server.asked("POST", "/cancel"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"left claim c-1; it may go on" in err
    assert server.claims["c-1"]["state"] == "active"


def test_detach_prints_the_id(cli: Cli, server: FakeHoldfast) -> None:
    result = cli("run", "--pool", "linux", "--detach", "--key", "nightly", "--", "make")
    assert (result.code, result.out) == (0, "c-1\n")
    assert server.bodies["c-1"]["key"] == "nightly"


def test_secrets_come_from_files_and_are_never_printed(cli: Cli, server: FakeHoldfast, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("file-s3cret\n")
    server.ends_at_once = {"outcome": "completed", "exit_code": 0}
    given = ("--secret", "A=inline-s3cret", "--secret", f"B=@{tmp_path / 'key'}")
    assert cli("run", "--pool", "linux", *given, "--", "true").code == 0
    assert server.bodies["c-1"]["secrets"] == {"A": "inline-s3cret", "B": "file-s3cret"}

    async def quoting(_: Any) -> Any:  # a server whose error repeats the refused value
        bad = [{"field": "secrets.A", "reason": "'inline-s3cret' is too short, like 'file-s3cret'"}]
        return problem(422, "invalid", "bad: inline-s3cret", bad)

    server.fail_next("POST", "/claims", quoting)
    result = cli("run", "--pool", "linux", *given, "--", "true")
    assert result.code == 125
    assert "secrets.A" in result.err
    assert "s3cret" not in result.err + result.out


@pytest.mark.parametrize("short", ["c", "2", "-", "lost", "worker"])
def test_a_short_secret_is_not_confirmed_and_ids_stay_whole(cli: Cli, server: FakeHoldfast, short: str) -> None:
    server.ends_at_once = {"outcome": "lost", "reason": "its worker died"}
    plain = cli("run", "--pool", "linux", "--", "true")
    with_secret = cli("run", "--pool", "linux", "--secret", f"PIN={short}", "--", "true")
    assert plain.err == "claim c-1 ended as lost: its worker died\n"
    assert with_secret.err == plain.err.replace("c-1", "c-2")  # nothing shows that the secret occurs in this line
    assert (plain.code, plain.out) == (with_secret.code, with_secret.out)


@pytest.mark.parametrize("bad", ["PIN=@s3cret", "PIN=\udcff"])
def test_a_short_secret_that_cannot_be_sent_is_not_shown(cli: Cli, server: FakeHoldfast, bad: str) -> None:
    result = cli("run", "--pool", "linux", "--secret", bad, "--", "true")
    assert result.code == 125
    assert "--secret PIN: " in result.err
    assert "s3cret" not in result.err
    assert "udcff" not in result.err
    assert "bug" not in result.err
    assert server.claims == {}


@pytest.mark.parametrize("bad", ["s3cret", "=s3cret", "NOT-A-NAME=s3cret", "A=@/nowhere/at-all"])
def test_a_wrong_secret_is_refused_without_showing_it(cli: Cli, server: FakeHoldfast, bad: str) -> None:
    result = cli("run", "--pool", "linux", "--secret", bad, "--", "true")
    assert result.code == 125
    assert "--secret" in result.err
    assert "s3cret" not in result.err
    assert server.claims == {}


def _start(server: FakeHoldfast, home: Path, command: list[str] = SLEEPY) -> "subprocess.Popen[bytes]":
    env = {
        **os.environ,
        "HOLDFAST_URL": ",".join(server.urls),
        "HOLDFAST_TOKEN": TOKEN,
        "XDG_CONFIG_HOME": str(home),
    }
    return subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def test_hold_renews_until_ctrl_c_and_then_releases(server: FakeHoldfast, tmp_path: Path) -> None:
    server.lease = 1.0
    process = _start(server, tmp_path, HOLD)
    server.until(lambda _: server.asked("POST", "/renew"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert b"credential-1" in out
    assert server.claims["c-1"]["outcome"] == "released"
    assert b"claim c-1 released" in err


def test_a_release_that_was_not_stored_is_not_called_one(server: FakeHoldfast, tmp_path: Path) -> None:
    process = _start(server, tmp_path, HOLD)
    assert process.stderr is not None
    assert b"Ctrl-C releases it" in process.stderr.readline()
    server.fail_next("POST", "/release", *[unavailable(60)] * 10)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    result = err.decode().splitlines()[-1]
    assert re.fullmatch(
        r"holdfast: claim c-1: the release was not stored \(the database is away\); "
        r"its lease ends it, not before (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d",
        result,
    )
    assert b"c-1 released" not in err
    assert server.claims["c-1"]["state"] == "active"


@pytest.mark.parametrize(("outcome", "code"), [("completed", 0), ("failed", 1), ("expired", 1)])
def test_a_claim_that_had_ended_before_its_release_is_reported_as_it_ended(
    server: FakeHoldfast, tmp_path: Path, outcome: str, code: int
) -> None:
    process = _start(server, tmp_path, HOLD)
    assert process.stderr is not None
    process.stderr.readline()
    server.change("c-1", state="ended", outcome=outcome, reason="so it was")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert f"had already ended as {outcome}".encode() in err
    assert b"released" not in err


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        ("completed", 0, "claim c-1 ended as completed"),
        ("failed", 1, "holdfast: claim c-1 ended as failed"),
        ("cancelled", 1, "holdfast: claim c-1 is lost: it ended as cancelled: so it was"),
    ],
)
def test_whoever_holds_a_job_is_told_when_it_ends(
    server: FakeHoldfast, tmp_path: Path, outcome: str, code: int, message: str
) -> None:
    process = _start(server, tmp_path, HOLD_JOB)
    assert process.stderr is not None
    assert b"holding w-1" in process.stderr.readline()
    server.change("c-1", state="ended", outcome=outcome, reason="so it was")
    _, err = process.communicate(timeout=300)  # without Ctrl-C
    assert (process.returncode, err.decode()) == (code, f"{message}\n")


def test_holding_a_job_that_was_quicker_than_the_question_is_no_failure(cli: Cli, server: FakeHoldfast) -> None:
    server.ends_at_once = {"outcome": "completed", "exit_code": 0}
    result = cli("claim", "--pool", "linux", "--hold")
    assert (result.code, result.err) == (0, "claim c-1 ended as completed\n")
