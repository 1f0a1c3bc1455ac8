"""Run a claim's command, and keep its result on disk before anyone is told."""

import asyncio
import contextlib
import os
import re
from pathlib import Path

import msgspec

from .log import log
from .messages import Assignment, Directive
from .process import CannotStart, Group, Sink, base_environment
from .tasks import first_of


class JobResult(msgspec.Struct, frozen=True):
    """`reason` says what the exit code alone does not."""

    exit_code: int
    reason: str = ""


def file_name(claim: str) -> str:
    """A claim's name as a file's name: it must not lead out of the folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", claim).lstrip(".") or "_"


def environment(assignment: Assignment, payload: Path) -> dict[str, str]:
    """What hook and command see: a small base, the claim's words, and last ours, which no claim overrides."""
    return {
        **base_environment(),
        **assignment.env,
        **assignment.secrets,
        "HOLDFAST_CLAIM": assignment.claim,
        "HOLDFAST_TENANT": assignment.tenant,
        "HOLDFAST_FENCE": str(assignment.fence),
        "HOLDFAST_PAYLOAD": str(payload),
    }


def write_payload(folder: Path, assignment: Assignment) -> Path:
    """Readable by its owner only. A claim without a payload gets a file with `null`."""
    path = folder / "payload.json"
    _write(path, bytes(assignment.payload))
    return path


def forget_payload(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "payload.json").unlink()


async def run(argv: list[str], env: dict[str, str], folder: Path, sink: Sink, ended: "asyncio.Future[Directive]") -> JobResult:
    """Run the command to its end, or stop it when its claim has `ended`."""
    try:
        group = await Group.start(argv, env, folder, sink.write)
    except CannotStart as error:
        return JobResult(error.code, error.reason)
    finished = asyncio.ensure_future(group.wait())
    try:
        await first_of(finished, ended)
        if finished.done():
            return JobResult(finished.result())
        log("stopping", why=ended.result().reason)
        await group.stop()
        return JobResult(await finished, f"stopped: {ended.result().reason}")
    finally:
        finished.cancel()
        group.kill()
        sink.close()


def store_result(folder: Path, assignment: Assignment, result: JobResult) -> None:
    """Before the first report, so that the exit code survives our own death."""
    record = {"claim": assignment.claim, "fence": assignment.fence, "exit_code": result.exit_code}
    try:
        _write(folder / "result.json", msgspec.json.encode(record), durable=True)
    except OSError as error:  # a full disk: the report is all there is, and it is still owed
        log("result unkept", why=error.strerror)


def _write(path: Path, data: bytes, durable: bool = False) -> None:
    """Whole or not at all; with `durable` it also survives the machine's crash."""
    new = path.with_name(path.name + ".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
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
