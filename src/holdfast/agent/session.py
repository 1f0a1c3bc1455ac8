"""The served process of a session worker: started with the worker, warm when it accepts connections, reset between claims."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .activation import HookFailed, run_hook
from .log import log
from .messages import Hooks
from .process import NOT_STARTED, CannotStart, Group, base_environment
from .sink import Sink
from .tail import LAST_OUTPUT, Tail
from .tasks import first_of, settle
from .upstream import LOOPBACK, IsolatedPort, Port, UnixSocket, Upstream, socket_path

RESET_SECONDS = 60.0
STOP_SECONDS = 3.0  # short, because a stopping served process has no holder any more
LOOK_SECONDS = 0.05  # between two attempts to connect to a process that does not listen yet
ISOLATED = [sys.executable, "-I", "-S", str(Path(__file__).with_name("isolated.py"))]


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
        hosts = LOOPBACK if hooks.serve or own in LOOPBACK else (*LOOPBACK, own)
        self._log = Sink(folder / "serve.log", output_limit)
        self._sink: Sink | None = None
        self._group: Group | None = None
        self._reserved: socket.socket | None = None
        self.upstream: Upstream = Port(hosts, hooks.port)
        self.variables = {"PORT": str(hooks.port)}  # tell the process and its hooks where it has to listen

    async def start(self) -> None:
        """Starts it and waits until it accepts connections; the server limits this time. Raises ServeEnded if it dies before."""
        if self._hooks.serve:
            try:
                await self._start_process()
            except (CannotStart, OSError) as error:
                log("serve failed", why=str(error))
                raise ServeEnded(error.code if isinstance(error, CannotStart) else NOT_STARTED) from None
        answering = asyncio.create_task(_answering(self.upstream))
        dying = asyncio.create_task(self.died())
        try:
            await first_of(answering, dying)
            if dying.done():
                dying.result()
            answering.result()
        finally:
            await settle(answering, dying)

    async def _start_process(self) -> None:
        """Decides where the process has to listen, and starts it. Raises CannotStart or OSError."""
        listen, command = self._hooks.listen or "port", self._hooks.serve
        if listen == "socket":
            path = socket_path(self._folder)
            self.upstream, self.variables = UnixSocket(path), {"SOCKET": path}
        elif listen == "isolated":
            ours, theirs = socket.socketpair()
            self.upstream = IsolatedPort(ours, self._hooks.port)
            with theirs:
                await self._start_group([*ISOLATED, str(theirs.fileno()), *command], [theirs.fileno()])
            return
        elif listen == "port":
            port, self._reserved = free_port()
            self.upstream, self.variables = Port(LOOPBACK, port), {"PORT": str(port)}
        else:
            raise OSError(f"this agent knows no worker.listen {listen!r}")
        await self._start_group(command)

    async def _start_group(self, command: list[str], inherit: Sequence[int] = ()) -> None:
        self._group = await Group.start(
            command, self.environment(), self._folder, self.keep_output, self.keep_errors, inherit=inherit
        )

    def environment(self) -> dict[str, str]:
        return base_environment() | self.variables

    async def died(self) -> None:
        """Waits for its end, and raises ServeEnded. Never returns for another container, whose end the pod's status shows."""
        if self._group is None:
            await asyncio.get_running_loop().create_future()
        else:
            raise ServeEnded(await self._group.wait())

    def keep_output(self, data: bytes) -> None:
        """Stores output with the claim that is being served, or in serve.log if there is none."""
        (self._sink or self._log).write(data)
        self._keep_last(data)

    def keep_errors(self, data: bytes) -> None:
        """Stores what was printed to stderr, like `keep_output`."""
        (self._sink or self._log).write_error(data)
        self._keep_last(data)

    def _keep_last(self, data: bytes) -> None:
        """Keeps both streams together, because they explain each other."""
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


async def _answering(upstream: Upstream) -> None:
    """Waits until the process accepts connections."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await upstream.connect()
            writer.transport.abort()
            return
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
