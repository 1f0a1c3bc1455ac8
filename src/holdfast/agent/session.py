"""The served process of a session worker: started with the worker, warm when its port answers, reset between claims."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from .activation import HookFailed, run_hook
from .log import log
from .messages import Hooks
from .process import CannotStart, Group, Sink, base_environment
from .tail import LAST_OUTPUT, Tail
from .tasks import first_of, settle

RESET_SECONDS = 60.0
STOP_SECONDS = 3.0  # short, because a stopping served process has no holder any more
LOOK_SECONDS = 0.05  # between two attempts to connect to a port that does not answer yet
LOOPBACK = ("127.0.0.1", "::1")


class ServeEnded(Exception):
    """The served process ended. `code` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"serve exited with {code}")
        self.code = code


class Served:
    """The process that the session's agent guards: the command `serve`, or another container if the pool has no `serve`."""

    def __init__(self, hooks: Hooks, folder: Path, output_limit: int, own: str, copy: Callable[[bytes], None]) -> None:
        self._hooks, self._folder, self._copy = hooks, folder, copy
        self.tail = Tail(LAST_OUTPUT)
        # Another container may listen on the pod's own address only.
        self._hosts = LOOPBACK if hooks.serve or own in LOOPBACK else (*LOOPBACK, own)
        self._log = Sink(folder / "serve.log", output_limit)
        self._sink: Sink | None = None
        self._group: Group | None = None
        self._reserved: socket.socket | None = None
        self.address = (LOOPBACK[0], hooks.port)

    async def start(self) -> None:
        """Starts it and waits until its port answers; the server limits this time. Raises ServeEnded if it dies before."""
        port = self._hooks.port
        if self._hooks.serve:
            port, self._reserved = free_port()
            self.address = (LOOPBACK[0], port)
            try:
                self._group = await Group.start(self._hooks.serve, self.environment(), self._folder, self.keep_output)
            except CannotStart as error:
                log("serve failed", why=error.reason)
                raise ServeEnded(error.code) from None
        answering = asyncio.create_task(_answering(port, self._hosts))
        dying = asyncio.create_task(self.died())
        try:
            await first_of(answering, dying)
            if dying.done():
                dying.result()
            self.address = (await answering, port)
        finally:
            await settle(answering, dying)

    def environment(self) -> dict[str, str]:
        return base_environment() | {"PORT": str(self.address[1])}

    async def died(self) -> None:
        """Waits for its end, and raises ServeEnded. Never returns for another container, whose end the pod's status shows."""
        if self._group is None:
            await asyncio.get_running_loop().create_future()
        else:
            raise ServeEnded(await self._group.wait())

    def keep_output(self, data: bytes) -> None:
        """Stores output with the claim that is being served, or in serve.log if there is none."""
        (self._sink or self._log).write(data)
        self.tail.write(data)
        self._copy(data)

    def output_to(self, sink: Sink | None) -> None:
        if self._sink is not None:
            self._sink.close()
        self._sink = sink

    async def reset(self, tenant: str) -> None:
        """Runs the reset hook before the tenant's next claim. Raises HookFailed; the worker must then be replaced."""
        if not self._hooks.reset:
            return
        self.tail = Tail(LAST_OUTPUT)  # what was written before does not explain why the reset failed
        env = self.environment() | {"HOLDFAST_TENANT": tenant}
        try:
            async with asyncio.timeout(RESET_SECONDS):
                await run_hook("reset", self._hooks.reset, env, self._folder, self.keep_output)
        except TimeoutError:
            raise HookFailed(f"reset took longer than {RESET_SECONDS:g} s") from None

    async def stop(self) -> None:
        if self._group is not None:
            await self._group.stop(STOP_SECONDS)

    def kill(self) -> None:
        if self._group is not None:
            self._group.kill()


async def _answering(port: int, hosts: tuple[str, ...]) -> str:
    """Waits until the port accepts connections, and returns the address at which it does."""
    while True:
        for host in hosts:  # some servers listen on IPv6 only when they are given "localhost"
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                writer.transport.abort()
                return host
        await asyncio.sleep(LOOK_SECONDS)


def free_port() -> tuple[int, socket.socket | None]:
    """Returns a free loopback port, and a socket that reserves it among the agents of this machine while it is open.

    Otherwise two workers that start at the same time could get the same port. One agent would then give its holder access to the
    other worker's process, with another tenant's data.
    """
    while True:
        with socket.socket() as probe:
            probe.bind((LOOPBACK[0], 0))
            port: int = probe.getsockname()[1]
        if sys.platform != "linux":
            return port, None
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0holdfast-port-{port}")  # an abstract name disappears with its process
        except OSError:
            reservation.close()
            continue
        return port, reservation
