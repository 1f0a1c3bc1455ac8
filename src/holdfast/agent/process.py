"""Run a command in its own process group, store its output up to a limit, and leave no process behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from .log import log

STOP_SECONDS = 10.0  # between SIGTERM and SIGKILL, as the protocol specifies
DRAIN_SECONDS = 2.0  # seconds to wait for a pipe that a process outside of the group still holds open
NOT_FOUND, NOT_STARTED = 127, 126  # the exit codes of a shell
BASE = ("PATH", "HOME", "LANG", "TMPDIR", "HOLDFAST_POD_UID")  # the last variable identifies orphans of the pod


class CannotStart(Exception):
    """The command did not start. `code` is the exit code that a shell would return."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Sink:
    """Stores the first `limit` bytes in a file, drops the rest, and then creates a marker file beside it.

    It appends to the file: if a claim is served again, its output continues after that of the lost try, so that a reader's
    offset stays valid.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._file: IO[bytes] | None = None
        self._size = 0
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(fd, "ab", buffering=0)
            self._size = os.fstat(fd).st_size
        except OSError as error:
            log("output lost", path=path, why=error.strerror)

    def write(self, data: bytes) -> None:
        if self._file is None:
            return
        room = self._limit - self._size
        try:
            self._size += self._file.write(data[:room]) if room > 0 else 0
        except OSError as error:  # a full disk must not stop the command
            log("output lost", path=self._path, why=error.strerror)
            room = 0
        if len(data) > room:
            with contextlib.suppress(OSError):
                self._path.with_name(self._path.name + ".truncated").touch(0o600)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class Group(asyncio.Protocol):
    """A started command and all processes that it starts in its group."""

    def __init__(self, popen: subprocess.Popen[bytes], write: Callable[[bytes], None]) -> None:
        self._popen = popen
        self._write = write
        self._pipe: asyncio.BaseTransport | None = None
        self._drained = asyncio.Event()
        self._exited = asyncio.Event()
        self._reaped: int | None = None

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str], folder: Path, write: Callable[[bytes], None]) -> "Group":
        """Starts the command in `folder`/work with exactly this environment. Raises CannotStart."""
        if not argv:
            raise CannotStart(NOT_STARTED, "there is no command: neither the pool nor the claim names one")
        reading, writing = os.pipe()
        try:
            popen = subprocess.Popen(  # noqa: ASYNC220 - returns as soon as it has started
                list(argv),
                env=dict(env),
                cwd=folder / "work",
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException as error:
            os.close(reading)
            if isinstance(error, FileNotFoundError) and not (folder / "work").is_dir():
                raise CannotStart(NOT_STARTED, "its worker's folder is gone") from None
            if isinstance(error, FileNotFoundError):
                raise CannotStart(NOT_FOUND, f"{argv[0]}: not found") from None
            if isinstance(error, OSError):
                raise CannotStart(NOT_STARTED, f"{argv[0]}: {error.strerror}") from None
            if isinstance(error, ValueError):  # a NUL byte, or '=' in a name; its text could show a value, so it is dropped
                raise CannotStart(NOT_STARTED, "argument or environment that no process can take") from None
            raise
        finally:
            os.close(writing)
        # After the agent's death this list shows which other processes have to be ended with the worker.
        with contextlib.suppress(OSError), (folder / "groups").open("a") as groups:
            groups.write(f"{popen.pid} {time.time():.3f}\n")
        group = cls(popen, write)
        loop = asyncio.get_running_loop()
        threading.Thread(target=group._watch, args=(loop,), daemon=True).start()
        try:
            pipe = os.fdopen(reading, "rb")
            group._pipe, _ = await loop.connect_read_pipe(lambda: group, pipe)
        except BaseException:
            group.kill()  # cancelled here: otherwise the command would run on without supervision
            raise
        return group

    @property
    def running(self) -> bool:
        return not self._exited.is_set()

    async def wait(self) -> int:
        """Waits for the command's end, kills the rest of its group, stores its output, and returns its exit code (128 + n for
        signal n)."""
        await self._exited.wait()
        if self._reaped is None:
            # Before it is reaped, because until then no other process can get its pid, which is also the group's id.
            self._signal(signal.SIGKILL)
            code = self._popen.wait()
            self._reaped = 128 - code if code < 0 else code
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._drained.wait()
        except TimeoutError:
            log("output open", pid=self._popen.pid, why="a process outside of the group holds the pipe")
        if self._pipe is not None:
            self._pipe.close()
        return self._reaped

    async def stop(self, patience: float = STOP_SECONDS) -> int:
        """Sends SIGTERM to the group, and SIGKILL after `patience` seconds. Returns the exit code."""
        if self.running:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(patience):
                    await self._exited.wait()
            except TimeoutError:
                self._signal(signal.SIGKILL)
        return await self.wait()

    def kill(self) -> None:
        """Kills the group without waiting for its end."""
        if self._reaped is None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses a group of zombies
            os.killpg(self._popen.pid, number)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits for the exit in a thread, without reaping the process where the system allows that."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed, because the agent exits
            loop.call_soon_threadsafe(self._exited.set)

    # The pipe is always read, so that the command never blocks on its output.

    def data_received(self, data: bytes) -> None:
        self._write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._drained.set()


def base_environment() -> dict[str, str]:
    """Returns the part of the agent's environment that a command may see. It contains no settings and no path of the token."""
    return {"PATH": os.defpath} | {name: os.environ[name] for name in BASE if name in os.environ}
