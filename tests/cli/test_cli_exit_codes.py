"""Exit codes: a script can tell what Holdfast did from what the command did (docs/cli.md)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_results import Cli
from fake_holdfast import TOKEN, FakeHoldfast

from holdfast.cli.exit_codes import TABLE

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
SLEEPY = ["run", "--pool", "linux", "--", "sleep", "1000"]


@pytest.mark.parametrize("arguments", [
    ("run", "--pool", "linus", "--", "true"),
    ("run", "--pool", "linux", "--no-such-option", "--", "true"),
    ("run", "--", "true"),
    ("run", "--pool", "linux", "--env", "not a name", "--", "true"),
])  # fmt: skip
def test_running_with_wrong_arguments_exits_with_125_and_not_with_a_code_of_the_command(
    cli: Cli, server: FakeHoldfast, arguments: tuple[str, ...]
) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (125, "")
    assert server.claims == {}


def test_running_without_a_connection_exits_with_125(server: FakeHoldfast, tmp_path: Path) -> None:
    server.kill(0)
    server.kill(1)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *SLEEPY], env=_environment(server, tmp_path), capture_output=True, timeout=120
    )
    assert done.returncode == 125
    assert b"no replica answered" in done.stderr


@pytest.mark.parametrize("command", [("run", "--", "true"), ("claim",)])
def test_an_empty_key_is_refused(cli: Cli, server: FakeHoldfast, command: tuple[str, ...]) -> None:
    result = cli(command[0], "--pool", "linux", "--key", "", *command[1:])
    assert result.code == (125 if command[0] == "run" else 2)
    assert "--key: must not be empty" in result.err
    assert server.claims == {}


def test_an_empty_command_is_refused(cli: Cli, server: FakeHoldfast) -> None:
    result = cli("run", "--pool", "linux", "--", "", "x")
    assert result.code == 125
    assert "the command is empty" in result.err
    assert server.claims == {}


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_claim_that_got_no_worker_is_printed_and_exits_with_124(cli: Cli, server: FakeHoldfast, output: str) -> None:
    server.serves = False
    result = cli("claim", "--pool", "linux", "--wait", "0s", "-o", output)
    assert result.code == 124
    assert "c-1" in result.out
    assert result.err == "holdfast: no worker: claim c-1 is still waiting: 0 of 8 workers free; 8 held\n"


@pytest.mark.parametrize("hold", [(), ("--hold",)])
def test_a_claim_that_was_refused_exits_with_124(cli: Cli, server: FakeHoldfast, hold: tuple[str, ...]) -> None:
    server.ends_at_once = {"outcome": "refused", "reason": "no worker in time"}
    result = cli("claim", "--pool", "linux", *hold)
    assert result.code == 124
    assert "claim c-1 ended as refused: no worker in time" in result.err


def test_a_hang_up_leaves_the_job_alone_and_prints_how_to_attach_again(server: FakeHoldfast, tmp_path: Path) -> None:
    process = _start(server, tmp_path)
    server.until(lambda _: server.asked("GET", "/output"))
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP
    assert err == b"detached from claim c-1, which goes on; attach again: holdfast logs -f c-1\n"
    assert server.claims["c-1"]["state"] == "active"
    assert not server.asked("POST", "/cancel")


def test_a_hang_up_before_the_answer_still_prints_the_claim(server: FakeHoldfast, tmp_path: Path) -> None:
    server.serves = False  # the request is answered only after its wait
    process = _start(server, tmp_path)
    server.until(lambda _: server.claims)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP
    assert b"holdfast logs -f c-1" in err
    assert server.claims["c-1"]["state"] == "waiting"


def test_a_run_under_nohup_goes_on_after_a_hang_up(server: FakeHoldfast, tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "holdfast", *SLEEPY],
        env=_environment(server, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    server.until(lambda _: server.asked("GET", "/output"))
    process.send_signal(signal.SIGHUP)
    server.change("c-1", state="ended", outcome="failed", exit_code=7)
    process.communicate(timeout=60)
    assert process.returncode == 7


def test_the_exit_codes_are_in_the_help_and_in_the_docs(cli: Cli) -> None:
    shown = cli("run", "--help").out
    page = DOCS.read_text()
    for line in TABLE.splitlines()[2:]:
        assert line in shown
        assert f"| {line.split()[0]} |" in page.replace("`", "")


def _environment(server: FakeHoldfast, home: Path) -> dict[str, str]:
    return {**os.environ, "HOLDFAST_URL": ",".join(server.urls), "HOLDFAST_TOKEN": TOKEN, "XDG_CONFIG_HOME": str(home)}


def _start(server: FakeHoldfast, home: Path) -> "subprocess.Popen[bytes]":
    arguments = [sys.executable, "-m", "holdfast", *SLEEPY]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(server, home))
