"""Run a command as a process group of its own, keep what it prints within a bound, leave nothing behind."""

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

STOP_SECONDS = 10.0  # between SIGTERM and SIGKILL, as the protocol says
DRAIN_SECONDS = 2.0  # for a pipe that something outside of the group still holds open
NOT_FOUND, NOT_STARTED = 127, 126  # as a shell says it
BASE = ("PATH", "HOME", "LANG", "TMPDIR", "HOLDFAST_POD_UID")  # the last: an orphan is known by it as its pod's


class CannotStart(Exception):
    """The command did not start; `code` is what a shell would have answered."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Sink:
    """Keep the first `limit` bytes in a file; swallow the rest, and say so by a marker beside it.

    It appends: a claim that is served again goes on where the lost try ended, so a reader's offset holds.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._file: IO[bytes] | None = None
        self._size = 0
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
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
    """One started command and whatever it starts."""

    def __init__(self, popen: subprocess.Popen[bytes], write: Callable[[bytes], None]) -> None:
        self._popen = popen
        self._write = write
        self._pipe: asyncio.BaseTransport | None = None
        self._drained = asyncio.Event()
        self._exited = asyncio.Event()
        self._reaped: int | None = None

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str], folder: Path, write: Callable[[bytes], None]) -> "Group":
        """Start it in `folder`/work with exactly this environment. Raises CannotStart."""
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
            if isinstance(error, ValueError):  # a NUL byte, or '=' in a name; its text could show a value
                raise CannotStart(NOT_STARTED, "argument or environment that no process can take") from None
            raise
        finally:
            os.close(writing)
        # Whoever must end this worker after our own death finds here what else has to go.
        with contextlib.suppress(OSError), (folder / "groups").open("a") as groups:
            groups.write(f"{popen.pid} {time.time():.3f}\n")
        group = cls(popen, write)
        loop = asyncio.get_running_loop()
        threading.Thread(target=group._watch, args=(loop,), daemon=True).start()
        try:
            pipe = os.fdopen(reading, "rb", buffering=0)
            group._pipe, _ = await loop.connect_read_pipe(lambda: group, pipe)
        except BaseException:
            group.kill()  # cancelled just now: it must not run on unseen
            raise
        return group

    @property
    def running(self) -> bool:
        return not self._exited.is_set()

    async def wait(self) -> int:
        """Its exit code (128 + n for signal n), once it ended, its rest is killed and its output is kept."""
        await self._exited.wait()
        if self._reaped is None:
            # Before it is reaped: until then its number, which is the group's, cannot be another's.
            self._signal(signal.SIGKILL)
            code = self._popen.wait()
            self._reaped = 128 - code if code < 0 else code
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._drained.wait()
        except TimeoutError:
            log("output open", pid=self._popen.pid, why="a process outside of its group holds it")
        if self._pipe is not None:
            self._pipe.close()
        return self._reaped

    async def stop(self, patience: float = STOP_SECONDS) -> int:
        """SIGTERM to the group, SIGKILL after `patience` seconds."""
        if self.running:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(patience):
                    await self._exited.wait()
            except TimeoutError:
                self._signal(signal.SIGKILL)
        return await self.wait()

    def kill(self) -> None:
        """For the way out: no waiting, nothing left."""
        if self._reaped is None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses a group of zombies
            os.killpg(self._popen.pid, number)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: learn of the exit without reaping."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is gone: so are we
            loop.call_soon_threadsafe(self._exited.set)

    # The pipe: always drained, so that the command never blocks on us.

    def data_received(self, data: bytes) -> None:
        self._write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._drained.set()


def base_environment() -> dict[str, str]:
    """What of our own environment a command may see. Our settings and our token's place are not among it."""
    return {"PATH": os.defpath} | {name: os.environ[name] for name in BASE if name in os.environ}
