"""The brake compares the endings of one kind in ten minutes with the living workers of that kind, and with nothing else."""

import pytest

from holdfast.model.effect import Done, Skipped
from holdfast.postgres.store import PostgresStore
from postgres.changes import add_worker, apart, pool_with_worker
from postgres.store_rows import set_brake
from postgres.store_steps import BARE, JOB, SESSION, active, ask, end
from postgres.store_tables import state_of

BRAKED = Skipped("braked")


async def condemned(store: PostgresStore, worker: str) -> object:
    return await store.workers.condemn(worker, None, "not wanted", counted=True)


async def test_an_ending_of_the_other_kind_does_not_count(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, BARE)
    for worker in ("w-2", "w-3"):
        await add_worker(store, pool, worker)
    await active(store, pool, ask(id="c-1", lease=1.0))
    await clock.live(2)
    await set_brake(store, 1, 0.0)
    assert await end(store, "c-1", "lease") == Done()
    assert await condemned(store, "w-2") == Done()
    assert await condemned(store, "w-3") == BRAKED


@pytest.mark.parametrize(("seconds", "answer"), [(599.0, BRAKED), (600.0, Done())])
async def test_an_ending_counts_for_ten_minutes(store: PostgresStore, seconds: float, answer: object) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    await add_worker(store, pool, "w-2")
    await set_brake(store, 1, 0.0)
    assert await condemned(store, "w-1") == Done()
    await clock.jump(seconds)
    assert await condemned(store, "w-2") == answer


async def test_endings_before_the_brake_was_released_do_not_count(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    for worker in ("w-2", "w-3"):
        await add_worker(store, pool, worker)
    await set_brake(store, 1, 0.0)
    assert [await condemned(store, worker) for worker in ("w-1", "w-2")] == [Done(), BRAKED]
    await clock.jump(1)
    assert await store.fleet.release_brake("looked at")
    await clock.jump(1)
    assert [await condemned(store, worker) for worker in ("w-2", "w-3")] == [Done(), BRAKED]


async def test_workers_that_are_gone_are_no_part_of_the_share(store: PostgresStore) -> None:
    pool = await pool_with_worker(store, JOB)
    for worker in ("w-2", "w-3", "w-4"):
        await add_worker(store, pool, worker)
    await store.db.rows("UPDATE holdfast.worker SET state = 'gone' WHERE id IN ('w-3', 'w-4')")
    await set_brake(store, 0, 0.5)
    assert [await condemned(store, worker) for worker in ("w-1", "w-2")] == [Done(), BRAKED]


async def test_claims_that_are_handed_over_are_part_of_the_share_and_waiting_ones_are_not(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    await add_worker(store, pool, "w-2")
    await active(store, pool, ask(id="c-1", lease=1.0))
    await clock.live(2)
    await store.claims.match("p-1", [ask(id=f"c-9{n}") for n in range(3)], 0)
    await set_brake(store, 0, 0.5)
    assert await end(store, "c-1", "lease") == BRAKED, "half of one is none"
    await store.fleet.release_brake("looked at")
    assert len((await store.claims.match("p-1", [], 1)).pairs) == 1
    assert await end(store, "c-1", "lease") == Done(), "half of two is one"


async def test_a_worker_is_judged_by_its_own_pool(store: PostgresStore) -> None:
    for n, spec in enumerate((JOB, SESSION, JOB)):
        await store.pools.put(f"p-{n}", f"pool-{n}", spec, "api")
    [_, pool, _] = await store.pools.all()
    await add_worker(store, pool, "w-1")
    await active(store, pool, ask(id="c-1"))
    assert await end(store, "c-1") == Done()
    assert await state_of(store, "worker", "w-1") == "parked"
