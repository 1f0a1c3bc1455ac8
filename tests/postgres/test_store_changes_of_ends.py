"""What the end of a claim writes: every column, event and notification, and nothing else."""

import pytest

from holdfast.model.effect import Done, Skipped, Stale
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, add_worker, apart, pool_with_worker
from postgres.store_rows import set_brake
from postgres.store_steps import BARE, JOB, active, agent_report, ask, assigned, end, match

LEASED = {"lease": 30.0, "max_duration": 300.0}


async def test_a_released_session_is_parked_for_its_tenant(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store)
    await active(store, pool, ask(id="c-1", secrets={"a": "b"}, **LEASED))
    await clock.live(5)
    async with await Changes.of(store) as changes:
        assert await end(store, "c-1", exit_code=3) == Done()
        assert await changes.seen() == {
            "claim c-1": {
                "how": "release",
                "request": {},
                "state": "ended",
                "reason": "release",
                "outcome": "released",
                "ended_at": 105.0,
                "ended_heard": 5.0,
                "exit_code": 3,
            },
            "worker w-1": {
                "ready": False,
                "state": "parked",
                "version": 7,
                "claim_id": None,
                "park_ttl": "00:01:00",
                "held_from": None,
                "state_heard": 5.0,
                "state_since": 105.0,
                "parked_heard": 5.0,
                "parked_since": 105.0,
            },
            "events": [
                '105 claim.ended worker.parked p-1 w-1 c-1 acme "release"'
                ' {"how": "release", "from": "active", "outcome": "released", "exit_code": 3}'
            ],
            "notices": ["c c-1", "w w-1"],
        }


async def test_a_cancelled_hand_over_gives_the_worker_back_as_it_was(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store)
    await assigned(store, pool, ask(id="c-1", secrets={"a": "b"}))
    await clock.live(5)
    async with await Changes.of(store) as changes:
        assert await end(store, "c-1", "cancel") == Done()
        assert await changes.seen() == {
            "claim c-1": {
                "how": "cancel",
                "request": {},
                "state": "ended",
                "reason": "cancel",
                "outcome": "cancelled",
                "ended_at": 105.0,
                "ended_heard": 5.0,
            },
            "claim_secret c-1": None,
            "worker w-1": {
                "state": "warm",
                "tenant": None,
                "version": 5,
                "claim_id": None,
                "held_from": None,
                "state_heard": 5.0,
                "state_since": 105.0,
            },
            "events": [
                '105 claim.ended worker.returned p-1 w-1 c-1 acme "cancel"'
                ' {"how": "cancel", "from": "assigned", "outcome": "cancelled", "exit_code": null}'
            ],
            "notices": ["c c-1", "w w-1"],
        }
        # The same for a parked worker: its TTL goes on.
        await active(store, pool, ask(id="c-2", park_ttl=50.0))
        await end(store, "c-2")
        await store.workers.report(agent_report("w-1", served_fence=(await worker_fence(store))))
        await clock.live(5)
        await assigned(store, pool, ask(id="c-3"))
        await changes.seen()
        assert await end(store, "c-3", "cancel") == Done()
        assert await changes.seen() == {
            "claim c-3": {
                "how": "cancel",
                "request": {},
                "state": "ended",
                "reason": "cancel",
                "outcome": "cancelled",
                "ended_at": 110.0,
                "ended_heard": 10.0,
            },
            "worker w-1": {"state": "parked", "version": 12, "claim_id": None, "held_from": None},
            "events": [
                '110 claim.ended worker.returned p-1 w-1 c-3 acme "cancel"'
                ' {"how": "cancel", "from": "assigned", "outcome": "cancelled", "exit_code": null}'
            ],
            "notices": ["c c-3", "w w-1"],
        }


async def worker_fence(store: PostgresStore) -> int:
    fence: int = await store.db.value("SELECT fence FROM holdfast.worker WHERE id = 'w-1'")
    return fence


