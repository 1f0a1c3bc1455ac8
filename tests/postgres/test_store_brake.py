"""The brake limits the endings that Holdfast decides itself, also in races. A person releases it (P7)."""

import asyncio

from holdfast.model.effect import Done, Skipped, Stale
from holdfast.model.pool import Pool
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_locks import replicas
from postgres.store_rows import set_brake
from postgres.store_steps import DIRECT, JOB, active, ask, end, make_pool, make_warm, match
from postgres.store_tables import column, kinds

BRAKED = Skipped("braked")


async def overdue(store: PostgresStore, clock: Clock, pool: Pool, count: int) -> list[str]:
    """Makes active claims whose leases have expired."""
    await make_warm(store, pool, count)
    pairs = await match(store, pool, *(ask(lease=2.0) for _ in range(count)))
    assert len(pairs) == count
    await clock.live(3)
    return [pair.claim for pair in pairs]


async def brake_events(store: PostgresStore) -> list[str]:
    return await column(store, "SELECT kind FROM holdfast.event WHERE kind IN ('brake.tripped', 'brake.released') ORDER BY id")


async def test_racing_endings_stop_at_the_limit(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    await set_brake(store, 5, 0.0)
    claims = await overdue(store, clock, await make_pool(store), 14)
    async with replicas(store, 2) as others:
        peers = [store, *others]
        answers = await asyncio.gather(*(end(peers[n % 3], claim, "lease") for n, claim in enumerate(claims)))
        assert answers.count(Done()) == 5
        assert answers.count(BRAKED) == 9
        assert await store.db.value("SELECT count(*) FROM holdfast.claim WHERE state = 'active'") == 9
        assert await brake_events(store) == ["brake.tripped"], "one event"
        brake = await store.fleet.brake()
        assert (brake["tripped"], brake["claims_ended"]) == (True, 5)

        # Time alone does not release it.
        await clock.jump(3600)
        await clock.beat(1.0)
        left = [claim for claim, answer in zip(claims, answers, strict=True) if answer == BRAKED]
        assert await end(store, left[0], "lease") == BRAKED

        # A person releases it, and it starts to count again.
        assert await store.fleet.release_brake("looked at it")
        assert not await store.fleet.release_brake("again")
        await clock.live(1)
        answers = await asyncio.gather(*(end(peers[n % 3], claim, "lease") for n, claim in enumerate(left)))
        assert answers.count(Done()) == 5
    assert await brake_events(store) == ["brake.tripped", "brake.released", "brake.tripped"]


async def test_a_tripped_brake_leaves_holders_their_ways(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    await set_brake(store, 0, 0.0)
    claims = await overdue(store, clock, await make_pool(store), 6)
    assert await end(store, claims[0], "lease") == BRAKED
    for claim, how in zip(claims[:4], ("release", "result", "cancel", "force"), strict=True):
        assert await end(store, claim, how) == Done(), how
    assert await end(store, claims[4], "death") == Done(), "proof of death is not ours to count"
    assert await end(store, claims[5], "lease") == BRAKED
    assert await store.db.value("SELECT count(*) FROM holdfast.ending") == 0


async def test_proof_of_death_is_not_counted(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    await set_brake(store, 2, 0.0)
    claims = await overdue(store, clock, await make_pool(store), 8)
    for claim in claims[:6]:
        assert await end(store, claim, "death") == Done()
    assert await end(store, claims[6], "lease") == Done()
    assert await end(store, claims[7], "max_duration", states=("active",)) == Stale(), "its longest duration has not passed"
    assert (await store.fleet.brake())["claims_ended"] == 1


async def test_condemning_in_a_race_stops_at_the_limit(store: PostgresStore) -> None:
    await set_brake(store, 3, 0.0)
    pool = await make_pool(store, JOB)
    workers = await make_warm(store, pool, 10)
    async with replicas(store, 2) as others:
        peers = [store, *others]
        answers = await asyncio.gather(
            *(peers[n % 3].workers.condemn(w, None, "too many", counted=True) for n, w in enumerate(workers))
        )
    assert answers.count(Done()) == 3
    assert answers.count(BRAKED) == 7
    kept = [worker for worker, answer in zip(workers, answers, strict=True) if answer == BRAKED]
    assert await kinds(store, worker=kept[0]) == ["worker.spawning", "worker.warm"], "what was refused left no trace"
    assert await store.workers.condemn(kept[0], None, "its pod is gone", counted=False) == Done()


async def test_a_large_fleet_may_end_its_share(store: PostgresStore) -> None:
    await set_brake(store, 1, 0.25)
    pool = await make_pool(store, JOB)
    workers = await make_warm(store, pool, 12)
    answers = [await store.workers.condemn(worker, None, "too many", counted=True) for worker in workers]
    # Retiring workers are still alive. A quarter of 12 and the 3 that were ended is 3.
    assert answers.count(Done()) == 3
    assert answers[:3] == [Done()] * 3


async def test_endings_of_more_than_ten_minutes_ago_do_not_count(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    await set_brake(store, 2, 0.0)
    pool = await make_pool(store, DIRECT)
    claims = await overdue(store, clock, pool, 5)
    assert [await end(store, claim, "lease") for claim in claims[:2]] == [Done(), Done()]
    await clock.jump(601)
    await clock.beat(1.0)
    assert [await end(store, claim, "lease") for claim in claims[2:]] == [Done(), Done(), BRAKED]
    await make_warm(store, pool)
    held = await active(store, pool)
    assert await store.claims.state(held.claim) == "active", "a tripped brake stops no claim from being served"
