"""An unconfirmed worker after lost commits: one column, one rule, and an older release beside it that knows neither (P7)."""

import msgspec
import pytest

from holdfast.duties.deadlines import OFFER_STALL, Deadlines
from holdfast.model.effect import Done, Stale
from holdfast.model.pool import PoolSpec, ProtectionSpec
from holdfast.postgres.migrate import migrate
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, claim_path, passed
from postgres.store_clock import Clock
from postgres.store_locks import another
from postgres.store_steps import (
    BARE,
    DIRECT,
    JOB,
    SESSION,
    active,
    agent_report,
    ask,
    assigned,
    end,
    make_pool,
    make_warm,
    match,
)
from postgres.store_tables import column, state_of

REQUIRED = msgspec.structs.replace(BARE, protection=ProtectionSpec(mode="claim", required=True))
UNCONFIRMED = "SELECT id FROM holdfast.worker WHERE unconfirmed_since IS NOT NULL ORDER BY id"
# How the previous release ends a recovery: it knows the installation and `suspect_since`.
ENDED_BEFORE = """
WITH i AS (UPDATE holdfast.installation SET recovering_since = NULL, recovered_at = holdfast.now() RETURNING recovered_at)
UPDATE holdfast.worker SET suspect_since = i.recovered_at FROM i WHERE state IN ('warm', 'parked', 'held')
"""
# How the previous release makes a worker without an agent warm, because its pod is ready, and which workers it gives out.
WARMED_BEFORE = "UPDATE holdfast.worker SET state = 'warm', ready = true WHERE id = $1 AND state = 'spawning'"
FREE_BEFORE = """
SELECT id FROM holdfast.worker WHERE state = 'warm' AND ready AND NOT terminating AND schedulable AND suspect_since IS NULL
"""
KNOWN_BEFORE = "SELECT w.id FROM holdfast.worker w, holdfast.installation i WHERE w.suspect_since = i.recovered_at ORDER BY w.id"


async def recovered(store: PostgresStore) -> None:
    await store.recovery.begin("restored", 0)
    assert await store.recovery.end() == Done()


async def unsuspected(store: PostgresStore) -> None:
    """Clears `suspect_since`, as it will be without the trigger for the previous release. The rule must not depend on it."""
    await store.db.rows("UPDATE holdfast.worker SET suspect_since = NULL")


