"""A command and everything that it starts: ended together, read to the end, and without a descriptor or a process left."""

import asyncio
import contextlib
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fronted import becomes
from holdfast.agent import process
from holdfast.agent.activation import run_hook
from holdfast.agent.job import JobResult, run
from holdfast.agent.messages import Directive
from holdfast.agent.process import BASE, CannotStart, Group
from holdfast.agent.sink import Sink

PATH = {"PATH": os.environ["PATH"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


@pytest.fixture
def strays() -> Iterator[list[int]]:
    """Ends the processes that a test adds."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except FileNotFoundError:
        return True


def descriptors() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}


def pipes() -> int:
    return sum(name.startswith("pipe:") for name in descriptors())


def test_the_numbers_of_a_command_are_the_documented_ones() -> None:
    assert (process.STOP_SECONDS, process.DRAIN_SECONDS) == (10.0, 2.0)
    assert (process.NOT_FOUND, process.NOT_STARTED) == (127, 126)
    assert BASE == ("PATH", "HOME", "LANG", "TMPDIR", "HOLDFAST_POD_UID")


async def test_what_a_command_leaves_in_its_group_ends_with_it(folder: Path, strays: list[int]) -> None:
    output: list[bytes] = []
    group = await Group.start(["sh", "-c", "sleep 600 & echo $!"], PATH, folder, output.append)
    assert await asyncio.wait_for(group.wait(), 60) == 0
    strays.append(int(b"".join(output)))
    await becomes(lambda: gone(strays[0]))


async def test_a_command_that_ended_is_not_reaped_before_the_rest_of_its_group_is_killed(folder: Path) -> None:
    """Until it is reaped, no other process can get its pid, which is also the group's id."""
    group = await Group.start(["true"], PATH, folder, lambda _: None)
    await asyncio.wait_for(group._exited.wait(), 60)
    assert group._popen.returncode is None
    assert Path(f"/proc/{group._popen.pid}").exists()
    assert await group.wait() == 0


@pytest.mark.parametrize("number", [1, 9, 15])
async def test_the_code_of_a_command_that_a_signal_ended_names_the_signal(folder: Path, number: int) -> None:
    group = await Group.start(["sh", "-c", f"kill -{number} $$"], PATH, folder, lambda _: None)
    assert await asyncio.wait_for(group.wait(), 60) == 128 + number


@pytest.mark.parametrize("system", ["with waitid", "without"])
async def test_a_code_is_known_on_every_system(folder: Path, system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "without":
        monkeypatch.delattr(os, "waitid")
    group = await Group.start(["sh", "-c", "exit 6"], PATH, folder, lambda _: None)
    assert await asyncio.wait_for(group.wait(), 60) == 6


async def test_an_output_that_a_process_outside_of_the_group_holds_open_is_given_up(
    folder: Path, strays: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "DRAIN_SECONDS", 0.1)
    before, output = pipes(), list[bytes]()
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    group = await Group.start([sys.executable, "-c", leaves], PATH, folder, output.append)
    assert await asyncio.wait_for(group.wait(), 60) == 0
    strays.append(int(b"".join(output)))
    assert "output open" in capsys.readouterr().err
    await becomes(lambda: pipes() == before)


async def test_a_command_leaves_no_descriptor_whether_it_started_or_not(folder: Path) -> None:
    before = pipes()
    group = await Group.start(["true"], PATH, folder, lambda _: None)
    await asyncio.wait_for(group.wait(), 60)
    for argv in (["no-such-program"], ["true\0"], ["/"]):
        with pytest.raises(CannotStart):
            await Group.start(argv, PATH, folder, lambda _: None)
    await becomes(lambda: pipes() == before)


async def test_a_start_that_is_cancelled_leaves_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    starting = asyncio.Event()

    async def stuck(*_: Any) -> Any:
        starting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(loop, "connect_read_pipe", stuck)
    task = asyncio.create_task(Group.start(["sleep", "600"], PATH, folder, lambda _: None))
    await starting.wait()
    pid = int((folder / "groups").read_text().split()[0])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await becomes(lambda: gone(pid))


async def test_a_defect_at_the_start_is_raised_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise MemoryError("a defect")

    monkeypatch.setattr(process.subprocess, "Popen", broken)
    with pytest.raises(MemoryError):
        await Group.start(["true"], PATH, folder, lambda _: None)


async def test_a_command_is_listed_before_it_ends_so_that_it_can_be_ended_without_the_agent(folder: Path) -> None:
    group = await Group.start(["sleep", "600"], PATH, folder, lambda _: None)
    [pid, began] = (folder / "groups").read_text().split()
    assert os.getpgid(int(pid)) == os.getsid(int(pid)) == int(pid)
    assert abs(float(began) - Path(f"/proc/{pid}").stat().st_mtime) < 60
    assert group.running
    group.kill()
    assert await asyncio.wait_for(group.wait(), 60) == 137
    assert not group.running
    group.kill()  # its pid may belong to another process by now
    assert await group.wait() == 137


async def test_a_list_that_cannot_be_written_does_not_stop_the_command(folder: Path) -> None:
    (folder / "groups").mkdir()
    group = await Group.start(["true"], PATH, folder, lambda _: None)
    assert await asyncio.wait_for(group.wait(), 60) == 0


async def test_a_hook_that_is_cancelled_leaves_no_process(folder: Path) -> None:
    running = asyncio.create_task(run_hook("activate", ["sleep", "600"], PATH, folder, lambda _: None))
    await becomes((folder / "groups").exists)
    pid = int((folder / "groups").read_text().split()[0])
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await becomes(lambda: gone(pid))


async def test_a_command_that_no_process_can_take_is_named_even_if_its_folder_is_gone(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="that no process can take"):
        await Group.start(["true\0"], PATH, tmp_path, lambda _: None)


def test_two_agents_that_write_the_output_of_one_claim_overwrite_nothing(folder: Path) -> None:
    """The agent of a lost try may still write when the next try begins."""
    lost, again = Sink(folder / "c-1", 100), Sink(folder / "c-1", 100)
    for sink, data in ((lost, b"1"), (again, b"2"), (lost, b"3")):
        sink.write(data)
    assert (folder / "c-1").read_bytes() == b"123"


async def test_a_command_inherits_nothing_that_its_agent_has_open(folder: Path) -> None:
    sink, output = Sink(folder / "c-1", 1000), list[bytes]()
    listing = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    group = await Group.start([sys.executable, "-c", listing], PATH, folder, output.append)
    assert await asyncio.wait_for(group.wait(), 60) == 0
    assert b"".join(output) == b"[0, 1, 2, 3]\n", "the last one is the list itself"
    sink.close()


def test_an_output_that_is_closed_is_not_left_open(folder: Path) -> None:
    sink = Sink(folder / "c-1", 10)
    file = sink._file
    assert file is not None
    sink.close()
    sink.close()
    assert file.closed


def test_an_output_and_its_marker_are_readable_by_their_owner_only(folder: Path) -> None:
    before = os.umask(0)
    try:
        Sink(folder / "c-1", 3).write(b"four")
    finally:
        os.umask(before)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir() if each.is_file()}
    assert modes == {"c-1": 0o600, "c-1.truncated": 0o600}
    assert stat.S_IMODE((folder / "c-1.tail").stat().st_mode) == 0o700


# A job's command


async def job(folder: Path, argv: list[str], ended: "asyncio.Future[Directive]") -> tuple[JobResult, Sink]:
    sink = Sink(folder / "output", 1000)
    return await asyncio.wait_for(run(argv, PATH, folder, sink, ended), 60), sink


async def test_a_job_ends_with_the_code_of_its_command(folder: Path) -> None:
    result, sink = await job(folder, ["sh", "-c", "echo hi; exit 3"], asyncio.get_running_loop().create_future())
    assert (result, sink._file, (folder / "output").read_text()) == (JobResult(3, ""), None, "hi\n")


async def test_a_job_that_cannot_start_says_why(folder: Path) -> None:
    result, _ = await job(folder, ["no-such-program"], asyncio.get_running_loop().create_future())
    assert result == JobResult(127, "no-such-program: not found")


async def test_a_job_whose_claim_ended_is_stopped_with_the_reason(folder: Path) -> None:
    ended: asyncio.Future[Directive] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(job(folder, ["sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.01; done"], ended))
    await becomes((folder / "groups").exists)
    await asyncio.sleep(0.2)  # the shell sets its trap
    ended.set_result(Directive(do="end", reason="released"))
    result, sink = await running
    assert (result, sink._file) == (JobResult(9, "stopped: released"), None)


async def test_a_job_that_is_cancelled_leaves_no_process(folder: Path) -> None:
    ended: asyncio.Future[Directive] = asyncio.get_running_loop().create_future()
    sink = Sink(folder / "output", 1000)
    running = asyncio.create_task(run(["sleep", "600"], PATH, folder, sink, ended))
    await becomes((folder / "groups").exists)
    pid = int((folder / "groups").read_text().split()[0])
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await becomes(lambda: gone(pid))
    assert sink._file is None
