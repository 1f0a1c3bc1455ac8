"""How an agent hands a job to another container: the files there, how the shell uses them, and what remains of them."""

import json
import os
import platform
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent import noop
from holdfast.agent.messages import Assignment
from holdfast.agent.staging import ASSIGNMENT, NOT_STAGED, PAYLOAD, SCRIPT, VARIABLES, sign, stage, unstage

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
    assert not {"HOLDFAST_TENANT=other", "HOLDFAST_FENCE=99"} & set(printed)


@pytest.mark.parametrize("env", [{}, {"UID": "5"}])
def test_without_a_command_it_ends_well(tmp_path: Path, env: dict[str, str]) -> None:
    stage(tmp_path, given(env=env), [])
    ended = run(tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_the_worker_s_container_finds_its_job_under_documented_names() -> None:
    assert (SCRIPT, ASSIGNMENT, PAYLOAD) == ("run", "assignment.json", "payload.json")
    assert NOT_STAGED == 3, "neither 0, nor the agent's own failure, nor wrong settings"


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


def test_any_user_may_read_and_erase_it_whatever_the_agents_umask_and_nothing_half_written_is_left(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        stage(tmp_path, given(), ["true"])
        stage(tmp_path, given(fence=8), ["true"])  # again, for the next attempt
    finally:
        os.umask(before)
    assert {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == dict.fromkeys(
        (SCRIPT, VARIABLES, ASSIGNMENT, PAYLOAD), 0o666
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


@pytest.mark.parametrize(("machine", "number", "size"), [("x86_64", 62, 129), ("aarch64", 183, 132)])
def test_there_is_one_for_each_machine(machine: str, number: int, size: int) -> None:
    """A kernel is strict about some fields only, and a tool that checks images about others. So every field is checked."""
    program = noop.program(machine)
    assert len(program) == size
    assert program[:16] == b"\x7fELF" + bytes([2, 1, 1, *[0] * 9]), "64 bits, little endian, version 1"
    kind, processor, version, entry, programs, sections, *rest = struct.unpack("<HHIQQQIHHHHHH", program[16:64])
    assert (kind, processor, version, entry, programs, sections) == (2, number, 1, 0x400078, 64, 0)
    assert rest == [0, 64, 56, 1, 0, 0, 0], "no flags; the sizes of both headers; one program header, no section"
    assert struct.unpack("<IIQQQQQQ", program[64:120]) == (1, 5, 0, 0x400000, 0x400000, size, size, 4096)
    assert set(noop.CODE) == {"x86_64", "aarch64"}


def test_a_machine_type_without_a_program_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "mips")
    monkeypatch.setattr("sys.argv", ["noop", str(tmp_path / "noop")])
    assert noop.main() == 1
    assert "mips" in capsys.readouterr().err
