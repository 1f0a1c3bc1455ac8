"""Run one replica: its doors and its duties in one process."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import structlog
import uvicorn
import uvloop

from .api.probes import Probes
from .api.server import BoundedHttp
from .ports.cluster import Cluster
from .ports.recovery import Mark
from .postgres.database import UNAVAILABLE
from .wiring import Layout, Settings, Wired, admit, connect, kubernetes_cluster, local_cluster, wire

COLLECT_AFTER = 50_000  # objects; requests leave no cycles behind, so a collection finds little and stops everybody meanwhile
GRACE = 5  # seconds for requests under way; long polls and waits are answered at once


class Server(uvicorn.Server):
    """Uvicorn, which first lets go of everybody who waits."""

    def __init__(self, config: uvicorn.Config, wired: Wired) -> None:
        super().__init__(config)
        self._wired = wired

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours alone. Uvicorn would raise them once more when it has served, and we would die of that before our leave: terms
        that nobody gives back stay dark until they run out."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._wired.context.signals.stop()
        super().handle_exit(sig, frame)


async def serve(settings: Settings) -> None:
    configure_logging()
    layout = Layout(settings.data_dir)
    if settings.kubernetes is None or settings.key_file is None:
        layout.ensure()
    if settings.kubernetes is None:
        layout.announce([settings.url])
    key = (settings.key_file or layout.key).read_bytes()
    wired: Wired | None = None
    probes = Probes(lambda: wired is not None and wired.context.ready())
    if settings.probe_port is not None:
        # Before the store: a replica that waits for Postgres is alive, and must not be restarted for it.
        await probes.listen(settings.host, settings.probe_port)
    within = settings.kubernetes
    cluster: Cluster = local_cluster(layout) if within is None else await kubernetes_cluster(within, settings.url)
    mark, pids = Mark(), set[int]()
    store = await connect(settings, cluster.install, mark=mark, pids=pids)
    duties_store = await connect(settings, cluster.install, size=4, mark=mark, pids=pids)
    wired = wire(store, cluster, key=key, url=settings.url, duties_store=duties_store)
    if settings.token_file is not None:
        await admit(store, settings.token_file.read_text().strip())
    config = uvicorn.Config(
        wired.app,
        host=settings.host,
        port=settings.port,
        log_config=None,  # as ours: see Libraries
        log_level="warning",
        access_log=False,
        lifespan="off",
        http=BoundedHttp,
        ws="none",
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=75,
        server_header=False,
    )
    spare_collections()
    wired.replica.start()
    server = Server(config, wired)
    watching = asyncio.create_task(_leave_with_supervisor(server))
    try:
        await server.serve()
    finally:
        watching.cancel()
        await wired.replica.stop()
        await cluster.close()
        await store.close()
        await duties_store.close()
        probes.close()


def spare_collections() -> None:
    """What was made until here lives for ever: walked again by every full collection, it stops the loop for tens of
    milliseconds while claims wait (docs/benchmarks.md)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 50)


async def _leave_with_supervisor(server: Server) -> None:
    """`up` was killed: a replica that nobody would start again must not keep the port."""
    supervisor = os.environ.get("HOLDFAST_SUPERVISOR")
    while supervisor is not None and str(os.getppid()) == supervisor:  # noqa: ASYNC110 - nothing would set an event
        await asyncio.sleep(1)
    if supervisor is not None:
        server.handle_exit(signal.SIGTERM, None)


def run(settings: Settings) -> None:
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


def configure_logging() -> None:
    """One line an event on standard error; JSON where nobody watches."""
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(handlers=[Libraries()], level=logging.WARNING, force=True)


class Libraries(logging.Handler):
    """What libraries log, as one line of ours. That the store is away is said without a traceback, which would say nothing more,
    and by the error's type: its text may echo what users sent."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        about = {"logger": record.name} | ({"error": type(error).__name__} if error else {})
        unexpected = record.exc_info if error and not isinstance(error, UNAVAILABLE) else None
        structlog.get_logger().log(record.levelno, record.getMessage(), **about, exc_info=unexpected)


__all__ = ["Settings", "run", "serve"]
