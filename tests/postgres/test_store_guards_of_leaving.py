"""What a claim's end does to a worker that is not as the claim's row shows it, and what still keeps a worker alive."""

from typing import Any

import pytest

from holdfast.model.effect import Done, Stale
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_locks import queued
from postgres.store_rows import NOW, add_held, heard_ago, insert
from postgres.store_steps import JOB, SESSION, end
from postgres.store_tables import state_of


async def installed(store: PostgresStore, spec: Any = SESSION) -> str:
    await apart(store)
    pool, _ = await store.pools.put("p-1", "linux", spec, "api")
    return pool.revision


async def test_a_claims_end_leaves_workers_alone_that_hold_another_claim(store: PostgresStore) -> None:
    await installed(store)
    await add_held(store, "w-2", "c-2", fence=2)
    await insert(store, "claim", id="c-1", state="assigned", worker_id="w-9", fence=1)
    await insert(store, "worker", id="w-9")
    await insert(store, "worker", id="w-1", state="held", claim_id="c-1", tenant="acme", held_from="warm")
    async with await Changes.of(store) as changes:
        assert await end(store, "c-1") == Done()
        found = await changes.seen()
        assert not [row for row in found if row.startswith("worker")], "the rows contradict each other, so no worker is touched"
        assert found["notices"] == ["c c-1"]


@pytest.mark.parametrize("state", ["waiting", "assigned", "active"])
async def test_a_tenant_cannot_end_another_tenants_claim(store: PostgresStore, state: str) -> None:
    await installed(store)
    if state == "waiting":
        await insert(store, "claim", id="c-1")
    else:
        await add_held(store, "w-1", "c-1", state)
    async with await Changes.of(store) as changes:
        assert await end(store, "c-1", "cancel", tenant="other") == Stale()
        assert await changes.seen() == {}
        assert await end(store, "c-1", "cancel", tenant="acme") == Done()


async def test_a_waiting_claims_end_names_no_worker(store: PostgresStore) -> None:
    await installed(store)
    await insert(store, "claim", id="c-1")
    async with await Changes.of(store) as changes:
        assert await end(store, "c-1", "cancel") == Done()
        found = await changes.seen()
        assert found["events"][0].startswith("100 claim.ended p-1 c-1 acme")
        assert found["notices"] == ["c c-1"]


async def test_an_end_that_waited_for_its_worker_sees_what_was_delivered_meanwhile(store: PostgresStore) -> None:
    await installed(store, JOB)
    await add_held(store, "w-1", "c-1", "assigned")
    [outcome] = await queued(store, "UPDATE holdfast.worker SET delivered = true", end(store, "c-1"))
    assert outcome == Done()
    assert await state_of(store, "worker", "w-1") == "retiring", "it may hold this tenant's data (P1)"


@pytest.mark.parametrize("how", ["release", "death"])
@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("held_from", ["warm", "parked"])
async def test_a_worker_goes_back_to_where_it_was_only_if_nothing_was_delivered_and_it_lives(
    store: PostgresStore, how: str, delivered: bool, held_from: str
) -> None:
    revision = await installed(store)
    await add_held(store, "w-1", "c-1", "assigned")
    parked = {"parked_since": "holdfast.now()", "parked_heard": "holdfast.heard()", "park_ttl": "'7 s'"}
    values = {"held_from": f"'{held_from}'", "delivered": str(delivered), "revision": f"'{revision}'", "fence": "7"}
    values |= parked if held_from == "parked" else {}
    await store.db.rows(f"UPDATE holdfast.worker SET {', '.join(f'{k} = {v}' for k, v in values.items())}")
    async with await Changes.of(store) as changes:
        assert await end(store, "c-1", how) == Done()
        row = await store.db.row("SELECT state, tenant, park_ttl::text, ready, delivered FROM holdfast.worker")
        assert row is not None
        also = (await changes.seen())["events"][0].split()[2]
    if how == "death":
        expected = ("retiring", "acme", None, True, delivered, "worker.retiring")
    elif delivered:
        expected = ("parked", "acme", "00:01:00", False, True, "worker.parked")
    elif held_from == "parked":
        expected = ("parked", "acme", "00:00:07", True, False, "worker.returned")
    else:
        expected = ("warm", None, None, True, False, "worker.returned")
    assert (*tuple(row), also) == expected


@pytest.mark.parametrize("claim", ["waiting", "assigned", "active", "ended"])
async def test_a_free_worker_to_which_a_live_claim_points_is_not_condemned(store: PostgresStore, claim: str) -> None:
    await installed(store)
    await insert(store, "worker", id="w-1")
    await insert(store, "worker", id="w-2")
    ended = {"outcome": "lost"} if claim == "ended" else {}
    await insert(store, "claim", id="c-1", state=claim, worker_id="w-1", fence=7, max_heard=NOW, **ended)
    live = claim in ("assigned", "active")
    assert await store.workers.condemn("w-1", None, "x", counted=False, dead=True) == (Stale() if live else Done())
    assert await store.workers.condemn("w-2", None, "x", counted=False) == Done()


