"""The served process behind a session: started at boot, warm once its port answers, reset between claims."""

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

from .activation import HookFailed, run_hook
from .log import log
from .messages import Hooks
from .process import CannotStart, Group, Sink, base_environment
from .tasks import first_of, settle

RESET_SECONDS = 60.0
STOP_SECONDS = 3.0  # a free worker leaves at once; its served process has no holder to finish for
LOOK_SECONDS = 0.05  # between looks at a port that does not answer yet
LOOPBACK = ("127.0.0.1", "::1")


class ServeEnded(Exception):
    """The served process is gone; `code` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"serve exited with {code}")
        self.code = code


class Served:
    """What a session's agent stands in front of: `serve`, or where a pool has none, another container."""

    def __init__(self, hooks: Hooks, folder: Path, output_limit: int, own: str) -> None:
        self._hooks, self._folder = hooks, folder
        # Another container may listen on the pod's own address alone.
        self._hosts = LOOPBACK if hooks.serve or own in LOOPBACK else (*LOOPBACK, own)
        self._log = Sink(folder / "serve.log", output_limit)
        self._sink: Sink | None = None
        self._group: Group | None = None
        self._reserved: socket.socket | None = None
        self.address = (LOOPBACK[0], hooks.port)

    async def start(self) -> None:
        """Raises ServeEnded when it dies before its port answers. How long that may take, the server says."""
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
        """Wait for its death, and raise ServeEnded. Another container's death is for its pod to tell."""
        if self._group is None:
            await asyncio.get_running_loop().create_future()
        else:
            raise ServeEnded(await self._group.wait())

    def keep_output(self, data: bytes) -> None:
        """What it prints belongs to the claim that it serves."""
        (self._sink or self._log).write(data)

    def output_to(self, sink: Sink | None) -> None:
        if self._sink is not None:
            self._sink.close()
        self._sink = sink

    async def reset(self, tenant: str) -> None:
        """Make it fit for its tenant's next claim. Raises HookFailed: on doubt the worker must go."""
        if not self._hooks.reset:
            return
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
    """The address at which the port takes connections, once it does."""
    while True:
        for host in hosts:  # some servers take "localhost" for IPv6 only
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                writer.transport.abort()
                return host
        await asyncio.sleep(LOOK_SECONDS)


def free_port() -> tuple[int, socket.socket | None]:
    """A loopback port, kept from the other agents of this machine while we hold the socket.

    Without this two workers that start together could get the same number, and one agent would take the
    other's process, with another tenant's data, for its own.
    """
    while True:
        with socket.socket() as probe:
            probe.bind((LOOPBACK[0], 0))
            port: int = probe.getsockname()[1]
        if sys.platform != "linux":
            return port, None
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0holdfast-port-{port}")  # an abstract name: it dies with its process
        except OSError:
            mark.close()
            continue
        return port, mark
