"""What an agent writes to disk and what it passes to a command: bounded output, payloads, results, environment."""

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent import process
from holdfast.agent.activation import HookFailed, run_hook
from holdfast.agent.job import JobResult, environment, file_name, forget_payload, store_result, write_payload
from holdfast.agent.messages import Assignment
from holdfast.agent.process import CannotStart, Group, base_environment
from holdfast.agent.sink import Sink

GIVEN = Assignment(claim="c-1", fence=7, tenant="acme", payload=msgspec.Raw(b'{"a":1}'))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        ("c-1", "c-1"),
        ("../../etc/passwd", "_.._etc_passwd"),
        (".hidden", "hidden"),
        ("...", "_"),
        ("", "_"),
        ("a b/é", "a_b__"),
        ("A9._-", "A9._-"),
    ],
)
def test_a_claims_file_never_leads_out_of_its_folder(claim: str, name: str) -> None:
    assert file_name(claim) == name


def test_the_beginning_of_an_output_is_kept_and_what_comes_after_it_is_marked(tmp_path: Path) -> None:
    path, marker = tmp_path / "out", tmp_path / "out.truncated"
    sink = Sink(path, 20)
    sink.write(b"12345")
    sink.write(b"67890")
    assert not marker.exists(), "exactly full is not too much"
    sink.write(b"x")
    sink.write(b"y")
    assert path.read_bytes() == b"1234567890"
    assert (marker.exists(), mode(path), mode(marker)) == (True, 0o600, 0o600)


def test_what_is_written_after_the_end_is_dropped(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "out", 20)
    sink.write(b"12345")
    sink.close()
    sink.close()
    sink.write(b"6")
    assert (tmp_path / "out").read_bytes() == b"12345"


def test_output_that_cannot_be_kept_does_not_stop_the_command(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "missing" / "out", 10)
    sink.write(b"x")
    sink.close()
    full = Sink(tmp_path / "out", 10)
    assert full._file is not None
    full._file.close()
    full._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
    full.write(b"x")
    assert (tmp_path / "out.truncated").exists()
    assert full._file is None, "nothing more is tried"


def test_a_payload_is_readable_by_its_owner_only_and_can_be_forgotten_twice(tmp_path: Path) -> None:
    path = write_payload(tmp_path, GIVEN)
    assert (path, path.read_bytes(), mode(path)) == (tmp_path / "payload.json", b'{"a":1}', 0o600)
    write_payload(tmp_path, Assignment(claim="c", fence=1, tenant="t"))
    assert path.read_bytes() == b"null"
    forget_payload(tmp_path)
    forget_payload(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_result_is_durable_with_its_folder_and_nothing_half_written_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(fd).st_mode))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    store_result(tmp_path, GIVEN, JobResult(3, "why"))
    assert synced == [False, True], "first the file, then the name that leads to it"
    assert json.loads((tmp_path / "result.json").read_bytes()) == {"claim": "c-1", "fence": 7, "exit_code": 3}
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]
    write_payload(tmp_path, GIVEN)
    assert len(synced) == 2, "a payload can be fetched again, so the agent does not wait for the disk"


def test_a_result_that_cannot_be_kept_is_still_reported(tmp_path: Path) -> None:
    store_result(tmp_path / "missing", GIVEN, JobResult(0))
    assert JobResult(0).reason == ""


def test_a_command_sees_a_small_base_then_the_claims_variables_then_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"PATH": "/p", "HOME": "/h", "LANG": "C", "TMPDIR": "/t", "HOLDFAST_POD_UID": "uid-1"}
    for name in list(os.environ):
        monkeypatch.delenv(name)
    assert base_environment() == {"PATH": os.defpath}
    for name, value in (own | {"HOLDFAST_TOKEN_FILE": "/secret", "OTHER": "1"}).items():
        monkeypatch.setenv(name, value)
    assert base_environment() == own
    given = Assignment(
        claim="c-1",
        fence=7,
        tenant="acme",
        env={"A": "env", "B": "env", "HOME": "/theirs", "HOLDFAST_FENCE": "9", "HOLDFAST_POD_UID": "uid-2"},
        secrets={"B": "secret", "HOLDFAST_CLAIM": "c-2", "HOLDFAST_TENANT": "rival", "HOLDFAST_PAYLOAD": "/etc"},
    )
    ours = {
        "HOLDFAST_CLAIM": "c-1",
        "HOLDFAST_TENANT": "acme",
        "HOLDFAST_FENCE": "7",
        "HOLDFAST_PAYLOAD": str(tmp_path / "payload"),
    }
    assert environment(given, tmp_path / "payload") == {**own, "A": "env", "B": "secret", "HOME": "/theirs", **ours}


