"""What an adoption keeps of the rows that are there, which pool it chooses, and when the rows are newer than the pod."""

from typing import Any

import msgspec
import pytest

from holdfast.model.effect import Done, Stale
from holdfast.model.pool import ProtectionSpec
from holdfast.ports.installation import NOTHING_SEEN
from holdfast.ports.recovery import Adoption, Seen
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_rows import NOW, add_held, ago, heard_ago, insert
from postgres.store_steps import BARE, DIRECT, JOB, SESSION, agent_report

FENCE = (1 << 40) + 50
# Protection is required, so a worker without a stamp was never given out.
STRICT = msgspec.structs.replace(BARE, protection=ProtectionSpec(required=True))


async def recovering(store: PostgresStore, spec: Any = SESSION) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", spec, "api")
    await store.recovery.begin("restored", 0)


async def adopt(store: PostgresStore, fence: int = FENCE, **about: Any) -> object:
    usual: dict[str, Any] = {"worker": "w-1", "uid": "uid-w-1", "pool": "linux", "pool_id": "p-1", "revision": "r"}
    return await store.recovery.adopt(Adoption(**(usual | {"claim": "c-1", "tenant": "acme", "fence": fence} | about)))


@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        ({"state": "waiting", "fence": FENCE - 1}, Done()), ({"state": "waiting", "fence": FENCE}, Stale()),
        ({"state": "waiting", "fence": FENCE + 1}, Stale()), ({"state": "waiting"}, Done()),
        ({"state": "ended", "outcome": "lost"}, Stale()),
        ({"state": "assigned", "worker_id": "w-1", "fence": FENCE}, Done()),
        ({"state": "assigned", "worker_id": "w-1", "fence": FENCE + 1}, Stale()),
        ({"state": "active", "worker_id": "w-1", "fence": FENCE}, Stale()),
        ({"state": "active", "worker_id": "w-1", "fence": FENCE - 1}, Done()),
        ({"state": "active", "worker_id": "w-2", "fence": FENCE}, Done()),
    ],
)  # fmt: skip
async def test_a_claim_is_adopted_unless_its_row_shows_a_later_state_of_it(
    store: PostgresStore, claim: dict[str, Any], outcome: object
) -> None:
    await recovering(store)
    await insert(store, "claim", id="c-1", max_heard=NOW, **claim)
    async with await Changes.of(store) as changes:
        assert await adopt(store) == outcome
        found = await changes.seen()
        assert (found == {}) == (outcome == Stale())
    if outcome == Done():
        row = await store.db.row("SELECT state, worker_id, fence FROM holdfast.claim WHERE id = 'c-1'")
        assert row is not None
        assert tuple(row) == ("active", "w-1", FENCE)


@pytest.mark.parametrize(("fence", "outcome"), [(FENCE + 1, Stale()), (FENCE, Done()), (FENCE - 1, Done())])
async def test_a_worker_that_has_served_a_later_assignment_is_not_taken_back(
    store: PostgresStore, fence: int, outcome: object
) -> None:
    await recovering(store)
    await insert(store, "worker", id="w-1", fence=fence)
    assert await adopt(store) == outcome


async def test_an_adopted_claim_keeps_the_times_that_its_row_has(store: PostgresStore) -> None:
    await recovering(store)
    its: dict[str, Any] = {"active_at": ago(9), "assigned_at": ago(10), "max_heard": heard_ago(-7), "protected": True}
    await add_held(store, "w-1", "c-1", fence=FENCE - 1, lease="30 s", lease_heard=heard_ago(1), **its)
    await store.db.rows("UPDATE holdfast.worker SET unconfirmed_since = holdfast.now(), endpoint = '1.1.1.1:1', reason = 'x'")
    await store.db.rows("INSERT INTO holdfast.claim_secret VALUES ('c-1', '{}'), ('c-2', '{}')")
    await insert(store, "worker", id="w-2")
    async with await Changes.of(store) as changes:
        assert await adopt(store) == Done()
        found = await changes.seen()
        assert found["claim c-1"] == {
            "fence": FENCE, "offered": True, "delivered": True, "lease_heard": 30.0, "reason": "adopted after lost commits",
        }  # fmt: skip
        assert found["worker w-1"] == {
            "fence": FENCE, "version": 2, "delivered": True, "pod_uid": "uid-w-1", "unconfirmed_since": None, "reason": None,
        }  # fmt: skip
        assert {"claim_secret c-1", "claim c-1", "worker w-1", "events"} == found.keys()
        assert await adopt(store, FENCE + 1, endpoint="2.2.2.2:2") == Done()
        assert (await changes.seen())["worker w-1"]["endpoint"] == "2.2.2.2:2"


