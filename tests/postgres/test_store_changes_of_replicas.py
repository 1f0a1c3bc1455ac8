"""What beats, terms and spawns write, and when they are refused."""

from typing import Any

import pytest

from holdfast.ports.store import DutyReport
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, add_worker, apart, pool_with_worker
from postgres.store_rows import add_held, insert
from postgres.store_steps import JOB, active, ask


def report(number: int, **other: Any) -> DutyReport:
    usual: dict[str, Any] = {
        "duty": "scale", "number": number, "progressed": True, "succeeded": True, "seconds": 0.5, "actions": 3, "skips": 2,
        "failure": None,
    }  # fmt: skip
    return DutyReport(**(usual | other))


async def test_a_beat_renews_its_own_terms_and_stores_what_their_duties_did(store: PostgresStore) -> None:
    clock = await apart(store)
    for replica in ("r-1", "r-2"):
        await store.fleet.join(replica, 7, "host", "http://x", "1")
    number = await store.fleet.take_term("scale", "r-1", 10.0, 99.0)
    other = await store.fleet.take_term("prune", "r-2", 10.0, 99.0)
    assert (number, other) == (1, 1)
    async with await Changes.of(store) as changes:
        await clock.jump(1)
        beat = await store.fleet.beat("r-1", 1.0, 10.0, [report(1), report(1, duty="prune")])
        assert await changes.seen() == {
            "hearing": {"mark": 2, "last_heard": 101.0},
            "replica r-1": {"seen_at": 101.0},
            "term scale": {
                "skips": 2,
                "until": 111.0,
                "actions": 3,
                "seconds": 0.5,
                "renewed_at": 101.0,
                "success_at": 101.0,
                "progress_at": 101.0,
            },
        }
        terms = {term.duty: (term.holder, term.number, term.expired, term.idle) for term in beat.terms}
        assert terms["scale"] == ("r-1", 1, False, 0.0)
        assert terms["prune"] == ("r-2", 1, False, 1.0)
        assert (terms["match"][:3], beat.seen.mark, beat.seen.epoch, beat.recovering) == ((None, 0, True), 2, 1, False)
        await clock.jump(1)
        quiet = report(1, progressed=False, succeeded=False, seconds=None, actions=1, skips=1, failure="why")
        await store.fleet.beat("r-1", 1.0, 10.0, [quiet])
        assert await changes.seen() == {
            "hearing": {"mark": 3, "last_heard": 102.0},
            "replica r-1": {"seen_at": 102.0},
            "term scale": {"skips": 3, "until": 112.0, "actions": 4, "failure": "why", "renewed_at": 102.0},
        }
        await store.fleet.beat("r-1", 0.0, 10.0, [report(2)])
        assert "term scale" not in await changes.seen(), "another number is another term"


@pytest.mark.parametrize(
    ("passed", "elapsed", "heard"),
    [(1.0, 1.0, 1.0), (2.0, 9.0, 2.0), (3.0, 3.0, 2.0), (5.0, 5.0, 2.0), (5.1, 9.0, 0.0), (4.0, 1.0, 1.0), (3.0, None, 0.0),
    (-1.0, 1.0, 0.0)],
)  # fmt: skip
async def test_heard_time_moves_by_what_was_heard(
    store: PostgresStore, passed: float, elapsed: float | None, heard: float
) -> None:
    clock = await apart(store)
    before = await clock.heard()
    await clock.jump(passed)
    await clock.beat(elapsed)
    assert await clock.heard() - before == heard


@pytest.mark.parametrize(
    ("term", "taken"),
    [
        ("until = holdfast.now() - interval '1 ms'", True), ("until = holdfast.now()", False),
        ("renewed_at = holdfast.now() + interval '1 ms'", True), ("progress_at = holdfast.now() - interval '5 s'", False),
        ("progress_at = holdfast.now() - interval '5.001 s'", True), ("progress_at = holdfast.now() + interval '1 ms'", True),
        ("progress_at = NULL, renewed_at = holdfast.now() - interval '6 s'", True),
        ("progress_at = NULL, renewed_at = holdfast.now() - interval '5 s'", False),
    ],
)  # fmt: skip
async def test_a_term_is_taken_when_it_ran_out_or_stands_still(store: PostgresStore, term: str, taken: bool) -> None:
    await apart(store)
    await store.fleet.take_term("scale", "r-1", 10.0, 5.0)
    await store.db.rows(f"UPDATE holdfast.term SET {term} WHERE duty = 'scale'")
    async with await Changes.of(store) as changes:
        assert await store.fleet.take_term("scale", "r-2", 10.0, 5.0) == (2 if taken else None)
        found = await changes.seen()
        assert (found.get("events") == ["100 term.taken \"duty scale: r-2 takes over from r-1\" "
                                        '{"duty": "scale", "replica": "r-2"}']) == taken  # fmt: skip
        assert (found != {}) == taken


