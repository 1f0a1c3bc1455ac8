"""Claims on unconfirmed workers are not due: they keep no other claim from its repair, and show why they wait (P8)."""

from holdfast.duties.deadlines import BATCH
from holdfast.model.effect import Done
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_steps import JOB, agent_report, ask, make_pool, make_warm, match


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
