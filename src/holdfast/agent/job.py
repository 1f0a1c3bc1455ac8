"""Run a claim's command, and store its result on disk before it is reported."""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from .log import log
from .messages import Assignment, Directive
from .pace import keep_pace
from .process import CannotStart, Group, base_environment
from .sink import Sink
from .tasks import first_of, settle


class JobResult(msgspec.Struct, frozen=True):
    """A command's exit code; `reason` explains it if the agent stopped the command or could not start it."""

    exit_code: int
    reason: str = ""


def file_name(claim: str) -> str:
    """Returns a file name for a claim's output that cannot lead out of the folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", claim).lstrip(".") or "_"


def environment(assignment: Assignment, payload: Path) -> dict[str, str]:
    """Returns the environment of hook and command. A claim cannot set Holdfast's own variables: the pod's UID identifies the
    processes that a dead agent leaves behind."""
    return {
        **base_environment(),
        **assignment.own_variables(),
        "HOLDFAST_CLAIM": assignment.claim,
        "HOLDFAST_TENANT": assignment.tenant,
        "HOLDFAST_FENCE": str(assignment.fence),
        "HOLDFAST_PAYLOAD": str(payload),
    }


def write_payload(folder: Path, assignment: Assignment) -> Path:
    """Writes the payload to a file that only its owner can read. A claim without a payload gets a file with `null`."""
    path = folder / "payload.json"
    _write(path, bytes(assignment.payload))
    return path


def forget_payload(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "payload.json").unlink()


async def run(
    argv: list[str],
    env: dict[str, str],
    folder: Path,
    sink: Sink,
    ended: "asyncio.Future[Directive]",
    feed: Callable[[Group], Coroutine[None, None, None]] | None = None,
) -> JobResult:
    """Runs the command to its end, or stops it when its claim has `ended`. `feed` passes input to it."""
    try:
        group = await Group.start(argv, env, folder, sink.write, sink.write_error, stdin=feed is not None)
    except CannotStart as error:
        return JobResult(error.code, error.reason)
    finished = asyncio.ensure_future(group.wait())
    beside = [asyncio.create_task(keep_pace(group, sink))]
    if feed is not None:
        beside.append(asyncio.create_task(feed(group)))
    try:
        await first_of(finished, ended)
        if finished.done():
            return JobResult(finished.result())
        log("stopping", why=ended.result().reason)
        await group.stop()
        return JobResult(await finished, f"stopped: {ended.result().reason}")
    finally:
        finished.cancel()
        await settle(*beside)
        group.kill()
        sink.close()


def store_result(folder: Path, assignment: Assignment, result: JobResult) -> None:
    """Stores the result on disk. Called before the first report, so that the exit code survives the agent's death."""
    record = {"claim": assignment.claim, "fence": assignment.fence, "exit_code": result.exit_code}
    try:
        _write(folder / "result.json", msgspec.json.encode(record), durable=True)
    except OSError as error:  # a full disk, for example; the agent still reports the result
        log("result not stored", why=error.strerror)


def _write(path: Path, data: bytes, durable: bool = False) -> None:
    """Writes the file completely or not at all. With `durable` it also survives a crash of the machine."""
    new = path.with_name(path.name + ".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(new, path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