async def test_a_job_that_ends_takes_its_worker_with_it(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    await active(store, pool, ask(id="c-1"))
    await clock.live(5)
    async with await Changes.of(store) as changes:
        assert await end(store, "c-1", "result", exit_code=0) == Done()
        assert await changes.seen() == {
            "claim c-1": {
                "how": "result",
                "request": {},
                "state": "ended",
                "reason": "result",
                "outcome": "completed",
                "ended_at": 105.0,
                "ended_heard": 5.0,
                "exit_code": 0,
            },
            "worker w-1": {
                "state": "retiring",
                "reason": "its claim ended: completed",
                "version": 7,
                "claim_id": None,
                "held_from": None,
                "state_heard": 5.0,
                "state_since": 105.0,
            },
            "events": [
                '105 claim.ended worker.retiring p-1 w-1 c-1 acme "result"'
                ' {"how": "result", "from": "active", "outcome": "completed", "exit_code": 0}'
            ],
            "notices": ["c c-1", "w w-1"],
        }
        await add_worker(store, pool, "w-2")
        await assigned(store, pool, ask(id="c-2"))
        await changes.seen()
        assert await end(store, "c-2", "death") == Done(), "nothing was delivered, but its pod is gone"
        assert await changes.seen() == {
            "claim c-2": {
                "how": "death",
                "request": {},
                "state": "ended",
                "reason": "death",
                "outcome": "lost",
                "ended_at": 105.0,
                "ended_heard": 5.0,
            },
            "worker w-2": {
                "state": "retiring",
                "reason": "its claim ended: lost",
                "version": 5,
                "claim_id": None,
                "held_from": None,
            },
            "events": [
                '105 claim.ended worker.retiring p-1 w-2 c-2 acme "death"'
                ' {"how": "death", "from": "assigned", "outcome": "lost", "exit_code": null}'
            ],
            "notices": ["c c-2", "w w-2"],
        }
        assert await match(store, pool, ask(id="c-3", deadline=5.0)) == []
        await changes.seen()
        assert await end(store, "c-3", "deadline") == Stale()
        await clock.live(5)
        await changes.seen()
        assert await end(store, "c-3", "deadline") == Done(), "at the very moment of its deadline"
        assert await changes.seen() == {
            "claim c-3": {
                "how": "deadline",
                "request": {},
                "state": "ended",
                "reason": "deadline",
                "outcome": "refused",
                "ended_at": 110.0,
                "ended_heard": 10.0,
            },
            "events": [
                '110 claim.ended p-1 c-3 acme "deadline"'
                ' {"how": "deadline", "from": "waiting", "outcome": "refused", "exit_code": null}'
            ],
            "notices": ["c c-3"],
        }


@pytest.mark.parametrize("how", ["lease", "max_duration"])
async def test_a_deadline_ends_a_claim_at_its_moment_and_the_brake_counts_it(store: PostgresStore, how: str) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store)
    times = {"lease": 60.0, "max_duration": 300.0} | {how: 5.0}
    await active(store, pool, ask(id="c-1", **times))
    await clock.live(4)
    async with await Changes.of(store) as changes:
        assert await end(store, "c-1", how) == Stale()
        assert await changes.seen() == {}
        await clock.live(1)
        await changes.seen()
        assert await end(store, "c-1", how) == Done()
        found = await changes.seen()
        assert found["ending claim c-1"] == {"at": 105.0, "id": "c-1", "kind": "claim", "tenant": "acme"}
        assert (found["claim c-1"]["how"], found["claim c-1"]["outcome"]) == (how, "expired")
        assert found["worker w-1"]["state"] == "parked"


async def test_a_condemned_worker_forgets_that_it_was_parked(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store)
    await active(store, pool, ask(id="c-1", **LEASED))
    await end(store, "c-1")
    await clock.live(3)
    async with await Changes.of(store) as changes:
        version = await store.db.value("SELECT version FROM holdfast.worker")
        assert await store.workers.condemn("w-1", version - 1, "past its TTL", counted=True) == Stale()
        assert await changes.seen() == {}
        assert await store.workers.condemn("w-1", version, "past its TTL", counted=True) == Done()
        assert await changes.seen() == {
            "ending worker w-1": {"at": 103.0, "id": "w-1", "kind": "worker", "tenant": "acme"},
            "worker w-1": {
                "state": "retiring",
                "reason": "past its TTL",
                "version": 8,
                "park_ttl": None,
                "state_heard": 3.0,
                "state_since": 103.0,
                "parked_heard": None,
                "parked_since": None,
            },
            "events": ['103 worker.retiring p-1 w-1 acme "past its TTL" {"from": "parked"}'],
            "notices": ["w w-1"],
        }


@pytest.mark.parametrize("kind", ["worker", "claim"])
async def test_a_brake_that_trips_stores_what_it_counted(store: PostgresStore, kind: str) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, BARE)
    for worker in ("w-2", "w-3", "w-4"):
        await add_worker(store, pool, worker)
    for claim in ("c-1", "c-2"):
        await active(store, pool, ask(id=claim, lease=2.0))
    await clock.live(3)

    async def ending(n: int) -> object:
        if kind == "claim":
            return await end(store, f"c-{n}", "lease")
        return await store.workers.condemn(f"w-{n + 2}", None, "not wanted", counted=True)

    # A share of 0.5 allows one ending of two claims, because the ended claim counts as well.
    await set_brake(store, *((0, 0.5) if kind == "claim" else (1, 0.0)))
    async with await Changes.of(store) as changes:
        assert await ending(1) == Done()
        await changes.seen()
        assert await ending(2) == Skipped("braked")
        sentence = {
            "worker": "1 workers were ended in ten minutes, of 5",
            "claim": "1 claims were ended in ten minutes, of 2",
        }[kind]
        assert await changes.seen() == {
            "installation": {"brake_reason": sentence, "brake_tripped_at": 103.0},
            "events": [f'103 brake.tripped "{sentence}"'],
        }
        assert await ending(2) == Skipped("braked")
        assert await changes.seen() == {}, "one event"