async def test_an_unconfirmed_worker_is_not_given_out_or_ended_until_its_agent_reports(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    await recovered(store)
    await unsuspected(store)
    row = await store.workers.get(worker)
    assert row is not None
    assert not row.confirmed
    assert await match(store, pool, ask()) == []
    assert await store.workers.condemn(worker, row.version, "not wanted", counted=False) == Stale()
    [load] = await store.pools.loads()
    assert (load.warm, load.unusable, load.current_warm) == (0, 1, []), "it is no capacity, and scaling leaves it alone"
    await store.workers.report(agent_report(worker))
    row = await store.workers.get(worker)
    assert row is not None
    assert (row.confirmed, row.suspect_since) == (True, None)
    assert [pair.worker for pair in await match(store, pool)] == [worker]


async def test_an_unconfirmed_worker_is_not_parked_for_its_tenants_next_claim(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool)
    pair = await active(store, pool, ask(lease=60.0))
    await recovered(store)
    await unsuspected(store)
    assert await end(store, pair.claim, "release") == Done()
    row = await store.workers.get(pair.worker)
    assert row is not None
    assert row.state == "retiring"


async def test_a_hand_over_without_its_required_protection_ends_no_claim_of_an_unconfirmed_worker(store: PostgresStore) -> None:
    # Given a hand-over that waits for the protection, while the database loses commits in which the work may have begun
    pool = await make_pool(store, msgspec.structs.replace(JOB, protection=ProtectionSpec(required=True)))
    [worker] = await make_warm(store, pool)
    pair = await assigned(store, pool)
    await recovered(store)
    # When the cluster does not accept the protection
    cluster = RecordedCluster(pool, [worker])
    cluster.down = True
    await claim_path(store, cluster).start_hand_over(pool, pair)
    # Then claim and worker stay as they are, until its agent reports that the work has not begun
    assert await state_of(store, "claim", pair.claim) == "assigned"
    assert await state_of(store, "worker", worker) == "held"
    await store.workers.report(agent_report(worker, doing="activating", claim=pair.claim, fence=pair.fence, tenant=pair.tenant))
    await claim_path(store, cluster).start_hand_over(pool, pair)
    [claim] = await store.claims.get([pair.claim])
    assert claim.outcome == "refused"


async def test_the_release_before_ends_a_recovery_and_this_one_knows_what_is_unconfirmed(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    workers = await make_warm(store, pool, 2)
    await store.recovery.begin("restored", 0)
    await store.db.rows(ENDED_BEFORE)
    assert await column(store, UNCONFIRMED) == sorted(workers)


async def test_this_release_ends_a_recovery_and_the_one_before_knows_what_is_unconfirmed(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    workers = await make_warm(store, pool, 2)
    await recovered(store)
    assert await column(store, KNOWN_BEFORE) == sorted(workers)
    await recovered(store)
    assert await column(store, KNOWN_BEFORE) == sorted(workers), "after the next recovery as well"


async def test_the_release_before_neither_gives_out_nor_ends_a_starting_worker_that_is_unconfirmed(store: PostgresStore) -> None:
    # Given a worker that the restored database shows as starting. In the lost commits it may have got a claim.
    pool = await make_pool(store, DIRECT)
    worker = "w-starting"
    await store.workers.spawn(pool.id, [worker], 1, 1)
    await store.workers.spawned(worker, f"uid-{worker}")
    await recovered(store)
    assert await column(store, KNOWN_BEFORE) == [worker], "the previous release does not end what this shows"
    # When a replica of the previous release finds its pod ready
    await store.db.rows(WARMED_BEFORE, worker)
    # Then neither release gives it out
    assert await column(store, FREE_BEFORE) == []
    assert await match(store, pool, ask()) == []
    # And an operator can decide
    assert await store.recovery.confirm(worker, "it is idle") == Done()
    assert await column(store, FREE_BEFORE) == [worker]


async def test_the_migration_finds_what_was_unconfirmed_before_it(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    [silent, suspect] = await make_warm(store, pool, 2)
    await recovered(store)
    await store.db.rows("UPDATE holdfast.worker SET suspect_since = holdfast.now() WHERE id = $1", suspect)
    await store.db.rows("DROP FUNCTION holdfast.share_unconfirmed() CASCADE")
    await store.db.rows("ALTER TABLE holdfast.worker DROP COLUMN unconfirmed_since CASCADE")
    await store.db.rows("DELETE FROM holdfast.migration WHERE name = '0003_unconfirmed'")
    assert await migrate(store.db.dsn, "i-test") == ["0003_unconfirmed"]
    assert await column(store, UNCONFIRMED) == [silent]


async def test_free_workers_are_found_by_their_index(store: PostgresStore) -> None:
    pool = await make_pool(store, DIRECT)
    await make_warm(store, pool, 3)
    look = store.db.sql(
        "EXPLAIN SELECT f.id FROM holdfast.worker f WHERE f.pool_id = 'p' AND f.revision = 'r'"
        " AND f.state = 'warm' AND @free(f) ORDER BY f.state_since, f.id LIMIT 1"
    )
    async with another(store) as connection:
        await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
        plan = "\n".join(row[0] for row in await connection.fetch(look))
    assert "using worker_free" in plan
    assert "Sort" not in plan


@pytest.mark.parametrize("ended_by", ["this release", "the release before"])
async def test_an_assigned_claim_does_not_get_an_agentless_worker_that_may_serve_a_later_claim(
    store: PostgresStore, ended_by: str
) -> None:
    """In the lost commits the claim may have left its worker unused, and the worker may have been given to another tenant,
    without protection and so without a stamp."""
    clock = await Clock.of(store)
    pool = await make_pool(store, BARE)
    [worker] = await make_warm(store, pool)
    pair = await assigned(store, pool)
    if ended_by == "this release":
        await recovered(store)
    else:
        await store.recovery.begin("restored", 0)
        await store.db.rows("UPDATE holdfast.installation SET recovering_since = NULL, recovered_at = holdfast.now()")
        await store.recovery.state()
    await clock.live(int(OFFER_STALL) + 2)
    await passed(Deadlines(), store, RecordedCluster(pool, [worker]))
    assert await store.claims.state(pair.claim) == "assigned", "its holder has not received the worker (P1)"
    [left] = await store.recovery.unconfirmed()
    assert (left.worker, left.claim, left.agent) == (worker, pair.claim, False)
    # An operator looks at the worker, and decides that it serves no other claim.
    assert await store.recovery.confirm(worker, "it is idle", None) == Done()
    await passed(Deadlines(), store, RecordedCluster(pool, [worker]))
    assert await store.claims.state(pair.claim) == "active"


@pytest.mark.parametrize(
    ("spec", "state"), [(BARE, "active"), (REQUIRED, "assigned")], ids=["its holder knows it", "a stamp would show another claim"]
)
async def test_an_agentless_worker_that_can_have_no_later_claim_stays_confirmed(
    store: PostgresStore, spec: PoolSpec, state: str
) -> None:
    pool = await make_pool(store, spec)
    await make_warm(store, pool)
    pair = await (active if state == "active" else assigned)(store, pool)
    await recovered(store)
    assert await store.claims.state(pair.claim) == state
    assert await column(store, UNCONFIRMED) == []
