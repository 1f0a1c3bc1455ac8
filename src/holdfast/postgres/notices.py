"""Receive notifications of what replicas changed. They are only hints, because every waiter also reads again after a few seconds."""

import asyncio
from collections import deque
from collections.abc import Collection
from typing import Literal

import asyncpg
import structlog

from ..tasks import end_all
from .database import CONNECT_SECONDS, UNAVAILABLE, Database

log = structlog.get_logger()
Kind = Literal["c", "w", "p", "t", "k", "reset"]
KINDS: tuple[Kind, ...] = ("c", "w", "p", "t", "k")

LOOK_SECONDS = 0.25  # a claim needs a notice to the worker's replica and one back: at most 0.5 s, usually 0.25 s
# Reads what notices would have reported: events that became visible since the last look, and offers, which write no event. It
# starts at the oldest transaction that was running at the last look, because older ones were over then and have been read.
LOOK = """
WITH edge AS MATERIALIZED (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS x)
SELECT edge.x::text AS edge, e.id, e.claim_id AS c, e.worker_id AS w, e.pool_id AS p,
       CASE WHEN e.kind = 'tenant.deleted' THEN e.tenant END AS t,
       CASE WHEN e.kind = 'token.revoked' THEN e.data ->> 'token' END AS k FROM edge LEFT JOIN LATERAL (
    SELECT * FROM holdfast.event WHERE xid >= $1::text::xid8 ORDER BY xid DESC, id DESC LIMIT 2000) AS e ON true
UNION ALL
SELECT NULL, NULL, NULL, worker_id, NULL, NULL, NULL FROM holdfast.claim WHERE state = 'assigned' AND offered AND NOT delivered
"""


class PostgresNotices:
    """Listens on its own connection and connects again when that is lost. After each connect it yields `reset`, because notices may
    have been missed."""

    def __init__(self, dsn: str, own_pids: Collection[int] = ()) -> None:
        """`own_pids` are the server processes of this replica's own connections. Their notices about claims are skipped, because the
        code that changes a claim wakes its waiters itself, with the row. Otherwise every waiter would read that row again."""
        self._dsn = dsn
        self._own_pids = own_pids
        self._queue: asyncio.Queue[tuple[Kind, list[str]]] = asyncio.Queue(maxsize=10_000)
        self._task = asyncio.create_task(self._listen())

    def __aiter__(self) -> "PostgresNotices":
        return self

    async def __anext__(self) -> tuple[Kind, list[str]]:
        return await self._queue.get()

    async def close(self) -> None:
        await end_all([self._task])

    async def _listen(self) -> None:
        while True:
            lost = asyncio.Event()
            connection: asyncpg.Connection | None = None
            try:
                connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS, statement_cache_size=0)
                connection.add_termination_listener(lambda *_, lost=lost: lost.set())
                await connection.add_listener("holdfast", self._on_notice)
                self._put("reset", [])
                while not lost.is_set():
                    try:
                        await asyncio.wait_for(lost.wait(), 15)
                    except TimeoutError:
                        # A half-open connection reports no error by itself, so a query checks it.
                        await connection.execute("SELECT 1", timeout=5)
            except UNAVAILABLE:
                pass  # the replica's beats fail as well and report the outage
            except asyncpg.PostgresError as error:
                # For example a database that is being restored, or a new password. Retry, because a task that ended here would
                # go unnoticed.
                log.warning("cannot listen for notices, will retry", error=type(error).__name__)
            finally:
                if connection is not None and not connection.is_closed():
                    connection.terminate()
            await asyncio.sleep(0.5)

    def _on_notice(self, _connection: object, pid: int, _channel: str, payload: str) -> None:
        kind, _, ids = payload.partition(" ")
        if kind in KINDS and not (kind == "c" and pid in self._own_pids):
            self._put(kind, ids.split(" "))

    def _put(self, kind: Kind, ids: list[str]) -> None:
        try:
            self._queue.put_nowait((kind, ids))
        except asyncio.QueueFull:
            # Drops all notices for one `reset`, because waiters read again every few seconds anyway.
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(("reset", []))


class PolledNotices:
    """Reads the history at intervals, once for all waiters, because behind PgBouncer in transaction mode a connection cannot listen.
    It raises an error if the store is not available; the next listener starts with `reset`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._edge: str | None = None
        self._seen: set[int] = set()
        self._found: deque[tuple[Kind, list[str]]] = deque()

    def __aiter__(self) -> "PolledNotices":
        return self

    async def __anext__(self) -> tuple[Kind, list[str]]:
        if self._edge is None:
            await self._look()  # before `reset` is returned, so that the next look finds everything that happens after it
            return "reset", []
        while not self._found:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()
        return self._found.popleft()

    async def close(self) -> None:
        pass

    async def _look(self) -> None:
        rows = await self._db.rows(LOOK, self._edge)
        self._edge = next(row["edge"] for row in rows if row["edge"] is not None)
        new = [row for row in rows if row["id"] not in self._seen]
        self._seen = {row["id"] for row in rows if row["id"] is not None}
        for kind in KINDS:
            if ids := {row[kind] for row in new} - {None}:
                self._found.append((kind, list(ids)))