@pytest.mark.parametrize(
    ("state", "then"),
    [("assigned", "waiting"), ("active", "ended"), ("waiting", "waiting"), ("ended", "ended")],
)
async def test_the_other_claim_of_an_adopted_worker_has_left_it(store: PostgresStore, state: str, then: str) -> None:
    await recovering(store)
    live = {"offered": True, "delivered": True, "protected": True, "progress_heard": NOW, "assigned_at": NOW, "fence": 7}
    more = {"outcome": "lost"} if state == "ended" else {}
    await insert(store, "claim", id="c-9", state=state, worker_id="w-1", max_heard=NOW, **live, **more)
    await insert(store, "worker", id="w-1", state="held", claim_id="c-9", fence=7, tenant="acme")
    async with await Changes.of(store) as changes:
        assert await adopt(store) == Done()
        found = await changes.seen()
        left = {
            "assigned": {
                "state": "waiting", "worker_id": None, "offered": False, "protected": None,
                "progress_heard": None, "assigned_at": None, "reason": "its worker was found to hold another claim",
            },
            "active": {
                "state": "ended", "outcome": "lost", "how": "forgotten", "ended_at": 100.0, "ended_heard": 0.0,
                "reason": "its end was in commits that the database lost",
            },
        }  # fmt: skip
        if state in left:
            assert found["claim c-9"] == left[state]
            assert len(found["events"]) == 2
        elif state == "ended":
            assert "claim c-9" not in found
            assert len(found["events"]) == 1
        assert await store.claims.state("c-9") == then


async def test_the_pool_of_an_adopted_worker_is_chosen_by_its_id_before_its_name(store: PostgresStore) -> None:
    await recovering(store)
    await store.pools.put("p-0", "other", JOB, "api")
    await store.pools.put("p-2", "another", JOB, "api")

    async def pool_of(worker: str) -> str:
        found: str = await store.db.value("SELECT pool_id FROM holdfast.worker WHERE id = $1", worker)
        return found

    for n, (pool_id, name) in enumerate([("p-1", "other"), ("p-1", "another"), ("p-9", "other")]):
        assert await adopt(store, FENCE + n, worker=f"w-{n}", claim=f"c-{n}", pool_id=pool_id, pool=name) == Done()
        free = await store.recovery.adopt_free(f"f-{n}", "uid", pool_id, name, "r", spent=False)
        assert free == Done()
        expected = "p-0" if pool_id == "p-9" else "p-1"
        assert (await pool_of(f"w-{n}"), await pool_of(f"f-{n}")) == (expected, expected)


@pytest.mark.parametrize(
    ("spec", "heard", "is_unconfirmed"),
    [(SESSION, -1, False), (SESSION, 0, True), (SESSION, 1, True), (SESSION, None, True), (BARE, -1, True), (STRICT, -1, False)],
)
async def test_an_agent_confirms_its_worker_by_a_report_after_the_recovery_began(
    store: PostgresStore, spec: Any, heard: int | None, is_unconfirmed: bool
) -> None:
    await recovering(store, spec)
    await insert(store, "worker", id="w-1")
    if heard is not None:
        await insert(store, "heartbeat", worker_id="w-1", beat_heard=heard_ago(heard))
    await insert(store, "heartbeat", worker_id="w-2", beat_heard=heard_ago(-9))
    assert await store.recovery.end() == Done()
    assert [one.worker for one in await store.recovery.unconfirmed()] == (["w-1"] if is_unconfirmed else [])


@pytest.mark.parametrize("state", ["warm", "held", "retiring"])
async def test_of_workers_without_an_agent_only_free_ones_are_unconfirmed_after_a_recovery(
    store: PostgresStore, state: str
) -> None:
    await recovering(store, DIRECT)
    if state == "held":
        await add_held(store, "w-1", "c-1")
    else:
        await insert(store, "worker", id="w-1", state=state)
    assert await store.recovery.end() == Done()
    marked = await store.db.value("SELECT unconfirmed_since IS NOT NULL FROM holdfast.worker")
    assert marked == (state == "warm"), "a claim that its row shows is served on"


