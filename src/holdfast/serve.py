"""Runs one replica: its HTTP routes and its duties in one process."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import structlog
import uvicorn
import uvloop

from .api import descriptors
from .api.probes import Probes
from .api.server import BoundedHttp
from .local import addresses
from .local.layout import Layout
from .model.shown import shown_lines
from .ports.cluster import Cluster
from .ports.recovery import Mark
from .ports.store import WrongInstallation
from .postgres.database import UNAVAILABLE
from .wiring import InKubernetes, Settings, Wired, admit, check_namespace, connect, kubernetes_cluster, local_cluster, wire

# Objects between two collections. Requests leave no reference cycles, so a collection frees little but stops the event loop.
COLLECT_AFTER = 50_000
ANNOUNCE_SECONDS = 10.0  # the longest that the address of a crashed replica stays in the list
GRACE = 5  # seconds for requests in progress; long polls and waits are answered at once


@dataclass(frozen=True)
class LocalAddress:
    """Where a replica listens for agents and commands of its own machine."""

    layout: Layout
    port: int
    url: str

    def listen(self) -> socket.socket:
        return addresses.listen(addresses.socket_of(self.layout, self.port))

    async def keep_announced(self) -> None:
        """Adds this replica's addresses, also if they get lost later, and removes those of replicas that have crashed."""
        while True:
            self._change(addresses.announce)
            await asyncio.sleep(ANNOUNCE_SECONDS)

    def withdraw(self) -> None:
        self._change(addresses.withdraw)

    def _change(self, change: Callable[[Layout, int, str], None]) -> None:
        try:
            change(self.layout, self.port, self.url)
        except OSError as error:  # a full disk, for example; the replica still serves, and an old list still leads to it
            structlog.get_logger().warning("cannot write the replicas' addresses", error=str(error))


