"""The orders for agents: an unknown worker is never directed to end, and no tenant gets a worker that served another (P1, P7)."""

import pytest

from holdfast.model.effect import Done
from holdfast.postgres.store import PostgresStore
from holdfast.recovery.actions import AdoptFree
from holdfast.recovery.compare import compare
from postgres.recorded_cluster import RecordedCluster, pod_of, replica_on
from postgres.store_clock import Clock
from postgres.store_locks import replicas
from postgres.store_rows import set_brake
from postgres.store_steps import (
    DIRECT,
    JOB,
    SESSION,
    active,
    agent_report,
    ask,
    assigned,
    deliver,
    end,
    make_pool,
    make_warm,
    match,
)
from postgres.store_tables import state_of


async def test_a_fence_that_the_database_never_gave_is_answered_with_ahead(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    last = (await active(store, pool)).fence
    for name in (worker, "w-unknown"):
        assert (await store.workers.report(agent_report(name, claim="c-1", fence=last + 1, doing="running"))).do == "ahead"
    assert (await store.workers.report(agent_report(worker, claim="c-1", fence=last, doing="running"))).do != "ahead"


async def test_an_agent_with_a_claim_that_has_no_row_is_left_alone(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    workers = await make_warm(store, pool, 4)
    await active(store, pool)
    await store.workers.condemn(workers[-1], None, "not wanted", counted=False)
    for worker in [*workers, "w-unknown"]:
        for recovering in (False, True):
            if recovering:
                await store.recovery.begin("restored", 0)
            directive = await store.workers.report(agent_report(worker, doing="running", claim="c-lost", fence=1, tenant="acme"))
            assert directive.do in ("nothing", "unknown"), await state_of(store, "worker", worker)
            await store.recovery.end()


async def test_an_agent_that_turns_out_to_be_spent_gives_its_claim_back(store: PostgresStore) -> None:
    """The worker was given out as unused. The agent's report comes before the assignment was delivered (P1)."""

    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    [pair] = await match(store, pool, ask("acme", lease=60.0))
    assert pair.worker == worker
    spent = agent_report(worker, served_fence=pair.fence - 1)
    assert (await store.workers.report(spent)).do in ("nothing", "exit")
    assert await state_of(store, "claim", pair.claim) == "waiting"
    assert await state_of(store, "worker", worker) == "retiring"
    assert (await store.workers.report(spent)).do == "exit"


async def test_while_recovering_no_agent_is_directed_to_end_or_exit(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 2)
    pair = await active(store, pool)
    assert await end(store, pair.claim) == Done()
    busy = agent_report(pair.worker, doing="running", claim=pair.claim, fence=pair.fence)
    assert (await store.workers.report(busy)).do == "end"
    assert (await store.workers.report(agent_report(pair.worker))).do == "exit"
    await store.recovery.begin("restored", 0)
    assert (await store.workers.report(busy)).do == "nothing"
    assert (await store.workers.report(agent_report(pair.worker))).do == "nothing"


async def test_another_pod_under_the_name_is_not_this_worker(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    assert (await store.workers.report(agent_report(worker, uid="another"))).do == "unknown"
    pair = await active(store, pool)
    assert await store.claims.deliver(pair.worker, "another") is None


@pytest.mark.parametrize("obstacle", ["none", "the next report is late", "the brake is tripped", "the pool is frozen"])
async def test_a_worker_whose_past_tenant_the_database_forgot_serves_no_other_tenant(store: PostgresStore, obstacle: str) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    if obstacle == "the brake is tripped":
        await set_brake(store, 0, 0.0)
    elif obstacle == "the pool is frozen":
        await store.pools.freeze("linux", "an incident")
    # The backup shows the worker as warm. In the lost commits it served tenant a, was reset and parked, which its agent
    # remembers.
    forgotten = agent_report(worker, served_fence=(await store.recovery.state()).last_fence + 7)
    await store.recovery.begin("restored", 0)
    await clock.live(1)
    await store.workers.report(forgotten)
    await store.workers.beat([forgotten])
    await clock.live(1)
    assert await store.recovery.end() == Done()
    if obstacle != "the next report is late":
        await store.workers.report(forgotten)
    given = await match(store, pool, ask("b", lease=60.0))
    assert [pair.worker for pair in given] == [], "tenant b would sit where tenant a was"


async def test_a_pod_without_a_row_whose_agent_was_reset_is_not_taken_for_new(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    await store.recovery.begin("restored", 0)
    await clock.live(1)
    forgotten = agent_report("w-lost", served_fence=7)
    await store.workers.report(forgotten)
    await store.workers.beat([forgotten])
    # It was parked: its stamp was cleared when its claim ended, as for every free worker.
    [heartbeat] = await store.workers.heartbeats(["w-lost"])
    for action in compare(None, pod_of("w-lost", pool), heartbeat):
        assert isinstance(action, AdoptFree)
        await store.recovery.adopt_free(
            action.worker, action.uid, action.pool_id, action.pool, action.revision, spent=action.spent
        )
    await store.recovery.end()
    await store.workers.report(forgotten)
    assert await match(store, pool, ask("b", lease=60.0)) == []


async def test_a_restore_to_before_an_earlier_recovery_gives_no_fence_twice(store: PostgresStore) -> None:
    cluster = RecordedCluster()
    pool = await make_pool(store, DIRECT)
    await make_warm(store, pool)
    backup = await store.db.row(
        "SELECT epoch, mark, (SELECT last_value FROM holdfast.fence) FROM holdfast.installation, holdfast.hearing"
    )
    assert backup is not None
    # Commits are lost once, so the epoch is 2. A claim is given out in it, and the mark with its epoch is stored outside.
    await store.recovery.begin("restored", 0)
    await store.recovery.end()
    await make_warm(store, pool)  # a new worker, because no agent reports for the first one, so only an operator can confirm it
    given = (await active(store, pool)).fence
    async with replicas(store, 2) as (one, two):
        before = replica_on(one, cluster)
        for _ in range(3):
            await before.beat()
        # Then a backup from before all of that is restored.
        await store.db.rows("UPDATE holdfast.installation SET epoch = $1", backup["epoch"])
        await store.db.rows("UPDATE holdfast.hearing SET mark = $1", backup["mark"])
        await store.db.rows("SELECT setval('holdfast.fence', $1, false)", backup["last_value"])
        await store.db.rows("DELETE FROM holdfast.claim")
        await store.db.rows("UPDATE holdfast.worker SET state = 'warm', claim_id = NULL, tenant = NULL, fence = NULL")
        assert await match(one, pool, ask()) == [], "a replica that knows a later mark gives nothing out"
        after = replica_on(two, cluster)
        assert await match(two, pool) == [], "nor does a replica that has not compared yet"
        await after.beat()
        assert (await store.recovery.state()).recovering, "the mark outside is higher"
    await store.recovery.end()
    await make_warm(store, pool)
    [pair] = await match(store, pool)
    assert pair.fence > given, "two assignments with one fence cannot be distinguished"


async def test_a_tenant_gets_its_parked_worker_again_although_the_agent_never_received_the_released_claim(
    store: PostgresStore,
) -> None:
    # Given a claim whose delivery was stored, but whose answer the agent did not receive
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    pair = await assigned(store, pool, ask("acme", lease=60.0))
    await deliver(store, pair)
    # When its holder releases it
    assert await end(store, pair.claim, "release") == Done()
    assert await state_of(store, "worker", worker) == "parked"
    assert await match(store, pool, ask("acme", lease=60.0)) == [], "the agent may have received it, and has not reported since"
    assert (await store.workers.report(agent_report(worker), fresh=False)).freed is None, "an open poll proves nothing"
    # Then the worker is free for its tenant when its agent reports that it is idle
    assert (await store.workers.report(agent_report(worker, doing="resetting"))).freed is None
    assert (await store.workers.report(agent_report(worker))).freed == pool.id
    assert [again.worker for again in await match(store, pool)] == [worker]
    assert await match(store, pool, ask("rival", lease=60.0)) == []


async def test_a_session_that_was_held_is_given_out_again_only_after_its_reset(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    pair = await active(store, pool, ask("acme", lease=60.0))
    assert await end(store, pair.claim, "release") == Done()
    assert (await store.workers.report(agent_report(worker))).freed is None, "its agent has not reported the reset"
    assert await match(store, pool, ask("acme", lease=60.0)) == []
    assert (await store.workers.report(agent_report(worker, served_fence=pair.fence))).freed == pool.id
