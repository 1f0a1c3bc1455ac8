"""Run a command in its own process group, pass on its output, and leave no process behind."""

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


class _Pipe(asyncio.Protocol):
    """Passes on what arrives on one pipe. It is read all the time, except while it is paused, so that the command does not block
    on its output."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._transport: asyncio.ReadTransport | None = None
        self.drained = asyncio.Event()

    async def connect(self, fd: int) -> None:
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, os.fdopen(fd, "rb"))

    def data_received(self, data: bytes) -> None:
        self._write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.drained.set()

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Input(asyncio.BaseProtocol):
    """Writes to the command's stdin, as fast as the command reads."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._room = asyncio.Event()
        self._room.set()

    async def connect(self, pipe: IO[bytes]) -> None:
        self._transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: self, pipe)

    async def write(self, data: bytes) -> bool:
        """Returns whether the command still reads."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.write(data)
        await self._room.wait()
        return not self._transport.is_closing()

    def close(self) -> None:
        """Closes the pipe after what was written to it."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the pipe, and drops what the command has not read."""
        if self._transport is not None and (not self._transport.is_closing() or self._transport.get_write_buffer_size()):
            self._transport.abort()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._room.set()


class Group:
    """A started command and all processes that it starts in its group."""

    def __init__(self, popen: subprocess.Popen[bytes], pipes: list[_Pipe]) -> None:
        self._popen = popen
        self._pipes = pipes
        self._input = _Input()
        self._exited = asyncio.Event()
        self._reaped: int | None = None

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        write: Callable[[bytes], None],
        write_error: Callable[[bytes], None] | None = None,
        *,
        stdin: bool = False,
        inherit: Sequence[int] = (),
    ) -> "Group":
        """Starts the command in `folder`/work with exactly this environment. Raises CannotStart. Without `write_error`, both
        streams share one pipe, which keeps their exact order. Without `stdin`, the command reads an empty input. `inherit` names
        further descriptors that the command gets."""
        if not argv:
            raise CannotStart(NOT_STARTED, "there is no command: neither the pool nor the claim names one")
        pipes = [_Pipe(each) for each in (write, write_error) if each is not None]
        ends = [os.pipe() for _ in pipes]
        try:
            popen = subprocess.Popen(  # noqa: ASYNC220 - returns as soon as it has started
                list(argv),
                env=dict(env),
                cwd=folder / "work",
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                bufsize=0,
                stdout=ends[0][1],
                stderr=ends[-1][1],
                start_new_session=True,
                pass_fds=inherit,
            )
        except BaseException as error:
            for reading, _ in ends:
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
            for _, writing in ends:
                os.close(writing)
        # After the agent's death this list shows which other processes have to be ended with the worker.
        with contextlib.suppress(OSError), (folder / "groups").open("a") as groups:
            groups.write(f"{popen.pid} {time.time():.3f}\n")
        group = cls(popen, pipes)
        threading.Thread(target=group._watch, args=(asyncio.get_running_loop(),), daemon=True).start()
        try:
            for pipe, (reading, _) in zip(pipes, ends, strict=True):
                await pipe.connect(reading)
            if popen.stdin is not None:
                await group._input.connect(popen.stdin)
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
        self.resume_output()  # what it printed last is read to the end
        if self._reaped is None:
            # Before it is reaped, because until then no other process can get its pid, which is also the group's id.
            self._signal(signal.SIGKILL)
            code = self._popen.wait()
            self._reaped = 128 - code if code < 0 else code
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                for pipe in self._pipes:
                    await pipe.drained.wait()
        except TimeoutError:
            log("output open", pid=self._popen.pid, why="a process outside of the group holds the pipe")
        for pipe in self._pipes:
            pipe.close()
        self._input.abort()
        return self._reaped

    def pause_output(self) -> None:
        """Stops reading the output of a running command, which then blocks when its pipes are full."""
        if self.running:
            for pipe in self._pipes:
                pipe.pause()

    def resume_output(self) -> None:
        for pipe in self._pipes:
            pipe.resume()

    async def feed(self, data: bytes) -> bool:
        """Writes to the command's stdin, and waits until the command has taken most of it. Returns whether it still reads."""
        return await self._input.write(data)

    def close_input(self) -> None:
        """Ends the command's stdin, after what was written to it."""
        self._input.close()

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


def base_environment() -> dict[str, str]:
    """Returns the part of the agent's environment that a command may see. It contains no settings and no path of the token."""
    return {"PATH": os.defpath} | {name: os.environ[name] for name in BASE if name in os.environ}
