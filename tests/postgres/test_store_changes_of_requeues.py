"""What requeuing a claim changes: every column, event and notification of the claim and of its worker."""

from holdfast.model.effect import Done
from holdfast.ports.store import Pair
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, add_worker, apart, pool_with_worker
from postgres.store_clock import Clock
from postgres.store_steps import JOB, acknowledge, agent_report, ask, assigned, deliver, match

LEASED = {"lease": 30.0, "max_duration": 300.0}


async def requeued(store: PostgresStore, clock: Clock, changes: Changes, pair: Pair, **how: object) -> object:
    await clock.live(2)
    await changes.seen()
    assert await store.claims.requeue(pair.claim, pair.fence, reason="because", **how) == Done()
    return await changes.seen()


async def test_a_requeued_claim_starts_again_and_its_worker_goes_back_or_retires(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    async with await Changes.of(store) as changes:
        pair = await assigned(store, pool, ask(id="c-1", retry="lost", deadline=50.0, **LEASED))
        await store.claims.offer([(pair.claim, pair.fence, True)])
        assert await requeued(store, clock, changes, pair, keep_worker=True, suspect=True) == {
            "claim c-1": {
                "state": "waiting",
                "reason": "because",
                "offered": False,
                "protected": None,
                "worker_id": None,
                "assigned_at": None,
                "progress_heard": None,
            },
            "worker w-1": {
                "state": "warm",
                "tenant": None,
                "version": 7,
                "claim_id": None,
                "held_from": None,
                "state_heard": 2.0,
                "state_since": 102.0,
                "suspect_since": 102.0,
            },
            "events": ['102 claim.requeued worker.returned p-1 w-1 c-1 acme "because"'],
            "notices": ["p p-1", "w w-1"],
        }
        await store.workers.report(agent_report("w-1"))
        [pair] = await match(store, pool)
        assert await requeued(store, clock, changes, pair) == {
            "claim c-1": {
                "state": "waiting",
                "reason": "because",
                "worker_id": None,
                "assigned_at": None,
                "progress_heard": None,
            },
            "worker w-1": {
                "state": "retiring",
                "reason": "because",
                "version": 10,
                "claim_id": None,
                "held_from": None,
                "state_heard": 4.0,
                "state_since": 104.0,
            },
            "events": ['104 claim.requeued worker.retiring p-1 w-1 c-1 acme "because"'],
            "notices": ["p p-1", "w w-1"],
        }
        await add_worker(store, pool, "w-2")
        [pair] = await match(store, pool)
        await deliver(store, pair)
        await acknowledge(store, pair.worker, pair.fence, None)
        assert await requeued(store, clock, changes, pair, dead=True) == {
            "claim c-1": {
                "state": "waiting",
                "losses": 1,
                "reason": "because",
                "offered": False,
                "active_at": None,
                "delivered": False,
                "max_heard": None,
                "protected": None,
                "worker_id": None,
                "assigned_at": None,
                "lease_heard": None,
                "deadline_heard": 56.0,
                "progress_heard": None,
            },
            "worker w-2": {
                "state": "retiring",
                "reason": "because",
                "version": 7,
                "claim_id": None,
                "held_from": None,
                "state_heard": 6.0,
                "state_since": 106.0,
            },
            "events": ['106 claim.retried worker.retiring p-1 w-2 c-1 acme "because"'],
            "notices": ["p p-1", "w w-2"],
        }
        await add_worker(store, pool, "w-3")
        [pair] = await match(store, pool)
        await deliver(store, pair)
        await acknowledge(store, pair.worker, pair.fence, None)
        found = await requeued(store, clock, changes, pair, dead=True, untouched=True, suspect=True)
        assert found == {
            "claim c-1": {
                "state": "waiting",
                "reason": "because",
                "offered": False,
                "active_at": None,
                "delivered": False,
                "max_heard": None,
                "protected": None,
                "worker_id": None,
                "assigned_at": None,
                "lease_heard": None,
                "deadline_heard": 58.0,
                "progress_heard": None,
            },
            "worker w-3": {
                "state": "retiring",
                "reason": "because",
                "version": 7,
                "claim_id": None,
                "held_from": None,
                "state_heard": 8.0,
                "state_since": 108.0,
            },
            "events": ['108 claim.retried worker.retiring p-1 w-3 c-1 acme "because"'],
            "notices": ["p p-1", "w w-3"],
        }
