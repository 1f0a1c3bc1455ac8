"""An operator decides about a worker that lost commits left unconfirmed: confirm it, or give it up (P2, P7, P8)."""

import pytest

from holdfast.model.effect import Done, Skipped, Stale
from holdfast.model.worker import Worker
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_steps import (
    DIRECT,
    JOB,
    SESSION,
    acknowledge,
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
from postgres.store_tables import broken, kinds, state_of

DECISIONS = ["confirm", "give_up"]


async def recovered(store: PostgresStore) -> None:
    await store.recovery.begin("restored", 0)
    assert await store.recovery.end() == Done()


async def worker_of(store: PostgresStore, worker: str) -> Worker:
    row = await store.workers.get(worker)
    assert row is not None
    return row


async def how_it_ended(store: PostgresStore, claim: str) -> tuple[str, str | None, str | None]:
    row = await store.db.row("SELECT state, outcome, how FROM holdfast.claim WHERE id = $1", claim)
    assert row is not None
    return row["state"], row["outcome"], row["how"]


async def test_what_is_left_names_each_worker_with_its_claim_and_tenant(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 3)
    running, handed = await active(store, pool, ask("acme")), await assigned(store, pool, ask("rival"))
    assert await store.recovery.unconfirmed() == []
    await recovered(store)
    left = {one.claim: one for one in await store.recovery.unconfirmed()}
    assert left.keys() == {None, running.claim, handed.claim}
    shown = [(left[c].worker, left[c].state, left[c].claim_state, left[c].tenant) for c in (running.claim, handed.claim)]
    assert shown == [(running.worker, "held", "active", "acme"), (handed.worker, "held", "assigned", "rival")]
    assert (left[None].state, left[None].agent, left[None].pool) == ("warm", True, "linux")


async def test_a_confirmed_worker_without_an_agent_is_given_out_again(store: PostgresStore) -> None:
    pool = await make_pool(store, DIRECT)
    [worker] = await make_warm(store, pool)
    await recovered(store)
    assert await match(store, pool, ask()) == []
    assert await store.recovery.confirm(worker, "it is idle") == Done()
    assert [pair.worker for pair in await match(store, pool)] == [worker]
    assert "worker.confirmed" in await kinds(store, worker=worker)
    assert await store.recovery.confirm(worker, "once more") == Stale()


async def test_a_held_claim_goes_on_when_its_worker_is_confirmed(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool)
    pair = await active(store, pool, ask(lease=60.0))
    await recovered(store)
    assert await store.recovery.confirm(pair.worker, "its holder uses it") == Done()
    assert (await worker_of(store, pair.worker)).confirmed
    assert await store.claims.renew(pair.claim, pair.fence)
    assert await end(store, pair.claim) == Done()
    assert await state_of(store, "worker", pair.worker) == "parked", "it is a worker like any other again"


async def test_a_stalled_hand_over_is_handled_as_usual_when_its_worker_is_confirmed(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await assigned(store, pool)
    await deliver(store, pair)
    await recovered(store)
    stalled = {"reason": "activation stopped making progress", "idle": 0.0}
    assert await store.claims.requeue(pair.claim, pair.fence, **stalled) == Stale()
    assert await store.recovery.confirm(pair.worker, "it never began") == Done()
    assert await store.claims.requeue(pair.claim, pair.fence, **stalled) == Done()


async def test_a_free_worker_that_is_given_up_retires(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    await recovered(store)
    await store.pools.freeze(pool.name, "looking")
    assert await store.recovery.give_up(worker, "gone") == Skipped("frozen")
    assert await state_of(store, "worker", worker) == "warm"
    await store.pools.freeze(pool.name, None)
    assert await store.recovery.give_up(worker, "gone") == Done()
    assert await state_of(store, "worker", worker) == "retiring"
    assert (await kinds(store, worker=worker))[-2:] == ["worker.retiring", "worker.given_up"]
    assert await store.recovery.unconfirmed() == []
    assert await store.recovery.give_up(worker, "once more") == Stale()


async def test_a_claim_that_runs_on_a_worker_that_is_given_up_ends_as_lost_by_force(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await active(store, pool, ask(retry="lost"))
    await recovered(store)
    assert await store.recovery.give_up(pair.worker, "its machine burned") == Done()
    assert await how_it_ended(store, pair.claim) == ("ended", "lost", "force")
    [claim] = await store.claims.get([pair.claim])
    assert "its machine burned" in claim.reason
    assert await state_of(store, "worker", pair.worker) == "retiring"
    assert {"claim.ended", "worker.retiring", "worker.given_up"} <= set(await kinds(store, claim=pair.claim))
    assert await broken(store) == []


@pytest.mark.parametrize("sent", [True, False], ids=["perhaps sent", "never sent"])
async def test_a_claim_on_its_way_is_served_again_only_if_its_worker_never_got_it(store: PostgresStore, sent: bool) -> None:
    """Recovery treats every assignment as delivered, because the delivery may be in the lost commits. So it may have run (P8)."""
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await assigned(store, pool)
    await recovered(store)
    if not sent:
        await store.db.rows("UPDATE holdfast.claim SET delivered = false")
        await store.db.rows("UPDATE holdfast.worker SET delivered = false")
    assert await store.recovery.give_up(pair.worker, "gone") == Done()
    expected = ("ended", "lost", "force") if sent else ("waiting", None, None)
    assert await how_it_ended(store, pair.claim) == expected
    assert await state_of(store, "worker", pair.worker) == "retiring"
    assert await broken(store) == []


@pytest.mark.parametrize("decision", DECISIONS)
async def test_nothing_is_decided_while_commits_are_recovered(store: PostgresStore, decision: str) -> None:
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    await recovered(store)
    await store.recovery.begin("restored again", 0)
    assert await getattr(store.recovery, decision)(worker, "looked") == Skipped("recovering")
    assert not (await worker_of(store, worker)).confirmed


@pytest.mark.parametrize("decision", DECISIONS)
async def test_a_worker_that_is_confirmed_is_not_decided_about(store: PostgresStore, decision: str) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await active(store, pool)
    assert await getattr(store.recovery, decision)(pair.worker, "looked") == Stale()
    assert await getattr(store.recovery, decision)("w-none", "looked") == Stale()
    assert await state_of(store, "claim", pair.claim) == "active", "busy is sacred"


@pytest.mark.parametrize("decision", DECISIONS)
async def test_a_worker_whose_agent_reports_a_claim_without_a_row_is_not_decided_about(
    store: PostgresStore, decision: str
) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    await recovered(store)
    await clock.live(1)
    fence = (await store.recovery.state()).last_fence
    busy = agent_report(worker, doing="running", claim="c-lost", fence=fence, tenant="acme")
    await store.workers.report(busy)
    await store.workers.beat([busy])
    [shown] = await store.recovery.unconfirmed()
    assert (shown.worker, shown.doing, shown.reported_claim) == (worker, "running", "c-lost")
    assert await getattr(store.recovery, decision)(worker, "looked") == Skipped("busy")
    assert await match(store, pool, ask("rival", lease=60.0)) == []
    assert await state_of(store, "worker", worker) == "warm"


@pytest.mark.parametrize("decision", DECISIONS)
async def test_an_agents_report_from_before_the_recovery_does_not_prevent_a_decision(store: PostgresStore, decision: str) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    await store.workers.beat([agent_report(worker, doing="running", claim="c-old", fence=1, tenant="acme")])
    await clock.live(1)
    await recovered(store)
    [shown] = await store.recovery.unconfirmed()
    assert (shown.doing, shown.reported_claim) == (None, None)
    assert await getattr(store.recovery, decision)(worker, "looked") == Done()


async def test_an_agent_that_still_reports_an_ended_claim_may_be_decided_about(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool, 2)
    ended = await active(store, pool, ask(lease=60.0))
    await end(store, ended.claim)
    await recovered(store)
    await clock.live(1)
    [worker] = [one.worker for one in await store.recovery.unconfirmed() if one.state == "warm"]
    await store.workers.beat([agent_report(worker, doing="running", claim=ended.claim, fence=ended.fence, tenant="acme")])
    assert await store.recovery.give_up(worker, "looked") == Done()


@pytest.mark.parametrize("sign", ["an acknowledgement", "a report"])
async def test_a_claim_whose_agent_is_back_is_not_given_up(store: PostgresStore, sign: str) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await assigned(store, pool)
    await deliver(store, pair)
    await recovered(store)
    if sign == "an acknowledgement":
        assert await acknowledge(store, pair.worker, pair.fence, None) == pair.claim
    else:
        await store.workers.report(
            agent_report(pair.worker, doing="activating", claim=pair.claim, fence=pair.fence, tenant="acme")
        )
        [heartbeat] = await store.workers.heartbeats([pair.worker])
        assert (heartbeat.claim, heartbeat.fence, heartbeat.tenant) == (pair.claim, pair.fence, "acme")
    row = await worker_of(store, pair.worker)
    assert (row.confirmed, row.suspect_since) == (True, None)
    assert await store.recovery.give_up(pair.worker, "it is silent") == Stale()
    assert await store.claims.state(pair.claim) in ("assigned", "active")


@pytest.mark.parametrize("other", ["another claim", "another fence", "an old poll"])
async def test_a_report_that_is_not_of_the_workers_claim_does_not_confirm_it(store: PostgresStore, other: str) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await active(store, pool)
    await recovered(store)
    claim, fence = ("c-2", pair.fence) if other == "another claim" else (pair.claim, pair.fence)
    fence += other == "another fence"
    report = agent_report(pair.worker, doing="running", claim=claim, fence=fence, tenant="acme")
    await store.workers.report(report, fresh=other != "an old poll")
    assert not (await worker_of(store, pair.worker)).confirmed
