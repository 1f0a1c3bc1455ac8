"""A command waits for a reader who follows its output and is behind, and never for long."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from holdfast.agent import pace
from holdfast.agent.job import JobResult, run
from holdfast.agent.sink import READER_SECONDS, Sink
from holdfast.local.outputs import Outputs

PATH = {"PATH": os.environ["PATH"]}
LIMIT = 4 * 1024**2
PRINTED = 5 * LIMIT
PRINTS = [sys.executable, "-c", f"import sys; sys.stdout.write('x' * {PRINTED}); sys.stdout.flush(); open('done', 'w')"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def start(folder: Path) -> "asyncio.Task[JobResult]":
    ended = asyncio.get_running_loop().create_future()
    return asyncio.create_task(run(PRINTS, PATH, folder, Sink(folder / "c-1", LIMIT), ended))


async def test_a_reader_that_follows_misses_nothing_of_a_command_that_is_faster(folder: Path) -> None:
    job, outputs, position = start(folder), Outputs(folder), 0
    while not job.done() or outputs.read("c-1", position, 1).data:
        part = await asyncio.to_thread(outputs.read, "c-1", position, 50_000, "r-1")
        assert part.offset == position, f"{part.offset - position} bytes are missing at {position}"
        position += len(part.data)
        await asyncio.sleep(0)
    assert (job.result(), position) == (JobResult(0), PRINTED)


async def test_a_command_without_readers_does_not_wait(folder: Path) -> None:
    assert await asyncio.wait_for(start(folder), 60) == JobResult(0)
    assert Outputs(folder).read("c-1", 0, 1).size == PRINTED


async def test_a_reader_that_has_stopped_reading_does_not_count(folder: Path) -> None:
    (folder / "c-1.tail").mkdir()
    stopped = folder / "c-1.tail" / "reader-r-1"
    stopped.write_text(f"{0:020d}")
    os.utime(stopped, (time.time() - READER_SECONDS - 1,) * 2)
    assert await asyncio.wait_for(start(folder), 60) == JobResult(0)


async def test_all_waiting_for_readers_has_an_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LONGEST_WAIT", 0.2)
    monkeypatch.setattr("holdfast.agent.sink.READER_SECONDS", 3600.0)  # a reader that is alive, and never gets on
    (folder / "c-1.tail").mkdir()
    (folder / "c-1.tail" / "reader-r-1").write_text(f"{0:020d}")
    assert await asyncio.wait_for(start(folder), 60) == JobResult(0)
    assert Outputs(folder).read("c-1", 0, 1).missing > 0