@pytest.mark.parametrize("state", ["warm", "spawning", "parked", "retiring"])
@pytest.mark.parametrize("reset", [None, 7])
async def test_the_end_of_a_recovery_retires_free_workers_that_have_served_a_claim(
    store: PostgresStore, state: str, reset: int | None
) -> None:
    await recovering(store)
    parked: dict[str, Any] = {"tenant": "acme", "parked_since": NOW} if state == "parked" else {}
    await insert(store, "worker", id="w-1", state=state, **parked)
    await insert(store, "worker", id="w-2")
    await insert(store, "heartbeat", worker_id="w-1", reset_fence=reset, beat_heard=heard_ago(-1))
    assert await store.recovery.end() == Done()
    states = dict(await store.db.rows("SELECT id, state FROM holdfast.worker"))
    assert states == {"w-1": "retiring" if reset is not None and state in ("warm", "spawning") else state, "w-2": "warm"}


@pytest.mark.parametrize(
    ("more_mark", "more_epoch", "began"), [(0, 0, False), (1, 0, True), (0, 1, True), (-1, -1, False), (-1, 1, True)]
)
async def test_a_beat_begins_a_recovery_if_the_database_shows_less_than_was_seen(
    store: PostgresStore, more_mark: int, more_epoch: int, began: bool
) -> None:
    await apart(store)
    beat = await store.fleet.beat("r-1", 1.0, 10.0, [], NOTHING_SEEN)
    seen = Seen(beat.seen.mark + more_mark, beat.seen.epoch + more_epoch)
    after = await store.fleet.beat("r-1", 1.0, 10.0, [], seen)
    assert after.recovering == began
    assert after.seen.epoch == (beat.seen.epoch + max(0, more_epoch) + 1 if began else beat.seen.epoch)
    assert after.seen.mark == max(beat.seen.mark, seen.mark if began else 0) + 1
    if began:
        assert (await store.recovery.state()).reason == (
            f"the database shows mark {beat.seen.mark} of epoch {beat.seen.epoch},"
            f" and mark {seen.mark} of epoch {seen.epoch} was seen"
        )


@pytest.mark.parametrize("change", ["timeline = timeline + 1", "system_identifier = 'another'"])
@pytest.mark.parametrize("already", [True, False])
async def test_another_server_begins_a_recovery_unless_one_is_in_progress(
    store: PostgresStore, change: str, already: bool
) -> None:
    await store.fleet.beat("r-1", None, 10.0, [])
    shown = await store.db.row("SELECT system_identifier, timeline FROM holdfast.installation")
    server = await store.db.row(
        "SELECT (SELECT system_identifier::text FROM pg_control_system()), (SELECT timeline_id FROM pg_control_checkpoint())"
    )
    assert shown is not None
    assert server is not None
    assert tuple(shown) == tuple(server)
    if already:
        await store.recovery.begin("restored", 0)
    await store.db.rows(f"UPDATE holdfast.installation SET {change}")
    beat = await store.fleet.beat("r-1", 1.0, 10.0, [])
    assert (beat.recovering, beat.seen.epoch) == (True, 2)
    reason = "restored" if already else "the server's identity or timeline changed: restored, or failed over"
    assert (await store.recovery.state()).reason == reason
    again = await store.db.row("SELECT system_identifier, timeline FROM holdfast.installation")
    assert again is not None
    assert tuple(again) == tuple(server)


@pytest.mark.parametrize(
    ("trouble", "reset"),
    [
        ("failures = 1, trouble = NULL", {"failures": 0}), ("failures = 0, trouble = 'no room'", {"trouble": None}),
        ("failures = 0, trouble = NULL, backoff_until = holdfast.now()", None),
    ],
)  # fmt: skip
async def test_an_agents_first_report_ends_the_trouble_of_its_own_pool(
    store: PostgresStore, trouble: str, reset: dict[str, Any] | None
) -> None:
    await apart(store)
    for pool in ("p-1", "p-2"):
        await store.pools.put(pool, f"pool-{pool}", JOB, "api")
    await insert(store, "worker", id="w-1", state="spawning", pod_uid="uid-w-1")
    await store.db.rows(f"UPDATE holdfast.pool SET {trouble}")
    async with await Changes.of(store) as changes:
        await store.workers.report(agent_report("w-1"))
        found = await changes.seen()
        assert found.get("pool p-1") == reset
        assert "pool p-2" not in found
