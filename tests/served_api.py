"""The real API over real HTTP on a real store, without duties. So nothing changes unless a request changes it."""

import asyncio
import contextlib
import http.client
import json
import socket
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import uvicorn

from databases import ReusedDatabase
from fleet import Answer
from holdfast.api.auth import hash_token
from holdfast.api.server import BoundedHttp
from holdfast.local.cluster import LocalCluster
from holdfast.model.effect import Done
from holdfast.model.pod import Pod, Stamp
from holdfast.model.pool import PoolSpec, ProtectionSpec, WorkerSpec
from holdfast.ports.cluster import AgentIdentity
from holdfast.postgres.store import PostgresStore
from holdfast.wiring import Wired, wire

T = TypeVar("T")
KEY = b"a key of 32 bytes for one test.."
# Without an agent and without protection a claim is active as soon as its pod has been read.
DIRECT = PoolSpec(mode="job", warm=0, max=50, worker=WorkerSpec(agent=False), protection=ProtectionSpec(mode="off"))
TOKENS = {
    "admin": ("t-admin", "admin", None),
    "operator": ("t-operator", "operator", None),
    "acme": ("t-acme", "tenant", "acme"),
    "rival": ("t-rival", "tenant", "rival"),
}
# Lists all tables of the product. Tests count their rows before and after a refused request.
TABLES = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition"
)


class PodsOfRows(LocalCluster):
    """Shows a running pod for every worker that is read, because routes are tested without processes."""

    async def read_cached(self, names: Sequence[str]) -> dict[str, Pod]:
        return {name: _pod(name) for name in names}

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod:
        return msgspec.structs.replace(_pod(name), stamp=stamp, protected=True)


def _pod(name: str) -> Pod:
    about = {"install": "i-test", "pool_id": "p-direct", "pool": "direct", "revision": ""}
    return Pod(name=name, uid=f"u-{name}", worker=name, phase="running", version="1", created_at=0.0, **about)


class ServerThread:
    """A thread with an event loop in which all served APIs of a test process run, one after the other."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def cancel_the_rest(self) -> None:
        """Cancels the tasks that a test left behind. Otherwise they would go on in the next test."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


class Stage:
    """The pools `direct` (no agents, warm workers) and `agents` (one worker with an agent), and tokens by name."""

    def __init__(self, database: ReusedDatabase, thread: ServerThread, home: Path) -> None:
        self.database, self.thread, self.home = database, thread, home
        self.dsn, self.loop, self.do = database.dsn, thread.loop, thread.do
        self.wired: Wired
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        self.do(self._up())
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    async def _up(self) -> None:
        store = self.store = PostgresStore(await self.database.connect())
        paths = [self.home / name for name in ("workers", "output", "highwater.json", "servers")]
        self.wired = wire(store, PodsOfRows(*paths, install="i-test", key=KEY), key=KEY, url="http://127.0.0.1:1")
        store.recovery.saw(0)  # no replica runs here that would compare the database with the mark that is stored outside of it
        for name, (id_, role, tenant) in TOKENS.items():
            await store.tokens.make(id_, hash_token(name), name, role, tenant, None)
        await store.pools.put("p-direct", "direct", DIRECT, "api")
        await store.pools.put("p-agents", "agents", PoolSpec(mode="job", warm=0, max=5), "api")
        await self.spawn("p-direct", "w-1", "w-2", "w-3", "w-4", "w-5", "w-6")
        await self.spawn("p-agents", "w-agent")
        config = uvicorn.Config(
            self.wired.app, port=0, log_level="warning", access_log=False, lifespan="off", http=BoundedHttp, ws="none"
        )
        config.load()
        # Started and stopped without `serve`, which looks only ten times per second whether it has to stop.
        self.server = uvicorn.Server(config)
        self.server.lifespan = config.lifespan_class(config)
        await self.server.startup()
        await self.server.on_tick(0)

    async def spawn(self, pool: str, *workers: str) -> None:
        """Inserts warm workers. These tests need no pods for them."""
        made = await self.store.workers.spawn(pool, workers, len(workers), len(workers))
        for worker, _ in made:
            assert isinstance(await self.store.workers.spawned(worker, f"u-{worker}"), Done)
            row = await self.store.workers.get(worker)
            assert row is not None
            assert isinstance(await self.store.workers.warm(worker, row.version, None), Done)

    def down(self) -> None:
        async def stop() -> None:
            self.wired.context.signals.stop()
            self.server.should_exit = True
            self.server.force_exit = True
            await self.server.shutdown()
            await self.thread.cancel_the_rest()
            await self.wired.cluster.close()

        self.do(stop())

    # Requests

    def agent_token(self, worker: str = "w-agent") -> str:
        return self.wired.context.auth.sign_agent(AgentIdentity(worker, f"u-{worker}"))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "admin",
        headers: dict[str, str] | None = None,
        raw: bytes | Iterator[bytes] | None = None,
    ) -> Answer:
        """Sends a request. `raw` is the unencoded body; an iterator is sent in chunks."""
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            payload = raw if raw is not None else None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {**sent, **(headers or {})}, encode_chunked=raw is not None)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        finally:
            connection.close()

    def send_raw(self, data: bytes) -> bytes:
        """Sends bytes to the server, and returns what it sent back until the connection was closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            received = b""
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(65536):
                    received += piece
            return received

    def claim(self, token: str = "acme", **request: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/v1/claims", {"pool": "direct", "wait": "5s", **request}, token=token)
        assert answer.status in (200, 201, 202), answer.raw
        return dict(answer.json)

    def rows(self) -> dict[str, int]:
        """Returns the number of rows per table."""

        async def count() -> dict[str, int]:
            names = [row["relname"] for row in await self.store.db.rows(TABLES)]
            return {name: await self.store.db.value(f"SELECT count(*) FROM holdfast.{name}") for name in names}

        return self.do(count())


@pytest.fixture(scope="session")
def server_thread(reused_database: ReusedDatabase) -> Iterator[ServerThread]:
    thread = ServerThread()
    yield thread
    thread.do(reused_database.disconnect())
    thread.close()


@pytest.fixture
def served(dsn: str, reused_database: ReusedDatabase, server_thread: ServerThread) -> Iterator[Stage]:
    """Serves the API on an empty database. Connections and thread are those of the test before, which is much quicker."""
    with tempfile.TemporaryDirectory(prefix="hf-") as home:
        stage = Stage(reused_database, server_thread, Path(home))
        stage.up()
        try:
            yield stage
        finally:
            stage.down()
