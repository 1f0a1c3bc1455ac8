"""Deadlines run in heard time: neither an outage nor a jump of the clock ends a claim (P7)."""

import pytest

from holdfast.duties.deadlines import FIRST_STALL
from holdfast.model.effect import Done, Stale
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_steps import (
    DIRECT,
    JOB,
    SESSION,
    active,
    agent_report,
    ask,
    end,
    lone_active,
    make_active,
    make_pool,
    make_warm,
    match,
)
from postgres.store_tables import due

HOUR = 3600.0


async def leased(store: PostgresStore, lease: float) -> str:
    """Makes an active claim with this lease, in a pool without hand-over."""
    pool = await store.pools.get("linux") or await make_pool(store, DIRECT)
    await make_warm(store, pool)
    return (await active(store, pool, ask(lease=lease))).claim


async def test_with_a_beat_a_second_a_lease_runs_out_on_time(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    claim = await leased(store, 20)
    await clock.live(19)
    assert await due(store) == []
    assert await end(store, claim, "lease") == Stale(), "not by a plan from elsewhere either"
    await clock.live(1)
    assert await due(store) == [claim]
    assert await end(store, claim, "lease") == Done()


@pytest.mark.parametrize("silence", [6.0, 300.0, HOUR])
async def test_an_outage_takes_no_time_from_a_lease(store: PostgresStore, silence: float) -> None:
    clock = await Clock.of(store)
    claim = await leased(store, 20)
    await clock.live(10)
    await clock.jump(silence)
    assert await due(store) == [], "the duty's pass may come before the first beat"
    await clock.beat(silence)
    assert await due(store) == []
    assert await end(store, claim, "lease") == Stale()
    await clock.live(10)
    assert await due(store) == [claim], "and then it goes on where it stood"


@pytest.mark.parametrize("beaten", [False, True], ids=["before the first beat", "after the first beat"])
async def test_an_outage_takes_no_time_from_a_short_lease(store: PostgresStore, beaten: bool) -> None:
    clock = await Clock.of(store)
    pair = await lone_active(store, DIRECT, ask(lease=4.0))
    await clock.live(2)
    assert await store.claims.renew(pair.claim, pair.fence), "its holder renews in time"
    await clock.jump(300)
    if beaten:
        await clock.beat(300)
    assert await due(store) == [], "in 300 s of outage no renewal could be stored"


async def test_a_clock_that_jumps_forward_ends_nothing(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    claim = await leased(store, 20)
    await clock.live(5)
    await clock.jump(HOUR)
    assert await due(store) == []
    await clock.beat(1.0)
    assert await due(store) == []
    await clock.live(13)
    assert await due(store) == [], "6 s were heard before, and 13 now"
    await clock.live(1)
    assert await due(store) == [claim]


async def test_a_clock_that_jumps_forward_ends_nothing_of_what_is_short(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    await leased(store, 4)
    await clock.live(1)
    await clock.jump(HOUR)  # but no real time has passed
    assert await due(store) == []


async def test_a_clock_that_jumps_back_makes_no_lease_immortal(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    claim = await leased(store, 20)
    await clock.live(5)
    await clock.jump(-HOUR)
    assert await due(store) == []
    await clock.beat(1.0)
    await clock.live(14)
    assert await due(store) == []
    await clock.live(1)
    assert await due(store) == [claim]


async def test_a_replicas_first_beat_moves_nothing(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    await leased(store, 20)
    await clock.live(10)
    before = await clock.heard()
    for _ in range(30):  # a replica that crashes and restarts, with hours in between
        await clock.jump(HOUR)
        await clock.beat(None)
    assert await clock.heard() == before
    assert await due(store) == []


async def test_two_replicas_beats_do_not_count_twice(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    before = await clock.heard()
    for _ in range(20):
        await clock.jump(0.5)
        await store.fleet.beat("r-1", 1.0, 10.0, [])
        await clock.jump(0.5)
        await store.fleet.beat("r-2", 1.0, 10.0, [])
    assert await clock.heard() - before == pytest.approx(20)


async def test_silence_while_no_replica_listened_does_not_count(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    await store.workers.beat([agent_report(worker)])

    async def age() -> float:
        [row] = await store.workers.rows([worker])
        assert row.heartbeat is not None
        return row.heartbeat.age

    await clock.live(10)
    assert await age() == pytest.approx(10)
    await clock.outage(300)
    assert await age() <= 15
    await clock.jump(HOUR)
    await clock.beat(1.0)
    await clock.jump(-2 * HOUR)
    await clock.beat(1.0)
    assert 10 <= await age() <= 17
    await clock.live(50)
    assert await age() > 60, "a worker that is really silent is found"
    await store.workers.beat([agent_report(worker)])
    assert await age() == pytest.approx(0)


async def test_every_deadline_stands_still_in_an_outage(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool, 3)
    parked = await active(store, pool, ask("a", lease=60.0, park_ttl=30.0))
    longest = await active(store, pool, ask("b", lease=60.0, max_duration=30.0))
    [handed] = await match(store, pool, ask("c"))
    assert await end(store, parked.claim) == Done()
    waiting = ask("d", deadline=30.0)
    await store.db.rows("UPDATE holdfast.worker SET schedulable = false WHERE state = 'warm'")
    await match(store, pool, waiting)
    await clock.live(3)
    await clock.outage(6 * HOUR)
    found = {one.claim: one for one in await store.claims.due(100, FIRST_STALL)}
    assert longest.claim not in found
    assert waiting.id not in found
    assert handed.claim not in found
    [load] = await store.pools.loads()
    assert load.parked_expired == []
    await clock.live(27)
    found = {one.claim: one for one in await store.claims.due(100, FIRST_STALL)}
    assert found[longest.claim].past_max
    assert found[waiting.id].past_deadline
    assert found[handed.claim].idle == pytest.approx(30)
    [load] = await store.pools.loads()
    assert [worker for worker, _ in load.parked_expired] == [parked.worker]


@pytest.mark.parametrize("deaf", [0.0, 2 * HOUR, -2 * HOUR], ids=["in calm", "after an outage", "after a clock that went back"])
async def test_a_retried_claim_gets_its_waiting_time_again(store: PostgresStore, deaf: float) -> None:
    clock = await Clock.of(store)
    await clock.outage(deaf)
    pair = await lone_active(store, JOB, ask(retry="lost", deadline=30.0))
    await clock.live(40)
    again = await store.claims.requeue(pair.claim, pair.fence, dead=True, reason="its pod is gone")
    assert again == Done()
    assert await due(store) == [], "it may wait 30 s again"
    await clock.live(29)
    assert await due(store) == []
    await clock.live(1)
    assert await due(store) == [pair.claim]


async def test_a_claim_retried_twice_waits_no_longer_than_it_asked(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    new = ask(retry="lost", deadline=30.0)
    await match(store, pool, new)
    for _ in range(2):
        await make_warm(store, pool)
        [pair] = await match(store, pool)
        await make_active(store, pool, pair)
        await clock.live(40)
        await store.claims.requeue(pair.claim, pair.fence, dead=True, reason="its pod is gone")
    await clock.live(30)
    assert await due(store) == [new.id]
