"""Claims on unconfirmed workers are not due: they keep no other claim from its repair, and their workers live (P2, P8)."""

import re

import pytest

from holdfast.duties.deadlines import BATCH
from holdfast.model.effect import Done, Stale
from holdfast.postgres.claims import DUE
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_locks import another
from postgres.store_steps import JOB, SESSION, active, agent_report, ask, end, make_pool, make_warm, match
from postgres.store_tables import state_of


async def test_many_hand_overs_on_unconfirmed_workers_hide_no_claim_that_is_due(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, BATCH)
    stuck = await match(store, pool, *(ask() for _ in range(BATCH)))
    await store.claims.offer([(pair.claim, pair.fence, True) for pair in stuck])
    await store.recovery.begin("restored", 0)
    await clock.live(1)
    assert await store.recovery.end() == Done()
    await make_warm(store, pool)
    [fresh] = await match(store, pool, ask())
    await store.claims.offer([(fresh.claim, fresh.fence, True)])
    await clock.live(30)
    assert [due.claim for due in await store.claims.due(BATCH, 4.0)] == [fresh.claim]
    [claim] = await store.claims.get([stuck[0].claim])
    assert "has not reported since the database lost commits" in claim.reason
    await store.workers.report(
        agent_report(stuck[0].worker, doing="activating", claim=stuck[0].claim, fence=stuck[0].fence, tenant="acme")
    )
    assert stuck[0].claim in [due.claim for due in await store.claims.due(BATCH, 4.0)]
    [claim] = await store.claims.get([stuck[0].claim])
    assert "lost commits" not in claim.reason


@pytest.mark.parametrize("how", ["lease", "max_duration"])
@pytest.mark.parametrize("reported", [None, "c-other"])
async def test_a_worker_that_may_hold_another_claim_is_not_ended_with_the_claim_of_its_row(
    store: PostgresStore, how: str, reported: str | None
) -> None:
    # Given an agent that may hold another claim than its row shows: it is cut off, or it has reported another claim
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool)
    limits = {"lease": 3600.0, "max_duration": 3600.0} | {how: 10.0}
    pair = await active(store, pool, ask(**limits))
    await store.recovery.begin("restored", 0)
    await clock.live(1)
    if reported is not None:
        await store.workers.beat([agent_report(pair.worker, doing="running", claim=reported, fence=7, tenant="acme")])
    assert await store.recovery.end() == Done()
    # When the lease or the longest duration of the row's claim is over
    await clock.live(11)
    # Then the claim stays, because its end would retire the worker
    assert await store.claims.due(BATCH, 4.0) == []
    assert await end(store, pair.claim, how) == Stale()
    assert await state_of(store, "worker", pair.worker) == "held"
    # And when the agent is back and holds the row's claim, the claim ends as usual
    about = agent_report(pair.worker, doing="running", claim=pair.claim, fence=pair.fence, tenant="acme")
    await store.workers.report(about)
    await store.workers.beat([about])
    assert [due.claim for due in await store.claims.due(BATCH, 4.0)] == [pair.claim]
    assert await end(store, pair.claim, how) == Done()


async def test_a_claim_whose_agent_still_reports_an_ended_claim_ends_by_its_lease(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool)
    before = await active(store, pool)
    assert await end(store, before.claim, "release") == Done()
    await store.workers.report(agent_report(before.worker, served_fence=before.fence))
    pair = await active(store, pool, ask(lease=10.0))
    await store.recovery.begin("restored", 0)
    await clock.live(1)
    await store.workers.beat([agent_report(pair.worker, doing="running", claim=before.claim, fence=before.fence)])
    assert await store.recovery.end() == Done()
    await clock.live(11)
    assert [due.claim for due in await store.claims.due(BATCH, 4.0)] == [pair.claim]
    assert await end(store, pair.claim, "lease") == Done()


@pytest.mark.parametrize("before_the_loss", [True, False])
async def test_a_stalled_hand_over_is_taken_back_from_an_agent_with_another_claim_only_if_it_cannot_have_run(
    store: PostgresStore, before_the_loss: bool
) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    [pair] = await match(store, pool, ask()) if before_the_loss else [None]
    await store.recovery.begin("restored", 0)
    await clock.live(1)
    await store.workers.beat([agent_report(worker, doing="running", claim="c-other", fence=7, tenant="acme")])
    assert await store.recovery.end() == Done()
    if pair is None:
        [pair] = await match(store, pool, ask())
    await clock.live(20)
    assert len(await store.claims.due(BATCH, 4.0)) == (0 if before_the_loss else 1)
    outcome = await store.claims.requeue(pair.claim, pair.fence, reason="stalled", keep_worker=True, suspect=True, idle=6.0)
    assert outcome == (Stale() if before_the_loss else Done())
    assert await state_of(store, "worker", worker) == ("held" if before_the_loss else "warm")


async def test_claims_that_are_due_are_found_by_their_indexes(store: PostgresStore) -> None:
    look = "EXPLAIN " + store.db.sql(DUE).replace("$1", "500").replace("$2", "4.0")
    async with another(store) as connection:
        await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
        plan = "\n".join(row[0] for row in await connection.fetch(look))
    for index, column in {"claim_progress": "progress_heard", "claim_lease": "lease_heard", "claim_max": "max_heard"}.items():
        assert re.search(rf"using {index} .*\n +Index Cond: \(.*{column} <= ", plan), f"{index}:\n{plan}"
