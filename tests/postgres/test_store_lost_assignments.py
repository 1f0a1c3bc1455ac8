"""A claim whose assignment was over in lost commits: its work may have run, so it does not run again (P8)."""

import pytest

from holdfast.model.effect import Done
from holdfast.model.pool import Pool
from holdfast.ports.recovery import Adoption
from holdfast.ports.store import Pair
from holdfast.postgres.store import PostgresStore
from postgres.store_steps import SESSION, agent_report, ask, assigned, lone_assigned, make_pool, make_warm, match

FORGOTTEN = "SELECT outcome, how FROM holdfast.claim WHERE id = $1"


async def assigned_before_the_loss(store: PostgresStore) -> tuple[Pool, Pair]:
    """Returns a claim that is assigned, in a pool that has a second worker to give it to."""
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool)
    pair = await assigned(store, pool)
    await make_warm(store, pool)
    await store.recovery.begin("restored", 0)
    return pool, pair


def adoption(pool: Pool, worker: str, claim: str, fence: int) -> Adoption:
    return Adoption(
        worker=worker, uid=f"uid-{worker}", pool=pool.name, pool_id=pool.id, revision=pool.revision, claim=claim, tenant="acme",
        fence=fence,
    )  # fmt: skip


async def outcome_of(store: PostgresStore, claim: str) -> tuple[str | None, str | None]:
    row = await store.db.row(FORGOTTEN, claim)
    assert row is not None
    return row[0], row[1]


async def test_the_claim_before_an_adopted_one_may_have_run_and_is_not_given_out_again(store: PostgresStore) -> None:
    # Given a claim that the row shows as assigned. In lost commits it was served, and its worker took the tenant's next claim.
    pool, pair = await assigned_before_the_loss(store)
    # When the next claim is found on the worker
    assert await store.recovery.adopt(adoption(pool, pair.worker, "c-next", pair.fence + 1)) == Done()
    assert await store.recovery.end() == Done()
    for free in await store.workers.rows(None):
        await store.workers.report(agent_report(free.worker.id))
    # Then no second worker gets the first claim, and its holder sees how it ended
    assert await match(store, pool) == []
    assert await outcome_of(store, pair.claim) == ("lost", "forgotten")


@pytest.mark.parametrize("found_first", [True, False])
async def test_a_claim_that_moved_to_another_worker_is_adopted_there(store: PostgresStore, found_first: bool) -> None:
    pool, pair = await assigned_before_the_loss(store)
    [other] = [row.worker.id for row in await store.workers.rows(None) if row.worker.id != pair.worker]
    found = [adoption(pool, other, pair.claim, pair.fence + 1), adoption(pool, pair.worker, "c-next", pair.fence + 2)]
    for each in found if found_first else reversed(found):
        assert await store.recovery.adopt(each) == Done()
    assert await store.recovery.end() == Done()
    [claim] = await store.claims.get([pair.claim])
    assert (claim.state, claim.worker) == ("active", other)
    assert await store.claims.state("c-next") == "active"


async def test_a_claim_that_never_left_the_queue_still_waits_after_a_recovery(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    new = ask()
    await match(store, pool, new)
    await store.recovery.begin("restored", 0)
    assert await store.recovery.end() == Done()
    assert await store.claims.state(new.id) == "waiting"


@pytest.mark.parametrize("later", [0, 1])
async def test_an_agent_that_has_served_this_or_a_later_claim_ends_the_one_that_its_row_shows(
    store: PostgresStore, later: int
) -> None:
    pair = await lone_assigned(store, SESSION)
    await store.recovery.begin("restored", 0)
    assert await store.recovery.end() == Done()
    await store.workers.report(agent_report(pair.worker, served_fence=pair.fence + later))
    assert await outcome_of(store, pair.claim) == ("lost", "forgotten")
