"""Runs statements in a chosen order: other replicas on the same database, open transactions, and queues behind a lock."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import asyncpg

from holdfast.postgres.database import Database
from holdfast.postgres.store import PostgresStore
from waiting import Deadline

PATIENCE = 20.0  # seconds after which a test fails whose condition does not come true


@contextlib.asynccontextmanager
async def replicas(store: PostgresStore, count: int, label: str = "replica") -> AsyncIterator[list[PostgresStore]]:
    """Opens stores of other replicas on the same database, each with its own connections."""
    dsn = f"{store.db.dsn}&application_name={label}"
    made = [PostgresStore(await Database.connect(dsn, size=8, pooled=store.db.pooled)) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            await one.close()


@contextlib.asynccontextmanager
async def another(store: PostgresStore) -> AsyncIterator[asyncpg.Connection]:
    """Opens a connection that can keep a transaction open."""
    connection = await asyncpg.connect(store.db.dsn, timeout=60, statement_cache_size=0)
    try:
        yield connection
    finally:
        await connection.close()


async def queued(store: PostgresStore, lock: str, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Lets calls queue behind a lock in this order, then releases the lock. Returns the result or exception of each call."""
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
    """Runs two changes of one claim, in this order or in the reverse order."""
    return await queued(store, row_lock("claim", claim), *(calls if first else reversed(calls)))


async def waiting(store: PostgresStore, count: int, task: asyncio.Task[Any]) -> None:
    """Waits until `count` statements wait for locks. Fails if the task did not wait, because its order is then not known."""
    await until_waiting_or_done(store, count, task)
    assert not task.done(), f"the call did not wait for the lock: {task}"


async def until_waiting_or_done(store: PostgresStore, count: int, task: asyncio.Task[Any]) -> None:
    deadline = Deadline(PATIENCE)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not task.done() and await store.db.value(sql) < count:
        assert not deadline.over(), "the call never waited for a lock"
        await asyncio.sleep(0.01)


def row_lock(table: str, id_: str) -> str:
    return f"SELECT FROM holdfast.{table} WHERE id = '{id_}' FOR UPDATE"
