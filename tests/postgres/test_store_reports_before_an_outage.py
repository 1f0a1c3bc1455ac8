"""A report that was stored just before an outage does not count as sent after the recovery that follows it (P2, P7)."""

import pytest

from holdfast.model.effect import Done, Stale
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_steps import JOB, SESSION, agent_report, assigned, make_pool, make_warm


@pytest.mark.parametrize("since_the_beat", [0.0, 0.5, 1.9])
async def test_a_worker_that_is_cut_off_is_unconfirmed_however_late_it_reported_before_the_outage(
    store: PostgresStore, since_the_beat: float
) -> None:
    clock = await Clock.of(store)
    [worker] = await make_warm(store, await make_pool(store, SESSION))
    await clock.live(3)
    await clock.jump(since_the_beat)  # reports are stored between two beats
    await store.workers.beat([agent_report(worker)])
    await clock.jump(3600)  # the database is restored, and a replica notices it
    await store.recovery.begin("restored", 0)
    await clock.live(31)  # no report arrives
    assert await store.recovery.end() == Done()
    row = await store.workers.get(worker)
    assert row is not None
    assert not row.confirmed
    assert await store.workers.condemn(worker, row.version, "too many", counted=True) == Stale()


async def test_a_hand_over_is_taken_back_at_once_although_another_replica_has_just_joined(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    await clock.live(2)
    await clock.jump(0.9)
    pair = await assigned(store, pool)
    await clock.beat(None)  # the first beat of another replica, which adds no heard time
    assert await store.claims.requeue(pair.claim, pair.fence, reason="its pod is gone", idle=0.0) == Done()
