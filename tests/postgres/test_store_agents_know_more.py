"""An agent's report proves what the database has lost: an assignment, an acknowledgement, or a claim's end (P2, P7, P8)."""

import pytest

from holdfast.duties.converge import Converge
from holdfast.duties.deadlines import Deadlines
from holdfast.model.pod import Stamp
from holdfast.model.pool import Pool
from holdfast.ports.store import AgentReport, NewClaim, Pair
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, passed
from postgres.store_clock import Clock
from postgres.store_steps import (
    JOB,
    SESSION,
    acknowledge,
    agent_report,
    ask,
    assigned,
    deliver,
    end,
    lone_assigned,
    make_active,
    make_pool,
    make_warm,
    match,
    name,
)
from postgres.store_tables import broken, state_of


def busy(worker: str, claim: str, fence: int, doing: str = "running") -> AgentReport:
    return agent_report(worker, doing=doing, claim=claim, fence=fence, tenant="acme")


async def waiting(store: PostgresStore, pool: Pool) -> NewClaim:
    """Stores a claim that no worker was free for."""
    new = ask(lease=60.0)
    assert await match(store, pool, new) == []
    return new


async def reported(store: PostgresStore, report: AgentReport) -> str:
    """Stores a report, as a poll does. Returns what the agent should do."""
    directive = await store.workers.report(report)
    await store.workers.beat([report])
    return directive.do


async def fence_within_the_sequence(store: PostgresStore) -> int:
    """Returns a fence that this database can have given, because a sequence is ahead of its last value after a crash."""
    await store.db.rows("SELECT nextval('holdfast.fence') FROM generate_series(1, 32)")
    return (await store.recovery.state()).last_fence - 20


@pytest.mark.parametrize("row", ["warm", "spawning"])
async def test_an_agent_whose_claim_waits_in_the_database_keeps_it_and_reveals_the_lost_assignment(
    store: PostgresStore, row: str
) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    new = await waiting(store, pool)
    worker = name("w")
    await store.workers.spawn(pool.id, [worker], 1000, 1000)
    await store.workers.spawned(worker, f"uid-{worker}")
    if row == "warm":
        await store.workers.report(agent_report(worker))
    fence = await fence_within_the_sequence(store)
    holds = busy(worker, new.id, fence)
    assert await reported(store, holds) == "ahead"
    await store.recovery.begin_by_fence("an agent holds it", fence)
    await clock.live(6)
    assert await reported(store, holds) == "nothing"
    cluster = RecordedCluster(pool, [worker])
    for _ in range(2):
        await passed(Converge(), store, cluster)
    [claim] = await store.claims.get([new.id])
    assert (claim.state, claim.worker, claim.fence) == ("active", worker, fence)
    assert not (await store.recovery.state()).recovering
    assert await reported(store, holds) == "nothing"
    assert await broken(store) == []


async def test_an_agent_with_a_later_assignment_than_its_claims_row_keeps_its_claim(store: PostgresStore) -> None:
    """The claim went back to the queue and was given to the second worker, but the database lost the second assignment."""
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool)
    pair = await assigned(store, pool, ask(lease=60.0))
    await deliver(store, pair)
    [second] = await make_warm(store, pool)
    await store.claims.requeue(pair.claim, pair.fence, reason="stalled")
    later = await fence_within_the_sequence(store)
    assert (await store.workers.report(busy(second, pair.claim, later))).do == "ahead"
    assert (await store.workers.report(busy(pair.worker, pair.claim, pair.fence))).do == "nothing"


@pytest.mark.parametrize("why", ["it ended", "another worker has it"])
async def test_an_agent_lets_go_of_a_claim_that_ended_or_is_with_another_worker(store: PostgresStore, why: str) -> None:
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool, 2)
    pair = await assigned(store, pool, ask(lease=60.0))
    await deliver(store, pair)
    if why == "it ended":
        await end(store, pair.claim)
    else:
        await store.claims.requeue(pair.claim, pair.fence, reason="stalled")
        assert len(await match(store, pool)) == 1
    assert (await store.workers.report(busy(pair.worker, pair.claim, pair.fence))).do == "end"


async def test_an_agent_whose_worker_has_a_later_assignment_begins_no_recovery(store: PostgresStore) -> None:
    """Nothing could adopt its claim, so it would begin one recovery after the other."""
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool)
    pair = await assigned(store, pool, ask("rival", lease=60.0))
    new = await waiting(store, pool)
    assert (await store.workers.report(busy(pair.worker, new.id, pair.fence - 1))).do == "nothing"


