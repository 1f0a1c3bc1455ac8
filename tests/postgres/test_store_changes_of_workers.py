"""What the steps of a worker's life write outside claims: refused, created, warm, suspect, heard again, buried, observed."""

from typing import Any

import pytest

from holdfast.model.effect import Done, Stale
from holdfast.ports.store import Facts
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_rows import NOW, add_held, ago, heard_ago, insert
from postgres.store_steps import BARE, JOB, agent_report

TROUBLE = "UPDATE holdfast.pool SET failures = 3, trouble = 'no room', backoff_until = holdfast.now()"
STATES = ("spawning", "warm", "parked", "retiring", "gone")


async def two_pools(store: PostgresStore, spec: Any = JOB) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", spec, "api")
    await store.pools.put("p-2", "other", spec, "api")


async def in_state(store: PostgresStore, worker: str, state: str, **columns: Any) -> None:
    parked = {"tenant": "acme", "parked_since": NOW} if state == "parked" else {}
    if state == "held":
        await add_held(store, worker, f"c-of-{worker}")
    else:
        await insert(
            store, "worker", id=worker, state=state, **(parked | {"state_since": ago(9), "state_heard": heard_ago(9)} | columns)
        )


async def test_a_refused_spawn_frees_its_slot_and_its_pool_backs_off(store: PostgresStore) -> None:
    await two_pools(store)
    await in_state(store, "w-1", "spawning")
    await in_state(store, "w-2", "spawning")
    async with await Changes.of(store) as changes:
        assert await store.workers.unspawn(["w-1"], "quota", "no room", 2.0) == Done()
        assert await changes.seen() == {
            "worker w-1": {"state": "gone", "version": 2, "reason": "no room", "state_since": 100.0, "state_heard": 0.0},
            "pool p-1": {"failures": 1, "trouble": "quota: no room", "backoff_until": 102.0},
            "events": ['100 worker.gone p-1 w-1 "no room" {"refused": "quota"}'],
        }
        await store.db.rows("UPDATE holdfast.pool SET failures = 8")
        assert await store.workers.unspawn(["w-2"], "quota", "no room", 1.0) == Done()
        assert (await changes.seen())["pool p-1"] == {"failures": 9, "backoff_until": 356.0}


@pytest.mark.parametrize(("failures", "backoff", "until"), [(1, 2.0, 104.0), (9, 1.0, 356.0), (9, 2.0, 400.0)])
async def test_the_backoff_after_a_refused_spawn_doubles_up_to_five_minutes(
    store: PostgresStore, failures: int, backoff: float, until: float
) -> None:
    await two_pools(store)
    await in_state(store, "w-1", "spawning")
    await store.db.rows("UPDATE holdfast.pool SET failures = $1", failures)
    async with await Changes.of(store) as changes:
        assert await store.workers.unspawn(["w-1"], "quota", "no room", backoff) == Done()
        assert (await changes.seen())["pool p-1"]["backoff_until"] == until


@pytest.mark.parametrize("state", ["warm", "parked", "retiring", "gone", "held"])
async def test_only_a_worker_that_is_being_created_is_refused(store: PostgresStore, state: str) -> None:
    await two_pools(store)
    await in_state(store, "w-1", state)
    async with await Changes.of(store) as changes:
        assert await store.workers.unspawn(["w-1"], "quota", "no room", 2.0) == Stale()
        assert await changes.seen() == {}


async def test_a_pod_is_noted_once_and_never_replaced_by_another(store: PostgresStore) -> None:
    await two_pools(store)
    for worker in ("w-1", "w-2"):
        await in_state(store, worker, "spawning")
    await in_state(store, "w-3", "gone")
    async with await Changes.of(store) as changes:
        assert await store.workers.spawned("w-1", "uid-1") == Done()
        assert await changes.seen() == {"worker w-1": {"pod_uid": "uid-1", "version": 2}}
        assert await store.workers.spawned("w-1", "uid-1") == Done(), "the same pod again"
        assert await changes.seen() == {"worker w-1": {"version": 3}}
        assert await store.workers.spawned("w-1", "uid-2") == Stale()
        assert await store.workers.spawned("w-3", "uid-3") == Stale()
        assert await changes.seen() == {}


