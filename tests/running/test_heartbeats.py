"""Reports of agents are stored once a second, and never as if they had been received after a recovery began (P1, P7)."""

from holdfast.postgres.store import PostgresStore
from holdfast.running.heartbeats import Heartbeats
from postgres.recorded_cluster import RecordedCluster, replica_on
from postgres.store_clock import Clock
from postgres.store_locks import queued
from postgres.store_steps import SESSION, agent_report, make_pool, make_warm


async def stored(store: PostgresStore, worker: str) -> tuple[str, bool] | None:
    """Returns what the agent was last reported to do, and whether that counts as reported since recovery began."""
    found = await store.workers.heartbeats([worker])
    return (found[0].doing, found[0].reported_since_recovery) if found else None


async def test_a_report_from_before_a_recovery_does_not_count_as_a_report_since(store: PostgresStore) -> None:
    """The replica was paused after it received the report, and the worker may have been given out meanwhile."""
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    replica = replica_on(store, RecordedCluster(pool, [worker]))
    await replica.beat()
    replica.heartbeats.add(agent_report(worker))
    await store.recovery.begin("restored", 0)
    await clock.live(3)
    await replica.heartbeats.flush()
    assert await stored(store, worker) in (None, ("idle", False))
    replica.heartbeats.add(agent_report(worker))
    await replica.beat()
    await replica.heartbeats.flush()
    assert await stored(store, worker) in (None, ("idle", False)), "the replica knows of the recovery only since its beat"
    replica.heartbeats.add(agent_report(worker))
    await replica.heartbeats.flush()
    assert await stored(store, worker) == ("idle", True)


async def test_the_last_report_of_each_agent_is_stored_once(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    [one, other] = await make_warm(store, pool, 2)
    epoch = (await store.recovery.state()).epoch
    heartbeats = Heartbeats(store, lambda: epoch)
    for report in (agent_report(one), agent_report(one, doing="draining"), agent_report(other)):
        heartbeats.add(report)
    await heartbeats.flush()
    assert [await stored(store, worker) for worker in (one, other)] == [("draining", False), ("idle", False)]
    await store.db.rows("DELETE FROM holdfast.heartbeat")
    await heartbeats.flush()
    assert await stored(store, one) is None


async def test_reports_that_are_stored_while_a_recovery_begins_are_dropped(store: PostgresStore) -> None:
    """The statement started in the old epoch. It waits for the recovery, and then reads the new epoch."""
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    begins = store.db.sql("SELECT @fn.begin_recovery('restored', 0, 0)")
    assert await queued(store, begins, store.workers.beat([agent_report(worker)], 1)) == [None]
    assert await stored(store, worker) is None
    await store.workers.beat([agent_report(worker)], 2)
    assert await stored(store, worker) is not None


async def test_a_report_counts_in_the_incarnation_that_its_agent_saw_last(store: PostgresStore) -> None:
    """The report lay in the socket of a paused replica, which knows of the recovery by the time it reads the report."""
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    before = (await store.recovery.state()).epoch
    await store.recovery.begin("restored", 0)
    await clock.live(3)
    for known in (before, before + 1):
        heartbeats = Heartbeats(store, lambda known=known: known)  # type: ignore[misc]
        heartbeats.add(agent_report(worker, incarnation=before))
        await heartbeats.flush()
        assert await stored(store, worker) in (None, ("idle", False))
    heartbeats = Heartbeats(store, lambda: before)
    heartbeats.add(agent_report(worker, incarnation=before + 1))
    await heartbeats.flush()
    assert await stored(store, worker) == ("idle", True), "the replica itself may learn of the recovery only with its next beat"
