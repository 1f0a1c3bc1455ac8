"""Plans on a real store: the rows show what `converge`, recovery and the deadlines decided."""

from queue_on_store import ask, make_pool, make_warm

from holdfast.duties.actions import Condemn, ShowFacts
from holdfast.duties.converge import Converge
from holdfast.duties.deadlines import FIRST_STALL, Deadlines
from holdfast.duties.observed import Observed
from holdfast.duties.scale import plan_pool
from holdfast.model.effect import Done, Skipped, Stale
from holdfast.model.pod import Pod, Stamp
from holdfast.model.pool import Pool
from holdfast.ports.store import AgentReport, Pair
from holdfast.postgres.store import PostgresStore
from holdfast.recovery.actions import Adopt
from postgres.store_steps import acknowledge


def pod_of(worker: str, pool: Pool, **facts: object) -> Pod:
    known = {
        "name": worker,
        "uid": f"uid-{worker}",
        "worker": worker,
        "install": "i-test",
        "pool_id": pool.id,
        "pool": pool.name,
        "revision": pool.revision,
        "phase": "running",
        "version": "v1",
        "created_at": 0.0,
        "epoch": 1,
    }
    return Pod(**{**known, **facts})


async def view_of(store: PostgresStore, *pods: Pod) -> Observed:
    rows = {row.worker.id: row for row in await store.workers.rows(None)}
    return Observed({pod.name: pod for pod in pods}, rows, {}, await store.recovery.state(), await store.now())


async def serve(store: PostgresStore, pair: Pair) -> None:
    """Makes the claim active: protect, offer, deliver, acknowledge."""
    await store.claims.offer([(pair.claim, pair.fence, True)])
    assert await store.claims.deliver(pair.worker, f"uid-{pair.worker}") is not None
    assert await acknowledge(store, pair.worker, pair.fence, None) == pair.claim


async def deaf_for(store: PostgresStore, hours: int) -> None:
    """Simulates an old outage, so that heard time is so many hours behind the clock."""
    await store.db.rows("UPDATE holdfast.hearing SET deaf = deaf + make_interval(hours => $1)", hours)


async def test_recovery_leaves_a_claim_with_the_worker_that_serves_it_now(store: PostgresStore) -> None:
    """P2: a first worker hung in its activation, so its claim went to a second worker, which serves it. The pod of the first
    worker drains and still carries its stamp when recovery begins.
    """

    pool = await make_pool(store)
    await make_warm(store, pool, ["w-1", "w-2"])
    (first,) = (await store.claims.match(pool.id, [ask("c-1")], 1)).pairs
    await store.claims.offer([(first.claim, first.fence, True)])
    assert await store.claims.deliver(first.worker, f"uid-{first.worker}") is not None
    assert await store.claims.requeue("c-1", first.fence, reason="it hung") == Done()
    (second,) = (await store.claims.match(pool.id, (), 1)).pairs
    assert second.worker != first.worker
    await serve(store, second)

    assert await store.recovery.begin("the server's timeline changed", 0)
    hung = pod_of(first.worker, pool, terminating=True, protected=True, stamp=Stamp("acme", "c-1", first.fence))
    busy = pod_of(second.worker, pool, protected=True, stamp=Stamp("acme", "c-1", second.fence))
    for action in Converge().plan(await view_of(store, hung, busy)):
        if isinstance(action, Adopt):
            await store.recovery.adopt(action.adoption)

    (claim,) = await store.claims.get(["c-1"])
    assert (claim.state, claim.worker, claim.fence) == ("active", second.worker, second.fence)
    worker = await store.workers.get(second.worker)
    assert worker is not None
    assert worker.state == "held", "a busy worker was taken from its claim, and will be ended"