async def test_taking_a_term_counts_the_take_over_and_stores_both_replicas(store: PostgresStore) -> None:
    clock = await apart(store)
    async with await Changes.of(store) as changes:
        assert await store.fleet.take_term("scale", "r-1", 10.0, 5.0) == 1
        assert await changes.seen() == {
            "term scale": {"until": 110.0, "holder": "r-1", "number": 1, "renewed_at": 100.0, "progress_at": 100.0},
            "events": ['100 term.taken "duty scale: r-1 takes over from no holder" {"duty": "scale", "replica": "r-1"}'],
        }
        await store.db.rows("UPDATE holdfast.term SET failure = 'why' WHERE duty = 'scale'")
        await clock.jump(11)
        await changes.seen()
        assert await store.fleet.take_term("scale", "r-1", 10.0, 5.0) == 2
        assert await changes.seen() == {
            "term scale": {"until": 121.0, "number": 2, "failure": None, "renewed_at": 111.0, "progress_at": 111.0}
        }
        await clock.jump(11)
        assert await store.fleet.take_term("scale", "r-2", 10.0, 5.0) == 3
        assert (await changes.seen())["term scale"]["taken_over"] == 1


@pytest.mark.parametrize(
    ("obstacle", "made"),
    [
        ("", 2), ("pool: state = 'draining'", 0), ("pool: frozen = 'by hand'", 0), ("installation: stopping = true", 0),
        ("pool: backoff_until = holdfast.now()", 2), ("pool: backoff_until = holdfast.now() + interval '1 ms'", 0),
        ("installation: recovering_since = holdfast.now()", 0),
        ("pool: spec = jsonb_set(spec, '{max}', '4')", 1), ("pool: spec = jsonb_set(spec, '{max}', '3')", 0),
        ("worker: state = 'gone', claim_id = NULL", 4),
        ("worker: state = 'parked', tenant = 'a', parked_since = holdfast.now(), claim_id = NULL", 4),
        ("worker: terminating = true", 3), ("worker: schedulable = false", 3), ("worker: suspect_since = holdfast.now()", 4),
        ("worker: unconfirmed_since = holdfast.now()", 4),
    ],
)  # fmt: skip
async def test_as_many_workers_are_spawned_as_are_missing(store: PostgresStore, obstacle: str, made: int) -> None:
    await apart(store)
    pool = await pool_with_worker(store, JOB)
    await add_worker(store, pool, "w-2")
    await active(store, pool, ask(id="c-1"))  # one warm, one held, one starting
    await store.workers.spawn("p-1", ["w-3"], 1000, 1000)
    if obstacle:
        table, _, values = obstacle.partition(": ")
        await store.db.rows(f"UPDATE holdfast.{table} SET {values}")
    ids = [f"w-{n}" for n in range(10, 16)]
    assert [worker for worker, _ in await store.workers.spawn("p-1", ids, 4, 1000)] == ids[:made]


async def test_held_and_retiring_workers_are_no_capacity_for_the_next_claims(store: PostgresStore) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    for n in (1, 2, 3):
        await add_held(store, f"h-{n}", f"c-{n}", fence=n)
    await insert(store, "worker", id="w-1")
    await insert(store, "worker", id="w-2", state="retiring")
    assert [worker for worker, _ in await store.workers.spawn("p-1", ["n-1", "n-2", "n-3"], 3, 9)] == ["n-1", "n-2"]


async def test_a_spawned_worker_is_a_row_before_it_is_a_pod(store: PostgresStore) -> None:
    await apart(store)
    pool, _ = await store.pools.put("p-1", "linux", JOB, "api")
    await store.db.rows("UPDATE holdfast.installation SET epoch = 3")
    async with await Changes.of(store) as changes:
        assert await store.workers.spawn("p-1", ["w-1", "w-2", "w-3"], 9, 2) == [("w-1", 3), ("w-2", 3)]
        found = await changes.seen()
        assert {k: v for k, v in found["worker w-1"].items() if v is not None and v is not False} == {
            "id": "w-1", "pool_id": "p-1", "state": "spawning", "revision": pool.revision, "epoch": 3, "created_at": 100.0,
            "state_since": 100.0, "state_heard": 0.0, "version": 1, "schedulable": True,
        }  # fmt: skip
        assert found["events"] == ["100 worker.spawning p-1 w-1", "100 worker.spawning p-1 w-2"]
        assert await store.workers.spawn("p-1", ["w-4"], 9, 2) == [], "two are starting"
        store.db.mark.saw(2**40, float("inf"))
        assert await store.workers.spawn("p-1", ["w-4"], 9, 9) == [], "not on a database that lost commits"
