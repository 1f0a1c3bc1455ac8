"""What begins a recovery, what is compared in it, and what an operator may decide after it, one condition at a time."""

from typing import Any

import pytest

from holdfast.model.effect import Done, Skipped, Stale
from holdfast.model.pod import Pod, Stamp
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_rows import NOW, add_held, ago, heard_ago, insert, set_brake
from postgres.store_steps import BARE, JOB
from postgres.store_tables import state_of

EPOCH_2 = 2 << 40


async def installed(store: PostgresStore, spec: Any = JOB) -> int:
    """Makes the pool p-1. Returns the highest fence that the database can have given."""
    await apart(store)
    await store.pools.put("p-1", "linux", spec, "api")
    await store.db.rows("SELECT setval('holdfast.fence', 100)")
    last = (await store.recovery.state()).last_fence
    assert last == (1 << 40) + 100
    return last


def stamped(worker: str, fence: int, claim: str = "c-1") -> Pod:
    about: dict[str, Any] = {"name": worker, "worker": worker, "uid": f"uid-{worker}", "stamp": Stamp("i-test", claim, fence)}
    return Pod(
        install="i-test", pool_id="p-1", pool="linux", revision="r", phase="running", version="1", created_at=0.0, **about
    )  # fmt: skip


async def test_a_fence_begins_a_recovery_above_its_own_epoch(store: PostgresStore) -> None:
    await installed(store)
    async with await Changes.of(store) as changes:
        assert await store.recovery.begin_by_fence("an agent is ahead", 3 * EPOCH_2 // 2 + 5)
        found = await changes.seen()
        assert found["installation"] == {
            "epoch": 4, "recoveries": 1, "recovery_heard": 0.0, "recovering_since": 100.0, "recovery_reason": "an agent is ahead",
        }  # fmt: skip
        assert "hearing" not in found, "the mark stays"
        assert not await store.recovery.begin_by_fence("an agent is ahead", EPOCH_2), "this epoch is above it"
        assert await changes.seen() == {}
        assert await store.recovery.begin_by_fence("an agent is ahead", 2 * EPOCH_2), "the same epoch"
        assert (await changes.seen())["installation"]["epoch"] == 5


@pytest.mark.parametrize(
    ("worker", "fence", "ahead"),
    [
        ({}, 100, False), ({}, 51, True), ({}, 50, False), ({"fence": None}, 1, True), ({"pod_uid": "another"}, 51, False),
        ({"state": "retiring"}, 51, False), ({"state": "spawning"}, 51, True), ({"id": "w-2"}, 51, False),
        ({"id": "w-2"}, 101, True),
        ({"state": "parked", "tenant": "a", "parked_since": NOW}, 51, True), ({"pod_uid": "another"}, 101, True),
    ],
)  # fmt: skip
async def test_a_stamp_is_ahead_of_its_row_or_of_every_fence(
    store: PostgresStore, worker: dict[str, Any], fence: int, ahead: bool
) -> None:
    last = await installed(store)
    base = last - 100
    usual: dict[str, Any] = {"id": "w-1", "pod_uid": "uid-w-1", "fence": base + (100 if fence == 100 else 50)}
    await insert(store, "worker", **(usual | worker))
    async with await Changes.of(store) as changes:
        assert await store.recovery.compare_stamps([stamped("w-1", base + fence)]) == ahead
        found = await changes.seen()
        if ahead:
            assert found["installation"]["recovery_reason"] == (
                "pod w-1 is stamped for claim c-1 with a fence that this database did not give it"
            )
        else:
            assert found == {}


async def test_the_highest_stamp_of_all_decides_the_epoch(store: PostgresStore) -> None:
    await installed(store)
    stamps = [stamped("w-1", EPOCH_2), stamped("w-2", 3 * EPOCH_2, claim="c-2"), stamped("w-3", 2 * EPOCH_2)]
    assert await store.recovery.compare_stamps(stamps)
    state = await store.recovery.state()
    assert (state.epoch, state.recovering) == (7, True)
    assert state.reason is not None
    assert state.reason.startswith("pod w-2 is stamped for claim c-2")


async def test_the_state_of_the_installation_shows_the_recovery_and_its_age(store: PostgresStore) -> None:
    last = await installed(store)
    state = await store.recovery.state()
    assert (state.install, state.epoch, state.recovering, state.reason, state.age) == ("i-test", 1, False, None, 0.0)
    assert (state.last_fence, state.recovered_ago, state.behind, state.since) == (last, None, False, None)
    await store.recovery.begin("restored", 0)
    await store.db.rows(f"UPDATE holdfast.installation SET recovery_heard = {heard_ago(4)}, recovered_at = {ago(9)}")
    state = await store.recovery.state()
    assert (state.epoch, state.recovering, state.reason, state.age, state.recovered_ago) == (2, True, "restored", 4.0, 9.0)
    assert state.since is not None
    mark = state.mark
    store.recovery.saw(mark)
    assert not (await store.recovery.state()).behind
    store.recovery.saw(mark + 1)
    assert (await store.recovery.state()).behind


async def unconfirmed(store: PostgresStore) -> list[str]:
    return [one.worker for one in await store.recovery.unconfirmed()]


async def test_unconfirmed_workers_are_listed_with_their_claims(store: PostgresStore) -> None:
    await installed(store)
    await store.pools.put("p-2", "bare", BARE, "api")
    await add_held(store, "w-2", "c-2", delivered=True)
    await add_held(store, "w-1", "c-1", "assigned", fence=8, tenant="other")
    await insert(store, "worker", id="w-3", pool_id="p-2")
    await insert(store, "worker", id="w-4", state="retiring")
    await insert(store, "worker", id="w-5", state="gone")
    await store.db.rows(f"UPDATE holdfast.worker SET unconfirmed_since = {ago(0)}")
    await insert(store, "worker", id="w-6")
    found = await store.recovery.unconfirmed()
    assert [(one.worker, one.pool, one.state, one.agent) for one in found] == [
        ("w-1", "linux", "held", True), ("w-2", "linux", "held", True), ("w-3", "bare", "warm", False),
        ("w-4", "linux", "retiring", True),
    ]  # fmt: skip
    assert [(one.claim, one.claim_state, one.delivered, one.tenant) for one in found] == [
        ("c-1", "assigned", False, "other"), ("c-2", "active", True, "acme"), (None, None, False, None),
        (None, None, False, None),
    ]  # fmt: skip


@pytest.mark.parametrize("state", ["warm", "parked", "held", "retiring", "spawning", "gone"])
async def test_an_operator_confirms_an_unconfirmed_worker_that_is_not_gone(store: PostgresStore, state: str) -> None:
    await installed(store)
    if state == "held":
        await add_held(store, "w-1", "c-1")
    else:
        parked: dict[str, Any] = {"tenant": "acme", "parked_since": NOW} if state == "parked" else {}
        await insert(store, "worker", id="w-1", state=state, **parked)
    await insert(store, "worker", id="w-2", unconfirmed_since=NOW, suspect_since=NOW)
    async with await Changes.of(store) as changes:
        assert await store.recovery.confirm("w-1", "looked at it") == Stale(), "nothing to confirm"
        assert await changes.seen() == {}
        await store.db.rows(f"UPDATE holdfast.worker SET unconfirmed_since = {NOW}, suspect_since = {NOW} WHERE id = 'w-1'")
        await changes.seen()
        living = state != "gone"
        assert await store.recovery.confirm("w-1", "looked at it") == (Done() if living else Stale())
        about = {"held": "w-1 c-1 acme", "parked": "w-1 acme"}.get(state, "w-1")
        confirmed = {
            "worker w-1": {"unconfirmed_since": None, "suspect_since": None, "version": 2},
            "events": [f'100 worker.confirmed p-1 {about} "by an operator: looked at it"'],
            "notices": ["p p-1", "w w-1"],
        }
        assert await changes.seen() == (confirmed if living else {})


async def given_up(store: PostgresStore, worker: str = "w-1") -> Any:
    return await store.recovery.give_up(worker, "hopeless")


@pytest.mark.parametrize("state", ["warm", "parked", "gone", "spawning"])
async def test_a_free_unconfirmed_worker_that_is_given_up_retires(store: PostgresStore, state: str) -> None:
    await installed(store)
    parked: dict[str, Any] = {"tenant": "acme", "parked_since": NOW} if state == "parked" else {}
    await insert(store, "worker", id="w-1", state=state, **parked)
    assert await given_up(store) == Stale(), "it is confirmed"
    await store.db.rows(f"UPDATE holdfast.worker SET unconfirmed_since = {NOW}")
    await set_brake(store, 0, 0.0)
    await store.pools.freeze("linux", "hands off")
    if state != "gone":
        assert await given_up(store) == Skipped("frozen")
        await store.pools.freeze("linux", None)
        async with await Changes.of(store) as changes:
            assert await given_up(store) == Done(), "the brake does not count what an operator decides"
            found = await changes.seen()
            assert found["worker w-1"]["reason"] == "given up by an operator: hopeless"
            tenant = " acme" if parked else ""
            assert found["events"][-1] == f'100 worker.given_up p-1 w-1{tenant} "by an operator: hopeless"'
            assert len(found["events"]) == 2
        assert await state_of(store, "worker", "w-1") == "retiring"
    else:
        assert await given_up(store) == Stale()
        assert await state_of(store, "worker", "w-1") == state


async def test_a_retiring_unconfirmed_worker_that_is_given_up_is_confirmed(store: PostgresStore) -> None:
    await installed(store)
    await insert(store, "worker", id="w-1", state="retiring", tenant="acme")
    assert await given_up(store) == Stale(), "it is confirmed"
    await store.db.rows(f"UPDATE holdfast.worker SET unconfirmed_since = {NOW}")
    async with await Changes.of(store) as changes:
        assert await given_up(store) == Done()
        assert await changes.seen() == {
            "worker w-1": {"unconfirmed_since": None, "version": 2},
            "events": ['100 worker.given_up p-1 w-1 acme "by an operator: hopeless"'],
        }


@pytest.mark.parametrize(
    ("state", "delivered", "then"),
    [("assigned", False, "waiting"), ("assigned", True, "ended"), ("active", True, "ended"), ("active", False, "ended")],
)
async def test_the_claim_of_a_worker_that_is_given_up_runs_again_only_if_it_was_never_sent(
    store: PostgresStore, state: str, delivered: bool, then: str
) -> None:
    await installed(store)
    await add_held(store, "w-1", "c-1", state, delivered=delivered, progress_heard=NOW)
    sent = delivered or state == "active"
    await store.db.rows(f"UPDATE holdfast.worker SET unconfirmed_since = {NOW}, held_from = 'warm', delivered = {sent}")
    async with await Changes.of(store) as changes:
        assert await given_up(store) == Done()
        found = await changes.seen()
        assert found["claim c-1"]["state"] == then
        assert found["claim c-1"]["reason"] == "its worker was given up by an operator: hopeless"
        assert found["worker w-1"]["state"] == "retiring", "it must not serve another claim"
        if then == "ended":
            assert (found["claim c-1"]["outcome"], found["claim c-1"]["how"]) == ("lost", "force")
        assert found["events"][-1] == '100 worker.given_up p-1 w-1 c-1 acme "by an operator: hopeless"'


async def test_an_operator_decides_nothing_while_a_recovery_is_in_progress(store: PostgresStore) -> None:
    await installed(store)
    await insert(store, "worker", id="w-1", unconfirmed_since=NOW)
    await store.recovery.begin("restored", 0)
    assert await store.recovery.confirm("w-1", "looked at it") == Skipped("recovering")
    assert await given_up(store) == Skipped("recovering")
    assert await unconfirmed(store) == ["w-1"]
