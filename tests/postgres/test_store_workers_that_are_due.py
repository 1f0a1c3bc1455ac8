"""Between two full passes, a worker is checked as soon as something is due because of time alone, and not earlier."""

from typing import Any

import pytest

from holdfast.postgres.store import PostgresStore
from holdfast.running.looks import due_workers
from postgres.changes import apart, pool_with_worker
from postgres.store_rows import add_held, heard_ago, insert
from postgres.store_steps import BARE, JOB, active, agent_report, ask

SINCE = "holdfast.heard() - interval "


@pytest.mark.parametrize(
    ("spec", "worker", "due"),
    [
        (JOB, f"state = 'spawning', pod_uid = NULL, state_heard = {SINCE} '5 s'", False),
        (JOB, f"state = 'spawning', pod_uid = NULL, state_heard = {SINCE} '5.1 s'", True),
        (JOB, f"state = 'spawning', state_heard = {SINCE} '5.1 s'", False),
        (JOB, f"state = 'spawning', state_heard = {SINCE} '121 s'", True),
        (JOB, f"state = 'spawning', state_heard = {SINCE} '120 s'", False),
        (JOB, f"state = 'spawning', state_heard = {SINCE} '121 s', scheduled_heard = {SINCE} '9 s'", False),
        (JOB, f"state = 'retiring', state_heard = {SINCE} '2 s'", False),
        (JOB, f"state = 'retiring', state_heard = {SINCE} '2.1 s'", True),
        (JOB, f"state = 'gone', state_heard = {SINCE} '1 h'", False),
        (JOB, f"state_heard = {SINCE} '60 s'", False),
        (JOB, f"state_heard = {SINCE} '60.1 s'", True),
        (BARE, f"state_heard = {SINCE} '60.1 s'", False),
        (JOB, f"state_heard = {SINCE} '60.1 s', suspect_since = holdfast.now()", False),
        (JOB, f"state = 'parked', tenant = 'a', parked_since = holdfast.now(), state_heard = {SINCE} '60.1 s'", True),
        (JOB, "protected = true", True),
        (JOB, "state = 'parked', tenant = 'a', parked_since = holdfast.now(), protected = true", True),
        (JOB, "protected = false", False),
    ],
)  # fmt: skip
async def test_a_free_worker_is_due(store: PostgresStore, spec: Any, worker: str, due: bool) -> None:
    await apart(store)
    await pool_with_worker(store, spec)
    await store.db.rows("UPDATE holdfast.pool SET spec = jsonb_set(spec, '{startTimeout}', '\"2m\"')")
    await store.db.rows(f"UPDATE holdfast.worker SET {worker}")
    assert await due_workers(store) == (["w-1"] if due else [])
    await store.pools.freeze("linux", "hands off")
    assert await due_workers(store) == [], "nothing of a frozen pool is looked at"


@pytest.mark.parametrize(
    ("mode", "worker", "due"),
    [
        ("claim", "protected = false", True), ("always", "protected = false", True), ("off", "protected = false", False),
        ("claim", "protected = true", False), ("claim", "protected = false, terminating = true", False),
    ],
)  # fmt: skip
async def test_a_busy_worker_without_protection_is_due(store: PostgresStore, mode: str, worker: str, due: bool) -> None:
    await apart(store)
    pool = await pool_with_worker(store, JOB)
    await active(store, pool, ask(id="c-1"))
    await store.db.rows("UPDATE holdfast.pool SET spec = jsonb_set(spec, '{protection,mode}', to_jsonb($1::text))", mode)
    await store.db.rows(f"UPDATE holdfast.worker SET {worker}")
    assert await due_workers(store) == (["w-1"] if due else [])
    await store.db.rows("UPDATE holdfast.claim SET state = 'assigned'")
    assert await due_workers(store) == [], "a hand-over protects its worker itself"


async def test_protection_may_stay_on_a_free_worker_where_it_is_always_there(store: PostgresStore) -> None:
    await pool_with_worker(store, JOB)
    await store.db.rows("UPDATE holdfast.pool SET spec = jsonb_set(spec, '{protection,mode}', '\"always\"')")
    await store.db.rows("UPDATE holdfast.worker SET protected = true")
    assert await due_workers(store) == []


async def test_retiring_workers_come_after_others_and_silent_busy_ones_last(store: PostgresStore) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    await add_held(store, "w-busy", "c-1")
    await store.db.rows(f"UPDATE holdfast.worker SET protected = true, state_heard = {SINCE} '5 h'")
    await insert(store, "worker", id="w-retiring", state="retiring", state_heard=heard_ago(4 * 3600))
    for n in (1, 2):
        await insert(store, "worker", id=f"w-{n}", state_heard=heard_ago(n * 3600))
    await add_held(store, "w-unprotected", "c-2", fence=8)
    assert await due_workers(store) == ["w-2", "w-1", "w-unprotected", "w-retiring", "w-busy"]


async def test_a_worker_that_reported_lately_is_not_silent_however_old_it_is(store: PostgresStore) -> None:
    await apart(store)
    await pool_with_worker(store, JOB)
    await store.db.rows(f"UPDATE holdfast.worker SET state_heard = {SINCE} '1 h'")
    assert await due_workers(store) == ["w-1"]
    await store.workers.beat([agent_report("w-1")])
    assert await due_workers(store) == []
