"""A restored database: what pods show is adopted, and an unconfirmed worker is neither given out nor ended (P1, P7)."""

import msgspec
import pytest

from holdfast.duties.actions import Action, Condemn, DeletePod, HeardAgain, PruneHistory, PruneOutputs, Quarantine
from holdfast.duties.converge import Converge
from holdfast.duties.deadlines import Deadlines
from holdfast.duties.prune import Prune
from holdfast.model.effect import Done, Effect, Skipped, Stale
from holdfast.model.pod import Stamp
from holdfast.model.pool import ProtectionSpec
from holdfast.ports.recovery import Adoption
from holdfast.postgres.store import PostgresStore
from holdfast.recovery.actions import Adopt, BeginRecovery, EndRecovery
from holdfast.recovery.compare import LISTEN
from postgres.recorded_cluster import RecordedCluster, applier, passed, planned, pod_of
from postgres.store_clock import DAY, Clock
from postgres.store_steps import (
    BARE,
    JOB,
    SESSION,
    acknowledge,
    agent_report,
    ask,
    assigned,
    deliver,
    end,
    lone_active,
    make_pool,
    make_warm,
    match,
)
from postgres.store_tables import kinds, state_of

ENDINGS = (Condemn, DeletePod)


def effects(of: type, done: list[tuple[Action, Effect]]) -> list[Effect]:
    return [effect for action, effect in done if isinstance(action, of)]


async def version_of(store: PostgresStore, worker: str) -> int:
    row = await store.workers.get(worker)
    assert row is not None
    return row.version


async def test_of_an_agentless_pool_that_requires_protection_the_stamped_are_adopted_and_the_unstamped_are_free(
    store: PostgresStore,
) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, msgspec.structs.replace(BARE, protection=ProtectionSpec(required=True)))
    [busy, free] = await make_warm(store, pool, 2)
    cluster = RecordedCluster(pool, [busy, free, "w-busy", "w-free"])
    # In the lost commits two claims were given out, one of them on a worker that was created in them.
    last = (await store.recovery.state()).last_fence
    for n, worker in enumerate((busy, "w-busy"), 1):
        await cluster.protect(worker, f"uid-{worker}", Stamp("acme", f"c-lost-{n}", last + n))
    await store.recovery.begin("restored", 0)
    await clock.live(6)
    first = await passed(Converge(), store, cluster)
    assert effects(Adopt, first) == [Done(), Done()]
    assert effects(EndRecovery, first) == [], "the next pass shows whether it took"
    await clock.live(int(LISTEN))
    assert effects(EndRecovery, await passed(Converge(), store, cluster)) == [Done()]
    for n, worker in enumerate((busy, "w-busy"), 1):
        [claim] = await store.claims.get([f"c-lost-{n}"])
        assert (claim.state, claim.worker, claim.fence, claim.tenant) == ("active", worker, last + n, "acme")
    given = await match(store, pool, *(ask("b") for _ in range(4)))
    assert [pair.worker for pair in given] == [free], "it carries no stamp, so no holder learned of it"
    later = await passed(Converge(), store, cluster)
    assert [action.name for action, _ in later if isinstance(action, Quarantine)] == ["w-free"], "no row, and no report"
    assert not any(isinstance(action, ENDINGS) for action, _ in later)


@pytest.mark.parametrize("mode", ["off", "always", "claim"])  # in the mode `claim`, one may have been given out unprotected
async def test_agentless_workers_without_a_stamp_are_not_given_out_before_an_operator_decides(
    store: PostgresStore, mode: str
) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, msgspec.structs.replace(BARE, protection=ProtectionSpec(mode=mode)))
    workers = await make_warm(store, pool, 2)
    cluster = RecordedCluster(pool, workers)
    await store.recovery.begin("restored", 0)
    await clock.live(6)
    assert effects(EndRecovery, await passed(Converge(), store, cluster)) == [Done()]
    assert await match(store, pool, ask("b")) == [], "either may serve a holder that only the lost commits contained"
    await clock.live(90)
    assert not any(isinstance(action, ENDINGS) for action, _ in await passed(Converge(), store, cluster))
    for worker in workers:
        plan = store.workers.condemn(worker, await version_of(store, worker), "too many", counted=True)
        assert await plan == Stale(), "nor is it ended, for the same reason"
    [fresh] = await make_warm(store, pool)
    assert [pair.worker for pair in await match(store, pool)] == [fresh], "they are no capacity: others take their place"
    for worker in workers:
        assert await store.workers.condemn(worker, None, "an operator looked", counted=False) == Done()


