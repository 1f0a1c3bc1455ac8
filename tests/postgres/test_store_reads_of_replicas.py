"""What is read about replicas, duties and the brake, and what their own statements write."""

from typing import Any

from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_rows import ago, insert, set_brake


async def test_a_replica_joins_once_and_again_if_its_first_answer_was_lost(store: PostgresStore) -> None:
    clock = await apart(store)
    async with await Changes.of(store) as changes:
        await store.fleet.join("r-1", 7, "host", "http://x", "1.0")
        assert await changes.seen() == {
            "replica r-1": {
                "id": "r-1", "pid": 7, "host": "host", "url": "http://x", "version": "1.0", "functions": store.db.functions,
                "started_at": 100.0, "seen_at": 100.0,
            }
        }  # fmt: skip
        await clock.jump(1)
        await store.fleet.join("r-1", 7, "host", "http://x", "1.0")
        assert await changes.seen() == {"replica r-1": {"seen_at": 101.0}}


async def test_a_replica_that_leaves_gives_back_its_own_terms(store: PostgresStore) -> None:
    await apart(store)
    for replica in ("r-1", "r-2"):
        await store.fleet.join(replica, 7, "host", "http://x", "1.0")
    await store.fleet.take_term("scale", "r-1", 10.0, 99.0)
    await store.fleet.take_term("prune", "r-2", 10.0, 99.0)
    async with await Changes.of(store) as changes:
        await store.fleet.leave("r-1")
        found = await changes.seen()
        assert found.keys() == {"replica r-1", "term scale"}
        assert found["replica r-1"] == {"stopped_at": 100.0}
        assert (found["term scale"]["holder"], found["term scale"]["until"]) == (None, "1970-01-01T00:00:00+00:00")


async def test_replicas_are_listed_with_their_state_for_ten_minutes(store: PostgresStore) -> None:
    await apart(store)
    for replica, columns in {
        "r-live": {"seen_at": ago(5), "started_at": ago(50)},
        "r-silent": {"seen_at": ago(5.1), "started_at": ago(40)},
        "r-last": {"seen_at": ago(599.9), "started_at": ago(900)},
        "r-forgotten": {"seen_at": ago(600), "started_at": ago(900)},
        "r-stopped": {"seen_at": ago(1), "stopped_at": ago(1), "started_at": ago(60)},
        "r-stopped-long-ago": {"seen_at": ago(1), "stopped_at": ago(600), "started_at": ago(60)},
        "a-twin": {"seen_at": ago(1), "started_at": ago(50)},
    }.items():
        await insert(store, "replica", id=replica, **columns)
    for duty in ("scale", "match", "prune"):
        await store.fleet.take_term(duty, "r-live", 10.0, 99.0)
    await store.fleet.take_term("pools", "r-silent", 10.0, 99.0)
    await store.db.rows("UPDATE holdfast.term SET until = holdfast.now() WHERE duty = 'prune'")
    found = await store.fleet.replicas()
    assert [(one["id"], one["state"], one["duties"]) for one in found] == [
        ("r-silent", "silent", ["pools"]),
        ("a-twin", "live", []),
        ("r-live", "live", ["match", "scale"]),
        ("r-stopped", "stopped", []),
        ("r-last", "silent", []),
    ]


async def test_duties_are_listed_with_their_last_success(store: PostgresStore) -> None:
    clock = await apart(store)
    await store.fleet.take_term("scale", "r-1", 10.0, 99.0)
    await store.db.rows(f"UPDATE holdfast.term SET success_at = {ago(3)}, seconds = 0.5 WHERE duty = 'scale'")

    async def duties() -> dict[str, dict[str, Any]]:
        found = await store.fleet.duties()
        assert [one["duty"] for one in found] == ["converge", "deadlines", "match", "pools", "prune", "scale"]
        return {one["duty"]: one for one in found}

    scale, match = (await duties())["scale"], (await duties())["match"]
    assert (scale["holder"], scale["number"], scale["held"], scale["age"], scale["seconds"]) == ("r-1", 1, True, 3.0, 0.5)
    assert (match["holder"], match["number"], match["held"], match["age"]) == (None, 0, False, None)
    await clock.jump(10)
    assert not (await duties())["scale"]["held"], "its term ends now"


async def test_the_brake_shows_what_it_counts_of_each_kind(store: PostgresStore) -> None:
    await apart(store)
    await set_brake(store, 7, 0.5)
    for n, (kind, seconds) in enumerate([("worker", 1), ("worker", 599), ("worker", 600), ("claim", 2), ("claim", 600)]):
        await insert(store, "ending", id=f"e-{n}", kind=kind, at=ago(seconds))
    brake = await store.fleet.brake()
    assert (brake["claims"], brake["share"], brake["tripped"], brake["reason"]) == (7, 0.5, False, None)
    assert (brake["workers_ended"], brake["claims_ended"]) == (2, 1)
    await store.db.rows(f"UPDATE holdfast.installation SET brake_tripped_at = {ago(1)}, brake_reason = 'too many'")
    brake = await store.fleet.brake()
    assert (brake["tripped"], brake["reason"]) == (True, "too many")


async def test_a_brake_is_released_once_and_by_its_reason(store: PostgresStore) -> None:
    await apart(store)
    await store.db.rows(f"UPDATE holdfast.installation SET brake_tripped_at = {ago(1)}, brake_reason = 'too many'")
    async with await Changes.of(store) as changes:
        assert await store.fleet.release_brake("looked at it")
        assert await changes.seen() == {
            "installation": {"brake_tripped_at": None, "brake_reason": None, "brake_released_at": 100.0},
            "events": ['100 brake.released "looked at it"'],
        }
        assert not await store.fleet.release_brake("looked at it")
        assert await changes.seen() == {}


async def test_the_stop_of_the_workers_is_written_if_it_differs(store: PostgresStore) -> None:
    async with await Changes.of(store) as changes:
        await store.fleet.stop_workers(True)
        assert await changes.seen() == {"installation": {"stopping": True}}
        await store.fleet.stop_workers(False)
        assert await changes.seen() == {"installation": {"stopping": False}}
    before = await store.db.value("SELECT xmin::text FROM holdfast.installation")
    await store.fleet.stop_workers(False)
    assert await store.db.value("SELECT xmin::text FROM holdfast.installation") == before, "every claim would wait for the row"