class Server(uvicorn.Server):
    """Uvicorn that answers all waiting requests before it exits. On one machine it also listens on a unix socket."""

    def __init__(self, config: uvicorn.Config, wired: Wired, local: LocalAddress | None) -> None:
        super().__init__(config)
        self._wired = wired
        self._local = local
        self._announcing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)  # first, because the socket may be replaced only by the process that has the port
        if self._local is not None:
            listener = self._local.listen()
            self.servers.append(await asyncio.get_running_loop().create_unix_server(self._protocol, sock=listener))
            self._announcing = asyncio.create_task(self._local.keep_announced())

    def _protocol(self) -> asyncio.Protocol:
        kind: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return kind(self.config, self.server_state, self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._local is not None and self._announcing is not None:
            self._announcing.cancel()
            self._local.withdraw()  # first, so that agents whose polls are answered now go to another replica
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Installs only our own signal handlers. Uvicorn's version raises the signal again after serving, which would kill the
        process before the replica gives its terms back. Its duties would then not be done until the terms expire."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._wired.context.signals.stop()
        super().handle_exit(sig, frame)


async def serve(settings: Settings) -> None:
    configure_logging()
    limit = descriptors.raise_limit()
    layout = Layout(settings.data_dir)
    if (settings.kubernetes is None or settings.key_file is None) and (opened := layout.ensure()):
        structlog.get_logger().warning("other users could read files of the data directory; closed now", files=opened)
    local = LocalAddress(layout, settings.port, settings.url) if settings.kubernetes is None else None
    key = (settings.key_file or layout.key).read_bytes()
    wired: Wired | None = None
    probes = Probes(lambda: wired is not None and wired.context.ready())
    if settings.probe_port is not None:
        # This comes before the store, because a replica that waits for Postgres is alive and must not be restarted.
        await probes.listen(settings.host, settings.probe_port)
    within = settings.kubernetes
    cluster: Cluster = local_cluster(layout) if within is None else await kubernetes_cluster(within, settings.url, key)
    mark, pids = Mark(), set[int]()
    store = await connect(settings, cluster.install, mark=mark, pids=pids)
    duties_store = await connect(settings, cluster.install, size=4, mark=mark, pids=pids)
    wired = wire(store, cluster, key=key, url=settings.url, duties_store=duties_store)
    wired.door.most = descriptors.connections_within(limit)
    if settings.token_file is not None:
        await admit(store, settings.token_file.read_text().strip())
    scraper = settings.metrics_token_file
    if scraper is not None and scraper.exists():  # without it, an admin creates a token for Prometheus
        await admit(store, scraper.read_text().strip(), "metrics", "Prometheus of this installation")
    config = uvicorn.Config(
        wired.app,
        host=settings.host,
        port=settings.port,
        log_config=None,  # the handler `LibraryLogs` logs for uvicorn
        log_level="warning",
        access_log=False,
        lifespan="off",
        http=BoundedHttp,
        ws="none",
        timeout_graceful_shutdown=GRACE,
        server_header=False,
    )
    exclude_from_collection()
    server = Server(config, wired, local)
    starting = asyncio.create_task(_start_replica(server, wired, within))
    watching = asyncio.create_task(_stop_with_supervisor(server))
    try:
        await server.serve()
        if starting.done():
            starting.result()  # raises WrongInstallation
    finally:
        watching.cancel()
        starting.cancel()
        await asyncio.wait([starting])
        await wired.replica.stop()
        await cluster.close()
        await store.close()
        await duties_store.close()
        probes.close()


def exclude_from_collection() -> None:
    """Excludes all objects that exist now from garbage collection, because they live as long as the process. Otherwise every
    full collection walks them and stops the event loop for tens of milliseconds while claims wait (docs/benchmarks.md)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 50)


async def _start_replica(server: Server, wired: Wired, within: InKubernetes | None) -> None:
    """Starts the duties when the namespace is known to be the right one. Requests are served before that, because `doctor` has to
    name what keeps the API server from answering. Nothing is given out until the replica has compared its mark."""
    try:
        if within is not None:
            await check_namespace(wired.store, wired.cluster, within.namespace)
        wired.replica.start()
    except WrongInstallation:
        server.handle_exit(signal.SIGTERM, None)
        raise


async def _stop_with_supervisor(server: Server) -> None:
    """Stops this replica when the `up` that started it was killed. Otherwise an unsupervised replica would keep the port."""
    supervisor = os.environ.get("HOLDFAST_SUPERVISOR")
    while supervisor is not None and str(os.getppid()) == supervisor:  # noqa: ASYNC110 - nothing would set an event
        await asyncio.sleep(1)
    if supervisor is not None:
        server.handle_exit(signal.SIGTERM, None)


def run(settings: Settings) -> None:
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


def configure_logging() -> None:
    """Logs one line per event to standard error: colored text on a terminal, otherwise JSON."""
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    # JSON escapes what a terminal would obey.
    renderer = _on_terminal if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(handlers=[LibraryLogs()], level=logging.WARNING, force=True)


_console = structlog.dev.ConsoleRenderer()


def _on_terminal(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
    """Returns the line in colors. Its values are cleaned first, because they may contain what users sent."""
    return _console(logger, method, {key: shown_lines(each) if isinstance(each, str) else each for key, each in event.items()})


class LibraryLogs(logging.Handler):
    """Logs what libraries log as one line in our format. An unavailable store is logged without a traceback, which would add
    nothing. Only the error's type is logged, because its text may contain what users sent. A write to a client that went away is
    not logged, because it is no defect."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "asyncio" and record.msg == "socket.send() raised exception.":
            return
        error = record.exc_info[1] if record.exc_info else None
        about = {"logger": record.name} | ({"error": type(error).__name__} if error else {})
        unexpected = record.exc_info if error and not isinstance(error, UNAVAILABLE) else None
        structlog.get_logger().log(record.levelno, record.getMessage(), **about, exc_info=unexpected)


__all__ = ["Settings", "run", "serve"]
