"""How an agent hands a job to another container: the files there, how the shell uses them, and what remains of them."""

import json
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent import noop
from holdfast.agent.messages import Assignment
from holdfast.agent.staging import ASSIGNMENT, PAYLOAD, SCRIPT, sign, stage, unstage

AWKWARD = 'it\'s "quoted", $HOME `id` \\ and\nof two lines, ünïcode'


def given(**more: Any) -> Assignment:
    base: dict[str, Any] = {
        "claim": "c-1",
        "fence": 7,
        "tenant": "acme",
        "env": {"GREETING": AWKWARD},
        "secrets": {"KEY": "s3cret"},
    }
    return Assignment(**{**base, "payload": msgspec.Raw(b'{"n": 1}'), **more})


def run(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Runs the script as the worker's container does."""
    return subprocess.run(
        ["/bin/sh", str(folder / SCRIPT)],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_shell_runs_the_command_unchanged_with_the_claims_environment(tmp_path: Path) -> None:
    argv = [
        "python3",
        "-c",
        "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)])); sys.exit(3)",
        AWKWARD,
        "",
    ]
    stage(tmp_path, given(), argv)
    ended = run(tmp_path)
    assert (ended.returncode, ended.stderr) == (3, "")
    arguments, env = json.loads(ended.stdout)
    assert arguments == [AWKWARD, ""]
    assert {key: env[key] for key in ("GREETING", "KEY")} == {"GREETING": AWKWARD, "KEY": "s3cret"}
    ours = {"HOLDFAST_CLAIM": "c-1", "HOLDFAST_TENANT": "acme", "HOLDFAST_FENCE": "7"}
    assert {key: env[key] for key in ours} == ours
    assert json.loads(Path(env["HOLDFAST_PAYLOAD"]).read_bytes()) == {"n": 1}


def test_the_command_is_the_process_itself_so_that_it_gets_its_containers_signals(tmp_path: Path) -> None:
    stage(tmp_path, given(), ["sh", "-c", "echo $$"])
    process = subprocess.Popen(["/bin/sh", str(tmp_path / SCRIPT)], stdout=subprocess.PIPE, text=True)
    printed, _ = process.communicate(timeout=300)
    assert int(printed) == process.pid


@pytest.mark.parametrize("shell", ["sh", "bash --posix"])
def test_a_variable_that_the_shell_keeps_for_itself_reaches_the_command(tmp_path: Path, shell: str) -> None:
    names = ("UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO")
    show = f"import json, os; print(json.dumps([os.environ.get(name) for name in {names}]))"
    stage(tmp_path, given(env={name: f"{AWKWARD} {name}" for name in names}), [sys.executable, "-c", show])
    ended = subprocess.run(
        [*shell.split(), str(tmp_path / SCRIPT)], env={"PATH": os.environ["PATH"]}, capture_output=True, timeout=20, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert json.loads(ended.stdout) == [f"{AWKWARD} {name}" for name in names]


def test_no_claim_overrides_our_own_variables(tmp_path: Path) -> None:
    stage(tmp_path, given(env={"HOLDFAST_TENANT": "other"}, secrets={"HOLDFAST_FENCE": "99"}), ["sh", "-c", "env"])
    printed = run(tmp_path).stdout.splitlines()
    assert {"HOLDFAST_TENANT=acme", "HOLDFAST_FENCE=7"} <= set(printed)


def test_the_script_with_the_secrets_is_gone_when_its_command_runs(tmp_path: Path) -> None:
    stage(tmp_path, given(), ["sh", "-c", f"test ! -e {tmp_path / SCRIPT}"])
    assert run(tmp_path).returncode == 0


def test_without_a_command_it_ends_well(tmp_path: Path) -> None:
    stage(tmp_path, given(), [])
    assert run(tmp_path).returncode == 0


def test_a_program_without_a_shell_reads_everything_in_one_file(tmp_path: Path) -> None:
    stage(tmp_path, given(), ["a", "b c"])
    assert json.loads((tmp_path / ASSIGNMENT).read_bytes()) == {
        "claim": "c-1",
        "tenant": "acme",
        "fence": 7,
        "command": ["a", "b c"],
        "env": {"GREETING": AWKWARD},
        "secrets": {"KEY": "s3cret"},
        "payload": {"n": 1},
    }


def test_any_user_may_read_it_whatever_the_agents_umask_and_nothing_half_written_is_left(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        stage(tmp_path, given(), ["true"])
        stage(tmp_path, given(fence=8), ["true"])  # again, for the next attempt
    finally:
        os.umask(before)
    assert {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == dict.fromkeys(
        (SCRIPT, ASSIGNMENT, PAYLOAD), 0o644
    )
    assert json.loads((tmp_path / ASSIGNMENT).read_bytes())["fence"] == 8


def test_nothing_is_left_of_a_claim_that_was_not_ours_after_all(tmp_path: Path) -> None:
    stage(tmp_path, given(), ["true"])
    unstage(tmp_path)
    unstage(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_agents_termination_message_names_its_assignment_and_no_secret(tmp_path: Path) -> None:
    sign(tmp_path / "arguments", given())
    assert json.loads((tmp_path / "arguments").read_bytes()) == {"claim": "c-1", "fence": 7}


# The program that does nothing


def test_it_is_a_whole_program_that_needs_nothing_and_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "noop"
    monkeypatch.setattr("sys.argv", ["noop", str(path)])
    assert noop.main() == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert subprocess.run([path], env={}, cwd="/", capture_output=True, timeout=300, check=False).returncode == 0


@pytest.mark.parametrize("machine", sorted(noop.CODE))
def test_there_is_one_for_each_machine(machine: str) -> None:
    program = noop.program(machine)
    number = int.from_bytes(program[18:20], "little")
    assert (program[:4], number, program.endswith(noop.CODE[machine][1])) == (b"\x7fELF", noop.CODE[machine][0], True)


def test_a_machine_type_without_a_program_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "mips")
    monkeypatch.setattr("sys.argv", ["noop", str(tmp_path / "noop")])
    assert noop.main() == 1
    assert "mips" in capsys.readouterr().err
