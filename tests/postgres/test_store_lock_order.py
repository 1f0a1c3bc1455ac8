"""Statements that lock several rows lock them in the order of their ids, claims before workers, so that no two can deadlock."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from holdfast.ports.store import Facts
from holdfast.postgres.store import PostgresStore
from postgres.changes import apart
from postgres.store_locks import another, row_lock, waiting
from postgres.store_rows import NOW, add_held, insert
from postgres.store_steps import BARE, JOB

Call = Callable[[PostgresStore], Awaitable[Any]]


async def locked_while_waiting_for(
    store: PostgresStore, first: tuple[str, str], call: Call, *others: tuple[str, str]
) -> list[str]:
    """Keeps a row locked until the call waits for it. Returns which of the other rows the call has locked by then."""
    taken = []
    async with another(store) as holder, another(store) as looker:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(row_lock(*first))

        async def called() -> Any:
            return await call(store)

        task = asyncio.create_task(called())
        await waiting(store, 1, task)
        for table, id_ in others:
            try:
                await looker.execute(row_lock(table, id_) + " NOWAIT")
            except asyncpg.LockNotAvailableError:
                taken.append(id_)
        await transaction.rollback()
        await task
    return taken


async def four_rows(store: PostgresStore, state: str, spec: Any = JOB) -> None:
    """Writes the claims c-1 and c-2 on the workers w-2 and w-1. The later rows come first in the tables."""
    await apart(store)
    await store.pools.put("p-1", "linux", spec, "api")
    await add_held(store, "w-2", "c-2", state, fence=2, progress_heard=NOW)
    await add_held(store, "w-1", "c-1", state, fence=1, progress_heard=NOW)
    await store.db.rows("UPDATE holdfast.worker SET pod_uid = 'uid-' || id")


def fact(worker: str) -> Facts:
    return Facts(worker=worker, uid=f"uid-{worker}", node="n", terminating=False, schedulable=True, protected=False)


CALLS: dict[str, tuple[str, Call]] = {
    "begin recovery": ("assigned", lambda store: store.recovery.begin("restored", 0)),
    "offer": ("assigned", lambda store: store.claims.offer([("c-2", 2, True), ("c-1", 1, True)])),
}


@pytest.mark.parametrize("name", CALLS)
async def test_claims_are_locked_by_id_and_before_any_worker(store: PostgresStore, name: str) -> None:
    state, call = CALLS[name]
    await four_rows(store, state, BARE)
    rows = [("claim", "c-2"), ("worker", "w-1"), ("worker", "w-2")]
    assert await locked_while_waiting_for(store, ("claim", "c-1"), call, *rows) == []


@pytest.mark.parametrize("name", CALLS)
async def test_workers_are_locked_by_id_and_after_all_claims(store: PostgresStore, name: str) -> None:
    state, call = CALLS[name]
    await four_rows(store, state, BARE)
    rows = [("claim", "c-1"), ("claim", "c-2"), ("worker", "w-2")]
    assert await locked_while_waiting_for(store, ("worker", "w-1"), call, *rows) == ["c-1", "c-2"]


async def test_what_pods_show_is_written_in_the_order_of_the_workers(store: PostgresStore) -> None:
    await four_rows(store, "active")

    async def facts(store: PostgresStore) -> int:
        return await store.workers.facts([fact("w-2"), fact("w-1")])

    assert await locked_while_waiting_for(store, ("worker", "w-1"), facts, ("worker", "w-2")) == []


async def test_a_recovery_locks_also_claims_that_it_does_not_change(store: PostgresStore) -> None:
    await four_rows(store, "active")  # without leases
    await insert(store, "claim", id="c-0")

    async def begin(store: PostgresStore) -> bool:
        return await store.recovery.begin("restored", 0)

    assert await locked_while_waiting_for(store, ("claim", "c-2"), begin, ("claim", "c-1"), ("claim", "c-0")) == ["c-1"]


async def test_a_recovery_does_not_wait_for_workers_without_an_assignment(store: PostgresStore) -> None:
    await four_rows(store, "assigned")
    await insert(store, "worker", id="w-0")
    async with another(store) as holder, holder.transaction():
        await holder.execute(row_lock("worker", "w-0"))
        assert await store.recovery.begin("restored", 0)


@pytest.mark.parametrize("end", ["give up", "end"])
async def test_a_claim_is_locked_before_its_worker(store: PostgresStore, end: str) -> None:
    await four_rows(store, "assigned")
    await store.db.rows(f"UPDATE holdfast.worker SET unconfirmed_since = {NOW}")

    async def call(store: PostgresStore) -> Any:
        if end == "give up":
            return await store.recovery.give_up("w-1", "hopeless")
        return await store.claims.end("c-1", outcome="released", how="release", reason="", states=("assigned",))

    assert await locked_while_waiting_for(store, ("claim", "c-1"), call, ("worker", "w-1")) == []
    assert await locked_while_waiting_for(store, ("worker", "w-2"), _given_up, ("claim", "c-2")) == ["c-2"]


async def _given_up(store: PostgresStore) -> Any:
    return await store.recovery.give_up("w-2", "hopeless")