async def running_unacknowledged(store: PostgresStore, *, delivered: bool) -> tuple[Pool, Pair]:
    """Makes a claim that its agent runs. The database has lost the acknowledgement and perhaps the delivery."""
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await assigned(store, pool)
    if delivered:
        await deliver(store, pair)
    return pool, pair


async def test_a_report_that_the_claim_runs_is_its_acknowledgement(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool, pair = await running_unacknowledged(store, delivered=True)
    assert await reported(store, busy(pair.worker, pair.claim, pair.fence, "activating")) == "nothing"
    assert await state_of(store, "claim", pair.claim) == "assigned", "its agent may still refuse it"
    assert await reported(store, busy(pair.worker, pair.claim, pair.fence)) == "nothing"
    await clock.live(30)
    assert await passed(Deadlines(), store, RecordedCluster(pool, [pair.worker])) == []
    [claim] = await store.claims.get([pair.claim])
    assert (claim.state, claim.worker) == ("active", pair.worker)
    assert await acknowledge(store, pair.worker, pair.fence, None) == pair.claim, "its agent may acknowledge it as well"


async def test_an_agent_that_has_a_claim_which_was_never_delivered_reveals_lost_commits(store: PostgresStore) -> None:
    _, pair = await running_unacknowledged(store, delivered=False)
    assert (await store.workers.report(busy(pair.worker, pair.claim, pair.fence))).do == "ahead"
    await store.recovery.begin_by_fence("an agent holds it", pair.fence)
    await store.recovery.end()
    assert (await store.workers.report(busy(pair.worker, pair.claim, pair.fence))).do == "nothing"
    assert await state_of(store, "claim", pair.claim) == "active"


@pytest.mark.parametrize("state", ["assigned", "active"])
async def test_a_claim_that_its_agent_has_served_is_not_served_again(store: PostgresStore, state: str) -> None:
    """The end of the claim is in commits that the database lost. The agent was reset after it, which proves the end."""
    pair = await lone_assigned(store, SESSION, ask(lease=60.0))
    await deliver(store, pair)
    if state == "active":
        assert await acknowledge(store, pair.worker, pair.fence, None) == pair.claim
    assert (await store.workers.report(agent_report(pair.worker, served_fence=pair.fence))).do == "nothing"
    ended = await store.db.row("SELECT state, outcome, how FROM holdfast.claim WHERE id = $1", pair.claim)
    assert ended is not None
    assert tuple(ended) == ("ended", "lost", "forgotten")
    assert await state_of(store, "worker", pair.worker) == "retiring"
    assert await broken(store) == []


async def test_an_agent_that_was_reset_after_an_earlier_claim_gets_its_tenants_next_claim(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    first = await assigned(store, pool, ask(lease=60.0, park_ttl=600.0))
    await make_active(store, pool, first)
    await end(store, first.claim)
    reset = agent_report(worker, served_fence=first.fence)
    await store.workers.report(reset)
    [second] = await match(store, pool, ask(lease=60.0))
    await store.claims.offer([(second.claim, second.fence, True)])
    assert (await store.workers.report(reset)).do == "hold"


@pytest.mark.parametrize("known", [True, False], ids=["the claim waits", "the claim has no row"])
async def test_a_claim_that_is_adopted_while_its_agent_activates_it_makes_progress(store: PostgresStore, known: bool) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    claim = (await waiting(store, pool)).id if known else "c-lost"
    worker = name("w")
    await store.workers.spawn(pool.id, [worker], 1000, 1000)
    await store.workers.spawned(worker, f"uid-{worker}")
    fence = (await store.recovery.state()).last_fence + 5
    cluster = RecordedCluster(pool, [worker])
    await cluster.protect(worker, f"uid-{worker}", Stamp("acme", claim, fence))
    await store.recovery.begin("restored", 0)
    await clock.live(1)
    await reported(store, busy(worker, claim, fence, "activating"))
    await clock.live(6)
    for _ in range(2):
        await passed(Converge(), store, cluster)
    assert not (await store.recovery.state()).recovering
    assert await store.claims.progress(worker, fence), "its agent would stop the activation"
    assert not await store.claims.progress(worker, fence + 1)
    assert await acknowledge(store, worker, fence, None) == claim
    await end(store, claim)
    assert not await store.claims.progress(worker, fence)