@pytest.mark.parametrize(
    ("trouble", "reset"),
    [
        ("failures = 1, trouble = NULL", {"failures": 0}), ("failures = 0, trouble = 'no room'", {"trouble": None}),
        ("failures = 2, trouble = 'x', backoff_until = holdfast.now()", {"failures": 0, "trouble": None, "backoff_until": None}),
        ("failures = 0, trouble = NULL, backoff_until = holdfast.now()", {}),
    ],
)  # fmt: skip
async def test_a_warm_worker_ends_the_trouble_of_its_own_pool(store: PostgresStore, trouble: str, reset: dict[str, Any]) -> None:
    await two_pools(store, BARE)
    await in_state(store, "w-1", "spawning", ready=False, endpoint="1.1.1.1:1")
    await store.db.rows(f"UPDATE holdfast.pool SET {trouble}")
    async with await Changes.of(store) as changes:
        assert await store.workers.warm("w-1", 1, None) == Done()
        warm = {"state": "warm", "version": 2, "ready": True, "state_since": 100.0, "state_heard": 0.0}
        expected: dict[str, Any] = {"worker w-1": warm, "events": ["100 worker.warm p-1 w-1"], "notices": ["p p-1"]}
        assert await changes.seen() == expected | ({"pool p-1": reset} if reset else {})


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("version", [1, 2])
async def test_only_a_spawning_worker_that_is_as_seen_becomes_warm(store: PostgresStore, state: str, version: int) -> None:
    await two_pools(store, BARE)
    await in_state(store, "w-1", state)
    await in_state(store, "w-2", "spawning")
    async with await Changes.of(store) as changes:
        fits = (state, version) == ("spawning", 1)
        assert await store.workers.warm("w-1", version, "1.2.3.4:80") == (Done() if fits else Stale())
        found = await changes.seen()
        assert found.keys() == ({"worker w-1", "events", "notices"} if fits else set())
        assert not fits or found["worker w-1"]["endpoint"] == "1.2.3.4:80"


@pytest.mark.parametrize("state", [*STATES, "held"])
async def test_only_a_retiring_worker_is_buried_and_its_heartbeat_with_it(store: PostgresStore, state: str) -> None:
    await two_pools(store)
    await in_state(store, "w-1", state)
    await in_state(store, "w-2", "retiring", tenant="acme")
    for worker in ("w-1", "w-2", "w-3"):
        await insert(store, "heartbeat", worker_id=worker)
    async with await Changes.of(store) as changes:
        assert await store.workers.bury("w-1", "its pod is gone") == (Done() if state == "retiring" else Stale())
        gone = {"state": "gone", "version": 2, "ready": False, "state_since": 100.0, "state_heard": 0.0}
        expected = {
            "worker w-1": gone, "heartbeat w-1": None, "notices": ["p p-1"],
            "events": ['100 worker.gone p-1 w-1 "its pod is gone"'],
        }  # fmt: skip
        assert await changes.seen() == (expected if state == "retiring" else {})
        assert await store.workers.bury("w-2", "its pod is gone") == Done()
        assert (await changes.seen())["events"] == ['100 worker.gone p-1 w-2 acme "its pod is gone"']


async def test_a_worker_becomes_suspect_once_and_only_as_it_was_seen(store: PostgresStore) -> None:
    await two_pools(store)
    await add_held(store, "w-1", "c-1")
    await in_state(store, "w-2", "warm")
    await in_state(store, "w-3", "gone")
    async with await Changes.of(store) as changes:
        assert await store.workers.suspect("w-1", 2, "silent") == Stale(), "another version"
        assert await store.workers.suspect("w-3", 1, "silent") == Stale(), "gone"
        assert await changes.seen() == {}
        assert await store.workers.suspect("w-1", 1, "silent") == Done()
        assert await changes.seen() == {
            "worker w-1": {"suspect_since": 100.0, "version": 2},
            "events": ['100 worker.suspect p-1 w-1 c-1 acme "silent"'],
        }
        assert await store.workers.suspect("w-1", 2, "silent") == Stale(), "suspect already"
        assert await changes.seen() == {}


async def test_a_worker_that_was_heard_again_is_neither_suspect_nor_unconfirmed(store: PostgresStore) -> None:
    await two_pools(store)
    await in_state(store, "w-1", "warm", suspect_since=NOW)
    await in_state(store, "w-2", "warm", unconfirmed_since=NOW)
    await in_state(store, "w-3", "warm")
    await in_state(store, "w-4", "warm", suspect_since=NOW, unconfirmed_since=NOW)
    async with await Changes.of(store) as changes:
        assert await store.workers.heard_again("w-1", 1) == Done()
        assert await changes.seen() == {"worker w-1": {"suspect_since": None, "version": 2}}
        assert await store.workers.heard_again("w-2", 1) == Done()
        assert await changes.seen() == {"worker w-2": {"unconfirmed_since": None, "version": 2}}
        assert await store.workers.heard_again("w-3", 1) == Stale(), "it was neither"
        assert await store.workers.heard_again("w-4", 2) == Stale(), "it has changed since it was read"
        assert await changes.seen() == {}
        assert await store.workers.heard_again("w-4", 1) == Done()
        assert await changes.seen() == {"worker w-4": {"suspect_since": None, "unconfirmed_since": None, "version": 2}}


