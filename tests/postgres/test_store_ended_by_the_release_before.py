"""A replica of an earlier release ends a recovery while this release runs beside it. Nothing runs twice, and nothing is given out
that may be busy (P1, P8)."""

import pytest

from holdfast.duties.converge import Converge
from holdfast.model.effect import Done
from holdfast.model.pool import PoolSpec
from holdfast.ports.recovery import Adoption
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, passed
from postgres.store_clock import Clock
from postgres.store_steps import BARE, DIRECT, JOB, active, agent_report, ask, assigned, deliver, end, make_pool, make_warm, match
from postgres.store_tables import column, kinds

# How an earlier release ends a recovery. It knows `suspect_since`, and marks only workers that have been ready and whose agents
# have not reported.
END = """
WITH i AS (UPDATE holdfast.installation SET recovering_since = NULL, recovered_at = holdfast.now()
           RETURNING recovered_at, recovery_heard)
UPDATE holdfast.worker SET suspect_since = i.recovered_at FROM i WHERE state IN ('warm', 'parked', 'held') AND NOT EXISTS (
    SELECT FROM holdfast.heartbeat u WHERE u.worker_id = worker.id AND u.beat_heard > i.recovery_heard)
"""
UNCONFIRMED = "SELECT id FROM holdfast.worker WHERE unconfirmed_since IS NOT NULL ORDER BY id"


async def test_a_claim_that_may_have_run_in_lost_commits_does_not_run_again(store: PostgresStore) -> None:
    # Given a claim whose worker was found to hold a later one. In the lost commits it may have run.
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    pair = await assigned(store, pool, ask(secrets={"token": "hunter2"}))
    await deliver(store, pair)
    await store.recovery.begin("restored", 0)
    about = {"pool": pool.name, "pool_id": pool.id, "revision": pool.revision, "uid": f"uid-{worker}"}
    later = Adoption(worker=worker, claim="c-later", tenant="acme", fence=pair.fence + 1, **about)
    assert await store.recovery.adopt(later) == Done()
    assert await store.claims.state(pair.claim) == "waiting"
    # When a replica of an earlier release ends the recovery, and another worker is free
    await store.db.rows(END)
    await store.recovery.state()
    await make_warm(store, pool)
    # Then the claim is lost, and not given out
    assert await match(store, pool) == []
    [claim] = await store.claims.get([pair.claim])
    assert (claim.state, claim.outcome) == ("ended", "lost")
    assert "may have run" in claim.reason
    assert (await kinds(store, claim=pair.claim))[-1] == "claim.ended"
    assert await column(store, "SELECT count(*) FROM holdfast.claim_secret") == [0]
    stored = "SELECT how FROM holdfast.claim WHERE id = $1 AND ended_heard IS NOT NULL"
    assert await column(store, stored, pair.claim) == ["forgotten"]


@pytest.mark.parametrize("spec", [JOB, DIRECT, BARE], ids=["agent", "no agent", "protection not required"])
async def test_a_starting_worker_that_may_have_got_a_claim_is_unconfirmed(store: PostgresStore, spec: PoolSpec) -> None:
    pool = await make_pool(store, spec)
    await store.workers.spawn(pool.id, ["w-starting"], 1, 1)
    await store.workers.spawned("w-starting", "uid-w-starting")
    await store.recovery.begin("restored", 0)
    await store.db.rows(END)
    assert await column(store, UNCONFIRMED) == ["w-starting"]


async def test_a_free_worker_without_an_agent_is_unconfirmed(store: PostgresStore) -> None:
    pool = await make_pool(store, DIRECT)
    workers = await make_warm(store, pool, 2)
    await store.recovery.begin("restored", 0)
    await store.db.rows("UPDATE holdfast.installation SET recovering_since = NULL, recovered_at = holdfast.now()")
    assert await column(store, UNCONFIRMED) == sorted(workers)
    assert await match(store, pool, ask()) == []


async def test_a_worker_whose_claim_was_released_during_the_recovery_keeps_its_pod(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    [silent, heard] = await make_warm(store, pool, 2)
    pairs = [await active(store, pool), await active(store, pool)]
    await store.recovery.begin("restored", 0)
    await clock.live(2)
    for pair in pairs:
        assert await end(store, pair.claim, "release") == Done()
    await store.workers.beat([agent_report(heard)])
    await store.db.rows(END)
    cluster = RecordedCluster(pool, [silent, heard])
    await passed(Converge(), store, cluster)
    assert list(cluster.kept) == [silent]
