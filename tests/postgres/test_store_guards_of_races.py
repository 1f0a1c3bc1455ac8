"""A change that waited for a row checks it again: the worker or the claim may have moved on in the meantime."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.model.effect import Stale
from holdfast.ports.store import Batch
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_locks import another, queued, row_lock
from postgres.store_rows import NOW, add_held, insert
from postgres.store_steps import JOB, agent_report, ask

HELD = "UPDATE holdfast.worker SET state = 'held', claim_id = 'c-9', tenant = 'acme' WHERE id = 'w-1'"
RETIRING = "UPDATE holdfast.worker SET state = 'retiring' WHERE id = 'w-1'"


async def installed(store: PostgresStore, **worker: Any) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    await insert(store, "worker", id="w-1", pod_uid="uid-w-1", **worker)


@pytest.mark.parametrize(
    ("worker", "report", "meanwhile"),
    [
        ({"state": "spawning"}, {}, RETIRING),
        ({"suspect_since": NOW}, {}, HELD), ({"suspect_since": NOW}, {}, RETIRING), ({"unconfirmed_since": NOW}, {}, HELD),
        ({"ready": False}, {}, RETIRING),
        ({}, {"doing": "draining"}, HELD), ({}, {"served_fence": 3}, HELD),
    ],
)  # fmt: skip
async def test_a_report_that_waited_for_its_worker_does_not_change_what_the_worker_is_now(
    store: PostgresStore, worker: dict[str, Any], report: dict[str, Any], meanwhile: str
) -> None:
    await installed(store, **worker)
    async with await Changes.of(store) as changes:
        [directive] = await queued(store, meanwhile, store.workers.report(agent_report("w-1", **report)))
        assert directive.do == "nothing"
        found = await changes.seen()
        assert found.keys() - {"notices"} == {"worker w-1"}, "no event and no heartbeat"
        assert found["worker w-1"].keys() == ({"state", "claim_id", "tenant"} if meanwhile == HELD else {"state"})


@pytest.mark.parametrize("current", [True, False])
async def test_a_match_passes_over_a_warm_worker_that_another_change_has_locked(store: PostgresStore, current: bool) -> None:
    await apart(store)
    pool, _ = await store.pools.put("p-1", "linux", JOB, "api")
    for worker in ("w-1", "w-2"):
        await insert(store, "worker", id=worker, revision=pool.revision if current else "old")
    async with another(store) as other, other.transaction():
        await other.execute(row_lock("worker", "w-1"))
        batch = await store.claims.match("p-1", [ask(id="c-1")], 9)
    assert [pair.worker for pair in batch.pairs] == ["w-2"]


async def test_a_match_waits_for_a_parked_worker_of_its_tenant(store: PostgresStore) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    await insert(store, "worker", id="w-1", state="parked", tenant="acme", parked_since=NOW)
    await insert(store, "worker", id="w-2")
    [batch] = await queued(store, row_lock("worker", "w-1"), store.claims.match("p-1", [ask(id="c-1")], 9))
    assert isinstance(batch, Batch), batch
    assert [pair.worker for pair in batch.pairs] == ["w-1"]
    gone = "UPDATE holdfast.worker SET state = 'gone', claim_id = NULL WHERE id = 'w-3'"
    await insert(store, "worker", id="w-3", state="parked", tenant="acme", parked_since=NOW)
    [batch] = await queued(store, gone, store.claims.match("p-1", [ask(id="c-2")], 9))
    assert [pair.worker for pair in batch.pairs] == ["w-2"], "it was parked when the match began to wait"


@pytest.mark.parametrize("state", ["spawning", "retiring", "gone", "warm", "parked"])
async def test_an_assignment_takes_only_a_free_worker_and_a_waiting_claim(store: PostgresStore, state: str) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    parked: dict[str, Any] = {"tenant": "acme", "parked_since": NOW} if state == "parked" else {}
    await insert(store, "worker", id="w-1", state=state, **parked)
    await insert(store, "worker", id="w-2")
    await insert(store, "claim", id="c-1")
    await insert(store, "claim", id="c-2", state="ended", outcome="cancelled")
    # `match` offers only free workers and waiting claims. The guards here keep P1 if it ever offers others.
    made = await store.db.rows("SELECT o_claim, o_worker FROM @fn.assign('p-1', '{c-1,c-2}', '{w-1,w-2}')")
    assert [tuple(row) for row in made] == ([("c-1", "w-1")] if state in ("warm", "parked") else [])
    states = await store.db.rows("SELECT id, state FROM holdfast.worker ORDER BY id")
    assert [tuple(row) for row in states] == [("w-1", "held" if made else state), ("w-2", "warm")]


Call = Callable[[PostgresStore], Awaitable[Any]]
CLAIM_MOVES = "UPDATE holdfast.claim SET fence = 8 WHERE id = 'c-1'"
CLAIM_ENDS = "UPDATE holdfast.claim SET state = 'ended', outcome = 'cancelled' WHERE id = 'c-1'"


@pytest.mark.parametrize("meanwhile", [CLAIM_MOVES, CLAIM_ENDS])
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.claims.requeue("c-1", 7, reason="stalled", keep_worker=True),
        lambda store: store.claims.acknowledge("w-1", 7, None),
        lambda store: store.claims.progress("w-1", 7),
        lambda store: store.claims.offer([("c-1", 7, True)]),
    ],
    ids=["requeue", "acknowledge", "progress", "offer"],
)
async def test_a_change_of_a_hand_over_that_waited_for_its_claim_is_for_the_same_assignment(
    store: PostgresStore, call: Call, meanwhile: str
) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    await add_held(store, "w-1", "c-1", "assigned", delivered=True)
    async with await Changes.of(store) as changes:

        async def called() -> Any:
            return await call(store)

        [answer] = await queued(store, meanwhile, called())
        assert answer in (Stale(), None, False, []), answer
        assert (await changes.seen()).keys() == {"claim c-1"}