async def test_a_cordoned_free_worker_goes_in_the_pass_that_saw_it(store: PostgresStore) -> None:
    """Facts raise the version of a row. They must not make the rest of the same plan stale."""

    pool = await make_pool(store)
    await make_warm(store, pool, ["w-1"])
    plan = Converge().plan(await view_of(store, pod_of("w-1", pool, schedulable=False, node="n-1")))
    assert [type(action) for action in plan] == [Condemn, ShowFacts]
    gone, facts = plan
    assert isinstance(facts, ShowFacts)
    assert isinstance(gone, Condemn)
    assert await store.workers.condemn(gone.worker, gone.version, gone.reason, counted=gone.counted) == Done()
    assert await store.workers.facts(facts.facts) == 1


async def test_a_frozen_pools_workers_are_not_condemned_whatever_was_planned(store: PostgresStore) -> None:
    pool = await make_pool(store)
    await make_warm(store, pool, ["w-1"])
    await store.pools.freeze(pool.name, "an operator looks")
    plan = Converge().plan(await view_of(store, pod_of("w-1", pool, terminating=True)))
    (gone,) = [action for action in plan if isinstance(action, Condemn)]
    assert await store.workers.condemn(gone.worker, None, gone.reason, counted=gone.counted) == Skipped("frozen")


async def test_a_pool_deleted_while_frozen_can_still_drain(store: PostgresStore) -> None:
    """P5: if the pool stayed frozen forever, its workers would never end. Deletion thaws it, or a person can still thaw it."""

    pool = await make_pool(store)
    await make_warm(store, pool, ["w-1"])
    await store.pools.freeze(pool.name, "an operator looks")
    assert await store.pools.delete(pool.name) is not None
    await store.pools.freeze(pool.name, None)
    (seen,) = [load for load in await store.pools.loads() if load.pool.id == pool.id]
    gone = [action for action in plan_pool(seen) if isinstance(action, Condemn)]
    assert [action.worker for action in gone] == ["w-1"]
    assert await store.workers.condemn("w-1", None, "its pool was deleted", counted=False) == Done()


async def test_a_retried_claim_gets_its_waiting_time_again_also_after_an_outage(store: PostgresStore) -> None:
    """P8: deadlines are kept in heard time. An outage of two hours in the past must not refuse every retry at once."""
    # because the copied database may be minutes old
    await store.db.rows("UPDATE holdfast.hearing SET last_heard = holdfast.now()")
    await deaf_for(store, 2)
    pool = await make_pool(store)
    await make_warm(store, pool, ["w-1"])
    (pair,) = (await store.claims.match(pool.id, [ask("c-1", retry="lost", deadline=600.0)], 1)).pairs
    await serve(store, pair)
    assert await store.claims.requeue("c-1", pair.fence, dead=True, reason="it died") == Done()
    assert Deadlines().plan(await store.claims.due(10, FIRST_STALL)) == []
    (claim,) = await store.claims.get(["c-1"])
    assert claim.deadline_at is not None
    assert claim.deadline_at - await store.now() > 300, "most of its 600 s; no replica beats here, so some seconds are deaf"


async def test_a_held_worker_is_not_condemned_even_by_a_plan_that_saw_it_free(store: PostgresStore) -> None:
    pool = await make_pool(store)
    await make_warm(store, pool, ["w-1"])
    seen = await view_of(store, pod_of("w-1", pool, terminating=True))
    assert (await store.claims.match(pool.id, [ask("c-1")], 1)).pairs
    (gone,) = [action for action in Converge().plan(seen) if isinstance(action, Condemn)]
    for version in (gone.version, None):
        assert await store.workers.condemn(gone.worker, version, gone.reason, counted=gone.counted) == Stale()


async def test_a_silent_worker_is_suspect_and_gets_no_claim_until_it_reports(store: PostgresStore) -> None:
    pool = await make_pool(store)
    await make_warm(store, pool, ["w-1"])
    worker = await store.workers.get("w-1")
    assert worker is not None
    assert await store.workers.suspect("w-1", worker.version, "silent") == Done()
    assert (await store.claims.match(pool.id, [ask("c-1")], 1)).pairs == []
    await store.workers.report(AgentReport(worker="w-1", uid="uid-w-1", doing="idle"))
    assert [pair.claim for pair in (await store.claims.match(pool.id, (), 1)).pairs] == ["c-1"]