@pytest.mark.parametrize("state", ["warm", "parked", "spawning", "retiring", "gone"])
async def test_a_suspect_hand_over_marks_its_worker_only_if_it_is_free_again(store: PostgresStore, state: str) -> None:
    await installed(store, JOB)
    await add_held(store, "w-1", "c-1", "assigned", progress_heard=NOW)
    if state in ("warm", "parked"):
        parked = ", parked_since = holdfast.now()" if state == "parked" else ""
        await store.db.rows(f"UPDATE holdfast.worker SET held_from = '{state}'{parked}")
    else:
        # The worker no longer has this claim, so the requeue finds it in another state.
        await store.db.rows(f"UPDATE holdfast.worker SET state = '{state}', claim_id = NULL")
    await insert(store, "worker", id="w-2")
    async with await Changes.of(store) as changes:
        assert await store.claims.requeue("c-1", 7, reason="stalled", keep_worker=True, suspect=True) == Done()
        found = await changes.seen()
        assert "worker w-2" not in found
        free = state in ("warm", "parked")
        assert ("worker w-1" in found) == free
        assert not free or (found["worker w-1"]["suspect_since"], found["worker w-1"]["version"]) == (100.0, 3)


@pytest.mark.parametrize("idle", [None, 5.0])
@pytest.mark.parametrize("unconfirmed", ["w-1", "w-2"])
async def test_a_stalled_hand_over_of_an_unconfirmed_worker_shows_why_it_waits(
    store: PostgresStore, idle: float | None, unconfirmed: str
) -> None:
    await installed(store, JOB)
    await add_held(store, "w-1", "c-1", "assigned", progress_heard=heard_ago(9))
    await add_held(store, "w-2", "c-2", "assigned", progress_heard=heard_ago(9), fence=8)
    await store.db.rows("UPDATE holdfast.worker SET unconfirmed_since = holdfast.now() WHERE id = $1", unconfirmed)
    async with await Changes.of(store) as changes:
        kept = idle is not None and unconfirmed == "w-1"
        assert await store.claims.requeue("c-1", 7, reason="stalled", idle=idle) == (Stale() if kept else Done())
        found = await changes.seen()
        assert "claim c-2" not in found
        if kept:
            assert found == {
                "claim c-1": {
                    "reason": "its worker has not reported since the database lost commits and may have begun;"
                    " `holdfast recover` shows what an operator can do"
                }
            }
        else:
            assert found["claim c-1"]["state"] == "waiting"


@pytest.mark.parametrize(("seconds", "expired"), [(9.999, False), (10.0, False), (10.001, True)])
async def test_a_beat_shows_a_term_as_expired_after_its_last_moment(store: PostgresStore, seconds: float, expired: bool) -> None:
    clock = await apart(store)
    await store.fleet.take_term("scale", "r-1", 10.0, 99.0)
    await clock.jump(seconds)
    beat = await store.fleet.beat("r-2", 1.0, 10.0, [])
    [scale] = [term for term in beat.terms if term.duty == "scale"]
    assert (scale.expired, scale.idle) == (expired, seconds)


@pytest.mark.parametrize(
    ("renewed", "progress", "expired", "idle"), [(0, None, False, 0.0), (-0.001, 4, True, 4.0), (3, None, False, 3.0)]
)
async def test_a_beat_shows_a_term_that_was_renewed_in_the_future_as_expired(
    store: PostgresStore, renewed: float, progress: int | None, expired: bool, idle: float
) -> None:
    await apart(store)
    await store.fleet.take_term("scale", "r-1", 10.0, 99.0)
    times = f"renewed_at = holdfast.now() - interval '{renewed} s', progress_at = "
    times += "NULL" if progress is None else f"holdfast.now() - interval '{progress} s'"
    await store.db.rows(f"UPDATE holdfast.term SET {times} WHERE duty = 'scale'")
    beat = await store.fleet.beat("r-2", 1.0, 10.0, [])
    [scale] = [term for term in beat.terms if term.duty == "scale"]
    assert (scale.expired, scale.idle) == (expired, idle)


async def test_giving_up_a_worker_that_was_confirmed_meanwhile_changes_nothing(store: PostgresStore) -> None:
    await installed(store)
    await insert(store, "worker", id="w-1", unconfirmed_since=NOW)
    confirmed = "UPDATE holdfast.worker SET unconfirmed_since = NULL"
    [outcome] = await queued(store, confirmed, store.recovery.give_up("w-1", "hopeless"))
    assert outcome == Stale()
    assert await state_of(store, "worker", "w-1") == "warm"


async def test_giving_up_a_worker_that_took_another_claim_meanwhile_changes_nothing(store: PostgresStore) -> None:
    await installed(store)
    await add_held(store, "w-1", "c-1", "assigned")
    await insert(store, "claim", id="c-2", state="assigned", worker_id="w-9", fence=8)
    await store.db.rows("UPDATE holdfast.worker SET unconfirmed_since = holdfast.now()")
    meanwhile = (
        "WITH c AS (UPDATE holdfast.claim SET reason = 'x' WHERE id = 'c-1')"
        " UPDATE holdfast.worker SET claim_id = 'c-2' WHERE id = 'w-1'"
    )
    async with await Changes.of(store) as changes:
        [outcome] = await queued(store, meanwhile, store.recovery.give_up("w-1", "hopeless"))
        assert outcome == Stale()
        assert (await changes.seen()).keys() == {"claim c-1", "worker w-1"}