def fact(worker: str, **seen: Any) -> Facts:
    usual: dict[str, Any] = {"uid": f"uid-{worker}", "node": "n-1", "terminating": False, "schedulable": True, "protected": False}
    return Facts(worker=worker, **(usual | seen))


async def test_what_a_pod_shows_is_written_to_its_own_worker(store: PostgresStore) -> None:
    await two_pools(store)
    for worker in ("w-1", "w-2", "w-3"):
        await in_state(store, worker, "gone" if worker == "w-3" else "warm", pod_uid=f"uid-{worker}", endpoint="1.1.1.1:1")
    async with await Changes.of(store) as changes:
        assert await store.workers.facts([fact("w-2", uid="uid-w-1")]) == 0, "the pod of another worker"
        assert await changes.seen() == {}
        seen = fact("w-1", terminating=True, schedulable=False, protected=True, endpoint="2.2.2.2:2")
        assert await store.workers.facts([seen, fact("w-2", uid="another"), fact("w-3"), fact("w-9")]) == 1
        assert await changes.seen() == {
            "worker w-1": {
                "node": "n-1", "terminating": True, "schedulable": False, "protected": True, "endpoint": "2.2.2.2:2",
                "version": 2, "scheduled_heard": 0.0,
            }
        }  # fmt: skip
        await store.db.rows("UPDATE kept.clock SET t = t + interval '1 s'")
        assert await store.workers.facts([fact("w-1"), fact("w-2", node=None)]) == 2
        assert await changes.seen() == {
            "worker w-1": {"schedulable": True, "protected": False, "version": 3},
            "worker w-2": {"version": 2},
        }, "a deletion mark stays, and so do the first time on a node and the last endpoint"
        assert await store.workers.facts([fact("w-1", node=None)]) == 1
        assert (await changes.seen())["worker w-1"] == {"node": None, "scheduled_heard": None, "version": 4}


@pytest.mark.parametrize(("state", "version", "done"), [("warm", 1, True), ("parked", 1, True), ("warm", 2, False),
                                                        ("retiring", 1, False), ("spawning", 1, False)])  # fmt: skip
async def test_a_free_worker_that_is_as_seen_is_noted_as_unprotected(
    store: PostgresStore, state: str, version: int, done: bool
) -> None:
    await two_pools(store)
    await in_state(store, "w-1", state, protected=True)
    await in_state(store, "w-2", "warm", protected=True)
    async with await Changes.of(store) as changes:
        assert await store.workers.unprotect("w-1", version) == (Done() if done else Stale())
        assert await changes.seen() == ({"worker w-1": {"protected": False, "version": 2}} if done else {})


async def test_a_heartbeat_is_written_again_with_every_field_and_never_becomes_older(store: PostgresStore) -> None:
    await two_pools(store)
    async with await Changes.of(store) as changes:
        await store.workers.beat([agent_report("w-1", doing="running", claim="c-1", fence=7, tenant="acme"), agent_report("w-2")])
        assert await changes.seen() == {
            "heartbeat w-1": {
                "worker_id": "w-1", "beat_heard": 0.0, "doing": "running", "claim_id": "c-1", "fence": 7, "tenant": "acme",
            },
            "heartbeat w-2": {"worker_id": "w-2", "beat_heard": 0.0, "doing": "idle"},
        }  # fmt: skip
        await store.db.rows("UPDATE kept.clock SET t = t + interval '1 s'")
        await store.workers.beat([agent_report("w-1", served_fence=7)])
        assert await changes.seen() == {
            "heartbeat w-1": {
                "beat_heard": 1.0, "doing": "idle", "claim_id": None, "fence": None, "tenant": None, "reset_fence": 7,
            }
        }  # fmt: skip
        await store.db.rows("UPDATE holdfast.heartbeat SET beat_heard = beat_heard + interval '9 s'")
        await changes.seen()
        await store.workers.beat([agent_report("w-1", doing="draining")])
        assert await changes.seen() == {"heartbeat w-1": {"doing": "draining", "reset_fence": None}}
