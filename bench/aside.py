"""Runs a part of a benchmark in its own process. It reads its task from one file and writes its result to another."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from . import ROOT

T = TypeVar("T")


def run(module: str, task: msgspec.Struct, kind: type[T], seconds: float) -> T:
    """Runs `python -m MODULE TASK FOUND` and returns what it found. It uses files, because a pipe cut long answers short."""
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as folder:
        given, found = Path(folder) / "task.json", Path(folder) / "found.json"
        given.write_bytes(msgspec.json.encode(task))
        arguments = [sys.executable, "-m", module, str(given), str(found)]
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
        if done.returncode != 0:
            raise RuntimeError(f"{module} failed: {done.stderr[-2000:]}")
        return msgspec.json.decode(found.read_bytes(), type=kind)


def main(kind: type[T], work: Callable[[T], Coroutine[Any, Any, msgspec.Struct]]) -> None:
    """The main function of such a process: reads the task, does the work, and writes the result."""
    task = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=kind)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(work(task))
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(found))
