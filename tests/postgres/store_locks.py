"""Statements in a chosen order: other replicas on the same database, open transactions, and queues behind a lock."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import asyncpg

from holdfast.postgres.database import Database
from holdfast.postgres.store import PostgresStore
from waiting import Deadline

PATIENCE = 20.0  # seconds until a condition that never comes fails its test


@contextlib.asynccontextmanager
async def replicas(store: PostgresStore, count: int, label: str = "replica") -> AsyncIterator[list[PostgresStore]]:
    """Other replicas on the same database, each with connections of its own."""
    dsn = f"{store.db.dsn}&application_name={label}"
    made = [PostgresStore(await Database.connect(dsn, size=8, pooled=store.db.pooled)) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            await one.close()


@contextlib.asynccontextmanager
async def another(store: PostgresStore) -> AsyncIterator[asyncpg.Connection]:
    """A connection that may keep a transaction open."""
    connection = await asyncpg.connect(store.db.dsn, timeout=60, statement_cache_size=0)
    try:
        yield connection
    finally:
        await connection.close()


async def queued(store: PostgresStore, lock: str, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Let calls line up, in this order, behind a lock; then let go of it. What each answered or raised."""
    async with another(store) as holder:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(lock)
        tasks: list[asyncio.Task[Any]] = []
        for call in calls:
            tasks.append(asyncio.create_task(call))
            await waiting(store, len(tasks), tasks[-1])
        await transaction.commit()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def in_order(store: PostgresStore, claim: str, first: bool, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Two changes of one claim, in this order or in the other."""
    return await queued(store, row_lock("claim", claim), *(calls if first else reversed(calls)))


async def waiting(store: PostgresStore, count: int, task: asyncio.Task[Any]) -> None:
    """Until so many statements wait for locks. A call that did not wait tells no story about order."""
    await until_waiting_or_done(store, count, task)
    assert not task.done(), f"it did not wait: {task}"


async def until_waiting_or_done(store: PostgresStore, count: int, task: asyncio.Task[Any]) -> None:
    deadline = Deadline(PATIENCE)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not task.done() and await store.db.value(sql) < count:
        assert not deadline.over(), "it never came to wait"
        await asyncio.sleep(0.01)


def row_lock(table: str, id_: str) -> str:
    return f"SELECT FROM holdfast.{table} WHERE id = '{id_}' FOR UPDATE"
