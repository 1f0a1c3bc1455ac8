"""Listening for other replicas' notifications. A hint only: every wait also looks again by itself."""

import asyncio
from collections import deque
from collections.abc import Collection
from typing import Literal

import asyncpg
import structlog

from .database import CONNECT_SECONDS, UNAVAILABLE, Database

log = structlog.get_logger()
Kind = Literal["c", "w", "p", "reset"]
KINDS: tuple[Kind, ...] = ("c", "w", "p")

LOOK_SECONDS = 0.25  # a claim's way leads to the worker's replica and back: half a second at most, and a quarter as a rule
# What notices would have told: events that became visible since the last look, and offers, which write no event. From the
# transaction that was the oldest running one on: those below it were over, and have been seen.
LOOK = """
WITH edge AS MATERIALIZED (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS x)
SELECT edge.x::text AS edge, e.id, e.claim_id AS c, e.worker_id AS w, e.pool_id AS p FROM edge LEFT JOIN LATERAL (
    SELECT * FROM holdfast.event WHERE xid >= $1::text::xid8 ORDER BY xid DESC, id DESC LIMIT 2000) AS e ON true
UNION ALL
SELECT NULL, NULL, NULL, worker_id, NULL FROM holdfast.claim WHERE state = 'assigned' AND offered AND NOT delivered
"""


class PostgresNotices:
    """One connection of its own, which comes back after every loss; a gap is announced as `reset`."""

    def __init__(self, dsn: str, own_pids: Collection[int] = ()) -> None:
        """`own_pids`: of this replica's own connections. Their notices about claims are skipped, because the code that changes a
        claim signals that itself, with the row; otherwise every waiter would read the row that it is about to be handed."""
        self._dsn = dsn
        self._own_pids = own_pids
        self._queue: asyncio.Queue[tuple[Kind, list[str]]] = asyncio.Queue(maxsize=10_000)
        self._task = asyncio.create_task(self._listen())

    def __aiter__(self) -> "PostgresNotices":
        return self

    async def __anext__(self) -> tuple[Kind, list[str]]:
        return await self._queue.get()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            lost = asyncio.Event()
            connection: asyncpg.Connection | None = None
            try:
                connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS, statement_cache_size=0)
                connection.add_termination_listener(lambda *_, lost=lost: lost.set())
                await connection.add_listener("holdfast", self._heard)
                self._put("reset", [])
                while not lost.is_set():
                    try:
                        await asyncio.wait_for(lost.wait(), 15)
                    except TimeoutError:
                        # A half-open connection hears nothing and says nothing: ask it.
                        await connection.execute("SELECT 1", timeout=5)
            except UNAVAILABLE:
                pass  # the beats say so
            except asyncpg.PostgresError as error:
                # A database that is being restored, a new password: nobody would notice that we had given up.
                log.warning("notices are not heard", error=type(error).__name__)
            finally:
                if connection is not None and not connection.is_closed():
                    connection.terminate()
            await asyncio.sleep(0.5)

    def _heard(self, _connection: object, pid: int, _channel: str, payload: str) -> None:
        kind, _, ids = payload.partition(" ")
        if kind in KINDS and not (kind == "c" and pid in self._own_pids):
            self._put(kind, ids.split(" "))

    def _put(self, kind: Kind, ids: list[str]) -> None:
        try:
            self._queue.put_nowait((kind, ids))
        except asyncio.QueueFull:
            # Better late than never: who waits looks again every few seconds anyway.
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(("reset", []))


class PolledNotices:
    """Where nobody can listen, as behind PgBouncer in transaction mode: one look at the history for everybody who waits. It ends
    by an error when the store is away; whoever listens anew begins with `reset`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._edge: str | None = None
        self._seen: set[int] = set()
        self._found: deque[tuple[Kind, list[str]]] = deque()

    def __aiter__(self) -> "PolledNotices":
        return self

    async def __anext__(self) -> tuple[Kind, list[str]]:
        if self._edge is None:
            await self._look()  # before the word: what happens after it is seen by the next look
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