async def test_a_worker_that_died_is_condemned_right_after_recovery_with_proof_and_not_without(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    [dead, silent] = await make_warm(store, pool, 2)
    cluster, converge = RecordedCluster(pool, [silent]), Converge()
    await store.recovery.begin("restored", 0)
    await clock.live(int(LISTEN) + 1)
    assert effects(EndRecovery, await passed(converge, store, cluster)) == [Done()]
    assert await match(store, pool, ask()) == [], "neither has reported since"
    seen = await version_of(store, dead)
    assert await store.workers.condemn(dead, seen, "its pod is gone", counted=False) == Stale()

    [gone] = [action for action in await planned(converge, store, cluster) if isinstance(action, Condemn)]
    assert gone.worker == dead
    cluster.kept[dead] = pod_of(dead, pool)
    assert await applier(store, cluster)(gone) == Skipped("unsure"), "a direct read shows it alive"
    assert await state_of(store, "worker", dead) == "warm"
    del cluster.kept[dead]
    assert await applier(store, cluster)(gone) == Done()
    assert await state_of(store, "worker", dead) == "retiring"
    assert await state_of(store, "worker", silent) == "warm", "its pod lives, and silence proves nothing"


@pytest.mark.parametrize("reporting", ["in recovery", "after it", "without a row"])
async def test_an_agent_that_was_resetting_when_commits_were_lost_is_retired_and_serves_no_other_tenant(
    store: PostgresStore, reporting: str
) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    worker = "w-lost" if reporting == "without a row" else (await make_warm(store, pool))[0]
    cluster = RecordedCluster(pool, [worker])
    # The backup shows the worker as warm, or not at all. In the lost commits it served tenant a, whose claim has ended.
    fence = (await store.recovery.state()).last_fence + 7
    resetting = agent_report(worker, doing="resetting", served_fence=fence)
    await store.recovery.begin("restored", 0)
    await clock.live(1)
    if reporting != "after it":
        await store.workers.report(resetting)
        await store.workers.beat([resetting])
    await clock.live(int(LISTEN))
    for _ in range(2):
        await passed(Converge(), store, cluster)
        if reporting == "without a row":
            assert await state_of(store, "worker", worker) == "retiring", "also while recovery goes on"
    assert not (await store.recovery.state()).recovering
    assert await match(store, pool, ask("b", lease=60.0)) == [], "tenant b would get the worker of tenant a"
    if reporting == "after it":
        await store.workers.report(resetting)
    assert await state_of(store, "worker", worker) == "retiring"
    directive = await store.workers.report(agent_report(worker, served_fence=fence))
    assert directive.do == "exit", "it is reset by now, and directed to exit"
    assert await match(store, pool) == []
    assert (await kinds(store, worker=worker))[-1] in ("worker.retiring", "worker.adopted")


async def test_pruning_takes_nothing_that_lost_commits_may_have_known_of(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pair = await lone_active(store, JOB)
    assert await end(store, pair.claim, "result") == Done()
    [row] = await store.workers.rows([pair.worker])
    cluster, prune = RecordedCluster(), Prune()
    cluster.outputs = {pair.claim, "c-lost"}  # the second one was only in the lost commits
    before = PruneOutputs(frozenset(await store.history.live_outputs()))
    await clock.jump(DAY + 60)  # the age of the backup
    await store.recovery.begin("restored", 0)
    await store.workers.beat([agent_report("w-lost", doing="running", claim="c-lost", fence=pair.fence + 1, tenant="acme")])

    assert await applier(store, cluster)(before) == Skipped("recovering"), "planned before any replica noticed"
    for _ in range(2):
        assert [type(action) for action, _ in await passed(prune, store, cluster)] == [PruneHistory]
        assert cluster.outputs == {pair.claim, "c-lost"}
    assert [heartbeat.claim for heartbeat in await store.workers.heartbeats(["w-lost"])] == ["c-lost"], (
        "its agent's report is kept"
    )
    assert (await kinds(store, claim=pair.claim))[-2:] == ["claim.ended", "worker.retiring"]
    left_over = Adoption(
        worker=pair.worker,
        uid=f"uid-{pair.worker}",
        pool=row.worker.pool,
        pool_id=row.worker.pool_id,
        revision=row.worker.revision,
        claim=pair.claim,
        tenant="acme",
        fence=pair.fence,
    )
    assert await store.recovery.adopt(left_over) == Stale(), "a claim that ended is known as such, and is not adopted"

    assert await store.recovery.end() == Done()
    await clock.elapse(DAY - 60)
    assert [type(action) for action, _ in await passed(prune, store, cluster)] == [PruneHistory]
    assert cluster.outputs == {pair.claim, "c-lost"}, "its claim may have ended just before it was lost: 24 h from then"
    await clock.elapse(120)
    await passed(prune, store, cluster)
    assert cluster.outputs == set()


@pytest.mark.parametrize("was", ["assigned", "active"])
async def test_a_late_agent_that_holds_another_claim_than_its_row_is_adopted_not_confirmed(
    store: PostgresStore, was: str
) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, msgspec.structs.replace(SESSION, protection=ProtectionSpec(mode="always")))
    await make_warm(store, pool)
    pair = await assigned(store, pool, ask(lease=20.0))
    await deliver(store, pair)
    if was == "active":
        await acknowledge(store, pair.worker, pair.fence, None)
    # In the lost commits this claim ended, its worker was parked, and the tenant's next claim got the same worker.
    cluster, converge = RecordedCluster(pool, [pair.worker]), Converge()
    cluster.kept[pair.worker] = msgspec.structs.replace(cluster.kept[pair.worker], protected=True)
    await store.recovery.begin("restored", 0)
    await clock.live(int(LISTEN) + 2)  # the agent is cut off
    assert effects(EndRecovery, await passed(converge, store, cluster)) == [Done()]
    late = agent_report(pair.worker, doing="running", claim="c-next", fence=pair.fence + 3, tenant="acme")
    recoveries = 0
    for _ in range(40):
        await clock.live(1)
        await store.workers.report(late)
        await store.workers.beat([late])
        done = [*await passed(converge, store, cluster), *await passed(Deadlines(), store, cluster)]
        recoveries += effects(BeginRecovery, done).count(Done())
        row = await store.workers.get(pair.worker)
        assert row is not None
        assert row.state == "held"
        if effects(HeardAgain, done):
            assert row.claim == "c-next", "the report confirms this claim, not the one that the row showed before"
    [claim] = await store.claims.get(["c-next"])
    assert (claim.state, claim.worker, claim.fence) == ("active", pair.worker, pair.fence + 3)
    assert recoveries == 1, "what it knows is adopted once"


@pytest.mark.parametrize("known", ["ended", "elsewhere", "older"])
async def test_a_report_of_an_assignment_that_is_over_begins_no_recovery(store: PostgresStore, known: str) -> None:
    """Nothing could be adopted, so recoveries would follow one another for as long as the agent reports it."""
    await Clock.of(store)
    pool = await make_pool(store, SESSION)
    workers = await make_warm(store, pool, 2)
    pair = await assigned(store, pool, ask(lease=20.0))
    other = pair.worker if known == "older" else next(worker for worker in workers if worker != pair.worker)
    if known == "ended":
        await end(store, pair.claim)
    fence = pair.fence - 1 if known == "older" else pair.fence
    await store.workers.beat([agent_report(other, doing="running", claim=pair.claim, fence=fence, tenant="acme")])
    plan = await planned(Converge(), store, RecordedCluster(pool, workers))
    assert not any(isinstance(action, BeginRecovery) for action in plan)


async def test_a_silent_agent_with_an_unknown_assignment_begins_no_second_recovery(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    cluster, converge = RecordedCluster(pool, [worker]), Converge()
    fence = (await store.recovery.state()).last_fence
    await store.workers.beat([agent_report(worker, doing="running", claim="c-lost", fence=fence, tenant="acme")])
    began = 0
    for _ in range(90):
        began += effects(BeginRecovery, await passed(converge, store, cluster)).count(Done())
        await clock.live(1)
    assert began == 1
    assert not (await store.recovery.state()).recovering
