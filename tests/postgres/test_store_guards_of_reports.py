"""What an agent's report changes and is answered, for a worker that is parked, was parked before, or is retiring."""

from typing import Any

import pytest

from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_locks import another, queued, row_lock
from postgres.store_rows import NOW, add_held, heard_ago, insert
from postgres.store_steps import BARE, JOB, SESSION, agent_report
from postgres.test_store_lock_order import fact

PARKED: dict[str, Any] = {"state": "parked", "tenant": "acme", "parked_since": NOW, "fence": 7}


async def installed(store: PostgresStore, spec: Any = SESSION, **worker: Any) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", spec, "api")
    if worker:
        await insert(store, "worker", id="w-1", pod_uid="uid-w-1", **worker)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("reset", [None, 6, 7])
async def test_a_parked_worker_stays_ready_and_becomes_ready_by_its_own_reset_only(
    store: PostgresStore, ready: bool, reset: int | None
) -> None:
    await installed(store, **(PARKED | {"ready": ready, "suspect_since": NOW}))
    await insert(store, "heartbeat", worker_id="w-1", doing="resetting", reset_fence=5, beat_heard=heard_ago(9))
    async with await Changes.of(store) as changes:
        await store.workers.report(agent_report("w-1", served_fence=reset, endpoint="1.2.3.4:80"))
        expected = {"suspect_since": None, "version": 2, "endpoint": "1.2.3.4:80"}
        found = await changes.seen()
        assert found["worker w-1"] == expected | ({"ready": True} if not ready and reset == 7 else {})
        assert found["heartbeat w-1"] == {"doing": "idle", "reset_fence": reset, "beat_heard": 0.0}


@pytest.mark.parametrize(("held_from", "do"), [("parked", "hold"), ("warm", "nothing")])
async def test_a_worker_that_was_parked_before_its_hand_over_has_served_its_own_tenant(
    store: PostgresStore, held_from: str, do: str
) -> None:
    await installed(store)
    await add_held(store, "w-1", "c-1", "assigned", offered=True)
    await store.db.rows("UPDATE holdfast.worker SET held_from = $1, pod_uid = 'uid-w-1'", held_from)
    directive = await store.workers.report(agent_report("w-1", served_fence=6))
    assert directive.do == do
    assert await store.claims.state("c-1") == ("assigned" if do == "hold" else "waiting")


async def test_a_report_of_an_earlier_claim_does_not_run_an_active_claim_again(store: PostgresStore) -> None:
    await installed(store, JOB)
    await add_held(store, "w-1", "c-1", retry="lost", delivered=True)
    await store.db.rows("UPDATE holdfast.worker SET pod_uid = 'uid-w-1', delivered = true")
    async with await Changes.of(store) as changes:
        assert (await store.workers.report(agent_report("w-1", served_fence=6))).do == "nothing"
        assert await changes.seen() == {}, "the report is no proof that the claim's worker died (P8)"


async def test_a_retiring_worker_without_a_reason_exits(store: PostgresStore) -> None:
    await installed(store, state="retiring")
    await store.pools.put("p-2", "other", JOB, "api")
    await store.pools.freeze("other", "hands off")
    directive = await store.workers.report(agent_report("w-1"))
    assert (directive.do, directive.reason) == ("exit", "")


@pytest.mark.parametrize("doing", ["activating", "running", "resetting"])
async def test_a_report_of_an_agent_that_is_not_idle_changes_nothing_of_a_free_worker(store: PostgresStore, doing: str) -> None:
    await installed(store, suspect_since=NOW, ready=False)
    async with await Changes.of(store) as changes:
        assert (await store.workers.report(agent_report("w-1", doing=doing))).do == "nothing"
        assert await changes.seen() == {}


@pytest.mark.parametrize(
    ("claim", "do"),
    [
        ({"state": "ended", "outcome": "lost", "reason": "why"}, ("end", "why")),
        ({"state": "assigned", "worker_id": "w-9", "fence": 8}, ("end", "the claim was assigned to another worker")),
        ({"state": "waiting", "fence": 7}, ("nothing", "")),
        ({"state": "waiting", "fence": 6}, ("ahead", "an agent holds an assignment that this database does not show")),
    ],
)  # fmt: skip
async def test_an_agent_ends_a_claim_whose_row_shows_that_it_is_over_for_this_worker(
    store: PostgresStore, claim: dict[str, Any], do: tuple[str, str]
) -> None:
    await installed(store, fence=5)
    await insert(store, "claim", id="c-1", **claim)
    directive = await store.workers.report(agent_report("w-1", doing="running", claim="c-1", fence=7))
    assert (directive.do, directive.reason) == do


@pytest.mark.parametrize("endpoint", [None, "2.2.2.2:2"])
@pytest.mark.parametrize("protected", [None, True, False])
async def test_an_acknowledgement_keeps_the_endpoint_and_the_protection_that_are_known(
    store: PostgresStore, endpoint: str | None, protected: bool | None
) -> None:
    await installed(store)
    await add_held(store, "w-1", "c-1", "assigned", delivered=True, protected=protected)
    await store.db.rows("UPDATE holdfast.worker SET endpoint = '1.1.1.1:1'")
    await insert(store, "worker", id="w-2")
    async with await Changes.of(store) as changes:
        assert await store.claims.acknowledge("w-1", 7, endpoint) is not None
        found = await changes.seen()
        assert found["worker w-1"] == {"version": 2} | ({} if endpoint is None else {"endpoint": endpoint})
        assert "worker w-2" not in found
        assert found["claim c-1"].get("protected", protected) == bool(protected)


async def test_a_beat_that_waited_for_another_raises_the_mark_above_it(store: PostgresStore) -> None:
    await installed(store)
    mark = await store.db.value("SELECT mark FROM holdfast.hearing")
    higher = "UPDATE holdfast.hearing SET mark = mark + 10, last_heard = last_heard + interval '1 s'"
    await store.db.rows("UPDATE kept.clock SET t = t + interval '3 s'")
    [beat] = await queued(store, higher, store.fleet.beat("r-1", 3.0, 10.0, []))
    assert beat.seen.mark == mark + 11
    heard = await store.db.row("SELECT mark, last_heard - deaf FROM holdfast.hearing")
    assert heard is not None
    assert heard[0] == mark + 11
    assert heard[1].isoformat() == "2030-01-01T12:00:03+00:00", "2 s after what the other beat heard"


async def test_a_pool_that_was_deleted_while_it_was_applied_is_created_again(store: PostgresStore) -> None:
    await installed(store)
    drains = "UPDATE holdfast.pool SET state = 'draining' WHERE id = 'p-1'"
    [answer] = await queued(store, drains, store.pools.put("p-2", "linux", JOB, "api"))
    assert not isinstance(answer, BaseException), answer
    pool, what = answer
    assert (pool.id, what) == ("p-2", "created")


@pytest.mark.parametrize("table", ["claim", "worker"])
async def test_a_batch_waits_for_its_own_rows_only(store: PostgresStore, table: str) -> None:
    await installed(store, BARE)
    for n in (1, 2):
        await add_held(store, f"w-{n}", f"c-{n}", "assigned", fence=n)
    await store.db.rows("UPDATE holdfast.worker SET pod_uid = 'uid-' || id")
    async with another(store) as other, other.transaction():
        await other.execute(row_lock(table, f"{table[0]}-2"))
        assert len(await store.claims.offer([("c-1", 1, True)])) == 1
        assert await store.workers.facts([fact("w-1")]) == 1
