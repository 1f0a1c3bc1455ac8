"""Reports that must change the right row: a worker that is ready again, an adopted claim, a beat on another server."""

from holdfast.model.effect import Done
from holdfast.ports.recovery import Adoption
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart, pool_with_worker
from postgres.store_steps import JOB, agent_report, ask, assigned


async def test_a_warm_worker_that_was_not_ready_is_ready_when_its_agent_is_idle(store: PostgresStore) -> None:
    await pool_with_worker(store, JOB)
    await store.db.rows("UPDATE holdfast.worker SET ready = false")
    await store.workers.report(agent_report("w-1"))
    assert await store.db.value("SELECT ready FROM holdfast.worker")


async def test_a_claim_found_on_its_own_worker_is_not_sent_back_first(store: PostgresStore) -> None:
    await apart(store)
    pool = await pool_with_worker(store, JOB)
    pair = await assigned(store, pool, ask(id="c-1"))
    await store.recovery.begin("restored", 0)
    about = {"pool": "linux", "pool_id": "p-1", "revision": "r", "tenant": "acme", "uid": "uid-w-1"}
    async with await Changes.of(store) as changes:
        assert await store.recovery.adopt(Adoption(worker="w-1", claim="c-1", fence=pair.fence, **about)) == Done()
        events = (await changes.seen())["events"]
        assert events == ['100 claim.adopted worker.adopted p-1 w-1 c-1 acme "its pod or agent still holds it"']


async def test_a_beat_on_another_server_begins_a_recovery_and_the_first_beat_ever_does_not(store: PostgresStore) -> None:
    assert not (await store.fleet.beat("r-1", None, 10.0, [])).recovering, "the first beat only notes which server it is"
    assert not (await store.fleet.beat("r-1", 1.0, 10.0, [])).recovering
    await store.db.rows("UPDATE holdfast.installation SET timeline = timeline + 1")
    beat = await store.fleet.beat("r-1", 1.0, 10.0, [])
    assert (beat.recovering, beat.seen.epoch) == (True, 2)
    await store.recovery.end()
    assert not (await store.fleet.beat("r-1", 1.0, 10.0, [])).recovering, "noted: it is noticed once"
