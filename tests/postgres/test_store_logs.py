"""The last output of workers: replaced by each report, kept for a day after the worker's end."""

from holdfast.ports.logs import LOG_LIMIT
from holdfast.postgres.store import PostgresStore
from postgres.changes import add_worker, apart, pool_with_worker
from postgres.store_clock import DAY
from postgres.store_steps import JOB


async def test_a_report_replaces_the_log_and_only_the_workers_own_pod_may_write_it(store: PostgresStore) -> None:
    await apart(store)
    await pool_with_worker(store, JOB)
    assert await store.logs.get("w-1") is None
    assert await store.logs.keep("w-1", "uid-w-1", "first")
    assert await store.logs.keep("w-1", "uid-w-1", "one\ntwo\n")
    assert not await store.logs.keep("w-1", "another", "forged")
    assert not await store.logs.keep("w-9", "uid-w-9", "no such worker")
    kept = await store.logs.get("w-1")
    assert kept is not None
    assert (kept.worker, kept.text, kept.last_lines(1)) == ("w-1", "one\ntwo\n", ["two"])
    assert await store.db.value("SELECT count(*) FROM holdfast.worker_log") == 1


async def test_a_log_that_is_too_long_keeps_its_end(store: PostgresStore) -> None:
    await apart(store)
    await pool_with_worker(store, JOB)
    await store.logs.keep("w-1", "uid-w-1", "x" * LOG_LIMIT + "the end")
    kept = await store.logs.get("w-1")
    assert kept is not None
    assert (len(kept.text), kept.text[-7:]) == (LOG_LIMIT, "the end")


async def test_the_newest_log_of_a_pool_is_that_of_a_worker_that_has_ended(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    await add_worker(store, pool, "w-2")
    await store.logs.keep("w-1", "uid-w-1", "why it ended")
    await clock.live(1)
    await store.logs.keep("w-2", "uid-w-2", "still warm")
    assert await store.logs.newest(pool.id) is None
    await store.workers.condemn("w-1", None, "because", counted=False)
    newest = await store.logs.newest(pool.id)
    assert newest is not None
    assert newest.text == "why it ended"


async def test_a_log_is_pruned_a_day_after_its_worker_has_gone_not_before(store: PostgresStore) -> None:
    clock = await apart(store)
    await pool_with_worker(store, JOB)
    await store.logs.keep("w-1", "uid-w-1", "last words")
    await clock.jump(3 * DAY)
    await store.history.prune(7)
    assert await store.logs.get("w-1") is not None, "its worker lives"
    await store.workers.condemn("w-1", None, "because", counted=False)
    await store.workers.bury("w-1", "gone")
    await clock.jump(DAY - 60)
    await store.history.prune(7)
    assert await store.logs.get("w-1") is not None
    await clock.jump(120)
    assert (await store.history.prune(7))["logs"] == 1
    assert await store.logs.get("w-1") is None