def started(folder: Path, *argv: str, env: dict[str, str] | None = None) -> tuple[int, bytes]:
    kept: list[bytes] = []

    async def story() -> int:
        group = await Group.start(argv, {"PATH": os.environ["PATH"], **(env or {})}, folder, kept.append)
        code = await group.wait()
        assert not group.running
        assert await group.wait() == code, "it can be asked for again"
        assert await group.stop() == code
        group.kill()
        return code

    return asyncio.run(story()), b"".join(kept)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def test_a_commands_code_and_both_of_its_outputs_are_kept_in_their_order(folder: Path) -> None:
    code, printed = started(folder, "sh", "-c", 'echo out; echo "$WORD" >&2; pwd; cat; exit 7', env={"WORD": "err"})
    assert (code, printed) == (7, f"out\nerr\n{folder}/work\n".encode())
    assert started(folder, "sh", "-c", "kill -9 $$")[0] == 128 + 9
    pids = [line.split() for line in (folder / "groups").read_text().splitlines()]
    assert len(pids) == 2
    assert all(int(pid) > 0 and float(at) > 1e9 for pid, at in pids)


@pytest.mark.parametrize(
    ("argv", "env", "code", "reason"),
    [
        ([], {}, 126, "there is no command: neither the pool nor the claim names one"),
        (["no-such-program"], {}, 127, "no-such-program: not found"),
        (["/"], {}, 126, "/: Permission denied"),
        (["true\0"], {}, 126, "argument or environment that no process can take"),
        (["true"], {"A=B": "1"}, 126, "argument or environment that no process can take"),
    ],
)
def test_a_command_that_cannot_start_has_the_reason_and_code_of_a_shell(
    folder: Path, argv: list[str], env: dict[str, str], code: int, reason: str
) -> None:
    with pytest.raises(CannotStart) as caught:
        started(folder, *argv, env=env)
    assert (caught.value.code, caught.value.reason) == (code, reason)


def test_a_folder_that_is_gone_is_not_a_command_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CannotStart) as caught:
        started(tmp_path, "true")
    assert (caught.value.code, caught.value.reason) == (126, "its worker's folder is gone")


def test_a_command_that_ignores_sigterm_is_killed_after_its_patience(folder: Path) -> None:
    assert process.STOP_SECONDS == 10.0

    async def story() -> list[int]:
        ready = asyncio.Event()

        async def start(script: str) -> Any:
            ready.clear()
            group = await Group.start(["sh", "-c", script], {"PATH": os.environ["PATH"]}, folder, lambda _: ready.set())
            await ready.wait()
            assert group.running
            return group

        polite = await start("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done")
        deaf = await start("trap '' TERM; echo ready; while :; do sleep 0.01; done")
        return [await polite.stop(), await deaf.stop(0.05)]

    assert asyncio.run(story()) == [5, 128 + 9]


@pytest.mark.parametrize(
    ("argv", "expected"), [(["sh", "-c", "exit 4"], "reset exited with 4"), (["nope"], "reset could not start: nope: not found")]
)
def test_a_hook_that_fails_reports_how(folder: Path, argv: list[str], expected: str) -> None:
    env = {"PATH": os.environ["PATH"]}
    with pytest.raises(HookFailed) as caught:
        asyncio.run(run_hook("reset", argv, env, folder, lambda _: None))
    assert str(caught.value) == expected
    kept: list[bytes] = []
    asyncio.run(run_hook("reset", ["echo", "done"], env, folder, kept.append))
    assert kept == [b"done\n"]
