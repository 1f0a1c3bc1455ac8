"""Protection: a late clear never takes it from a new claim, and a pool that requires it refuses without it (P3)."""

import asyncio
from typing import Literal

import msgspec
import pytest

from holdfast.duties.actions import Clear
from holdfast.engine.handover import HandOvers
from holdfast.engine.hints import due_workers
from holdfast.engine.metrics import Metrics
from holdfast.model.claim import Claim
from holdfast.model.outcome import Done, Stale
from holdfast.model.pod import Pod, Stamp
from holdfast.model.pool import Pool, PoolSpec, ProtectionSpec
from holdfast.postgres.store import PostgresStore
from store.makes import (
    BARE,
    JOB,
    PATIENCE,
    SESSION,
    OnStore,
    ask,
    assigned,
    broken,
    end,
    lone_active,
    make_pool,
    make_warm,
    match,
    state_of,
    word,
)
from store.shelf import Shelf, applier


async def left_over(store: PostgresStore, pool: Pool, shelf: Shelf) -> Clear:
    """A claim was cancelled after its worker was protected: a plan to clear it, as `converge` makes it."""
    pair = await assigned(store, pool)
    assert pair.uid is not None
    await shelf.protect(pair.worker, pair.uid, Stamp(pair.tenant, pair.claim, pair.fence))
    assert await end(store, pair.claim, "cancel") == Done()
    row, pod = await store.workers.get(pair.worker), await shelf.read(pair.worker)
    assert row is not None
    assert row.state == "warm"
    assert pod is not None
    return Clear(row.id, row.version, pod.uid, pod.version)


@pytest.mark.parametrize("moment", ["before the guard", "between guard and write", "after the write"])
def test_a_late_clear_never_takes_a_new_claims_protection(on_store: OnStore, moment: str) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, BARE)
        [worker] = await make_warm(store, pool)
        shelf = Shelf(pool, [worker])
        apply = applier(store, shelf)
        hand_overs = HandOvers(store, shelf, Metrics())
        plan = await left_over(store, pool, shelf)

        async def claim() -> int:
            pair = await assigned(store, pool)
            assert pair.worker == worker
            assert isinstance(await hand_overs.hand_over(pool, pair), Claim)
            assert await state_of(store, "claim", pair.claim) == "active"
            return pair.fence

        if moment == "before the guard":
            fence = await claim()
            assert await apply(plan) == Stale()
        elif moment == "between guard and write":
            shelf.may_clear.clear()
            clearing = asyncio.create_task(apply(plan))
            await shelf.clearing.wait()
            fence = await claim()
            shelf.may_clear.set()
            assert await clearing == Stale()
        else:
            assert await apply(plan) == Done()
            assert not shelf.kept[worker].protected
            fence = await claim()
        pod = shelf.kept[worker]
        assert pod.protected
        assert pod.stamp is not None
        assert pod.stamp.fence == fence

    on_store(story)


def test_clears_racing_claims_leave_every_holder_protected(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, BARE)
        workers = await make_warm(store, pool, 15)
        shelf = Shelf(pool, workers)
        apply = applier(store, shelf)
        hand_overs = HandOvers(store, shelf, Metrics())
        for turn in range(15):
            plan = await left_over(store, pool, shelf)

            async def claim() -> None:
                # A worker whose row is being written is passed over; the duty `match` looks again.
                new, pairs = ask(), []
                async with asyncio.timeout(PATIENCE):
                    while not pairs:
                        pairs = await match(store, pool, new)
                assert isinstance(await hand_overs.hand_over(pool, pairs[0]), Claim)

            clear = apply(plan)
            await asyncio.gather(*([clear, claim()] if turn % 2 else [claim(), clear]))
        held = await store.db.rows("SELECT worker_id, fence FROM holdfast.claim WHERE state = 'active'")
        assert len(held) == 15
        for row in held:
            stamp = shelf.kept[row["worker_id"]].stamp
            assert stamp is not None
            assert stamp.fence == row["fence"]
        assert await broken(store) == []

    on_store(story)


def test_only_a_free_worker_that_is_as_seen_is_unprotected(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        pair = await lone_active(store, SESSION, ask("a", lease=60.0))

        async def version() -> int:
            row = await store.workers.get(pair.worker)
            assert row is not None
            return row.version

        assert await store.workers.unprotect(pair.worker, await version()) == Stale(), "held"
        assert await end(store, pair.claim) == Done()
        seen = await version()
        await store.workers.report(word(pair.worker, reset_fence=pair.fence))
        assert await store.workers.unprotect(pair.worker, seen) == Stale(), "changed since"
        await store.recovery.begin("restored", 0)
        assert await store.workers.unprotect(pair.worker, await version()) == Stale(), "its stamp may be all that is left to know"
        await store.recovery.end()
        assert await store.workers.unprotect(pair.worker, await version()) == Done(), "parked is free"

    on_store(story)


def test_a_free_worker_that_is_protected_is_looked_at_soon(on_store: OnStore) -> None:
    """The look right after its claim's end may come too early to clear it."""

    async def story(store: PostgresStore) -> None:
        pair = await lone_active(store, SESSION, ask("a", lease=60.0))
        assert await due_workers(store) == []
        assert await end(store, pair.claim) == Done()
        assert await due_workers(store) == [pair.worker]
        row = await store.workers.get(pair.worker)
        assert row is not None
        assert await store.workers.unprotect(pair.worker, row.version) == Done()
        assert await due_workers(store) == []

    on_store(story)


def test_a_pool_that_requires_protection_refuses_a_claim_without_it(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        spec = msgspec.structs.replace(JOB, protection=ProtectionSpec(required=True))
        pool = await make_pool(store, spec)
        [worker] = await make_warm(store, pool)
        shelf = Shelf(pool, [worker])
        shelf.down = True
        pair = await assigned(store, pool, ask(deadline=600.0))
        await HandOvers(store, shelf, Metrics()).hand_over(pool, pair)
        [claim] = await store.claims.get([pair.claim])
        assert (claim.state, claim.outcome) == ("ended", "refused"), "not left assigned until its deadline"
        assert await state_of(store, "worker", worker) == "warm", "nothing was delivered"
        assert [again.worker for again in await match(store, pool, ask("b"))] == [worker]

    on_store(story)


def test_a_pool_that_does_not_require_it_says_that_protection_is_missing(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, BARE)
        [worker] = await make_warm(store, pool)
        shelf = Shelf(pool, [worker])
        shelf.down = True
        pair = await assigned(store, pool)
        await HandOvers(store, shelf, Metrics()).hand_over(pool, pair)
        [claim] = await store.claims.get([pair.claim])
        assert (claim.state, claim.protected) == ("active", False)

    on_store(story)


def test_what_a_webhook_takes_off_again_is_not_called_protected(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, BARE)
        [worker] = await make_warm(store, pool)
        shelf = Stripping(pool, [worker])
        pair = await assigned(store, pool)
        await HandOvers(store, shelf, Metrics()).hand_over(pool, pair)
        [claim] = await store.claims.get([pair.claim])
        assert (claim.state, claim.protected) == ("active", False)
        assert not await noted(store, worker), "so that somebody sees to it soon"

    on_store(story)


class Stripping(Shelf):
    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        return self._write(name, stamp, False)


async def noted(store: PostgresStore, worker: str) -> bool:
    """What our own row says of the pod."""
    return bool(await store.db.value("SELECT protected FROM holdfast.worker WHERE id = $1", worker))


@pytest.mark.parametrize("seen", [True, False])
def test_only_a_protection_that_was_seen_is_noted_of_the_pod(on_store: OnStore, seen: bool) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, BARE if seen else with_mode("always"))
        [worker] = await make_warm(store, pool)
        shelf = Shelf(pool, [worker])
        shelf.down = not seen  # in `always` it is given out blindly: it has been protected since its birth, most likely
        [pair] = (await store.claims.match(pool.id, [ask()], 1, direct=False)).pairs
        assert not await noted(store, worker)
        await HandOvers(store, shelf, Metrics()).hand_over(pool, pair)
        assert await state_of(store, "claim", pair.claim) == "active"
        assert await noted(store, worker) is seen

    on_store(story)


def test_a_worker_whose_claim_ended_during_its_hand_over_is_looked_at_soon(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, BARE)
        [worker] = await make_warm(store, pool)
        shelf, hinted = Shelf(pool, [worker]), list[set[str]]()
        hand_overs = HandOvers(store, shelf, Metrics())
        hand_overs.hint = hinted.append
        pair = await assigned(store, pool)
        shelf.on_protect = lambda: end(store, pair.claim, "cancel")
        await hand_overs.hand_over(pool, pair)
        assert hinted == [{worker}]

    on_store(story)


def with_mode(mode: Literal["always", "off"]) -> PoolSpec:
    return msgspec.structs.replace(BARE, protection=ProtectionSpec(mode=mode))


@pytest.mark.parametrize("mode", ["always", "off"])
def test_where_others_may_end_pods_no_claim_is_active_before_its_pod_was_looked_at(
    on_store: OnStore, mode: Literal["always", "off"]
) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, with_mode(mode))
        leaving, staying = await make_warm(store, pool, 2)
        shelf = Shelf(pool, [leaving, staying])
        shelf.kept[leaving] = msgspec.structs.replace(shelf.kept[leaving], terminating=True)
        hand_overs, new = HandOvers(store, shelf, Metrics()), ask()
        batch = await store.claims.match(pool.id, [new], 1, direct=hand_overs.direct)
        seen = set()
        while batch.pairs:
            [pair] = batch.pairs
            assert not pair.active
            seen.add(pair.worker)
            await hand_overs.hand_over(pool, pair)
            if pair.worker == staying:
                break
            assert await state_of(store, "claim", new.id) == "waiting", "not given a worker that leaves"
            batch = await store.claims.match(pool.id, (), 1, direct=hand_overs.direct)
        assert staying in seen
        assert await state_of(store, "claim", new.id) == "active"

    on_store(story)


def test_a_worker_older_than_the_mode_always_is_protected_before_its_holder_hears_of_it(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, with_mode("always"))
        [worker] = await make_warm(store, pool)
        shelf = Shelf(pool, [worker])
        [pair] = (await store.claims.match(pool.id, [ask()], 1, direct=False)).pairs
        await HandOvers(store, shelf, Metrics()).hand_over(pool, pair)
        assert shelf.kept[worker].protected
        [claim] = await store.claims.get([pair.claim])
        assert (claim.state, claim.protected) == ("active", True)

    on_store(story)


def test_a_pool_without_protection_does_not_speak_of_it(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, with_mode("off"))
        [worker] = await make_warm(store, pool)
        [pair] = (await store.claims.match(pool.id, [ask()], 1, direct=False)).pairs
        await HandOvers(store, Shelf(pool, [worker]), Metrics()).hand_over(pool, pair)
        said = await store.db.rows("SELECT kind, reason FROM holdfast.event WHERE claim_id = $1", pair.claim)
        assert [row["reason"] for row in said if row["kind"] == "claim.active"] == [""]
        assert "claim.unprotected" not in {row["kind"] for row in said}

    on_store(story)


@pytest.mark.parametrize("moment", ["cancelled while it is protected", "refused after an answer that was lost"])
def test_a_worker_to_which_nothing_was_delivered_is_warm_again_without_a_stamp(on_store: OnStore, moment: str) -> None:
    """At once, by the one whose hand-over failed, not by a later pass."""

    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, msgspec.structs.replace(JOB, protection=ProtectionSpec(required=True)))
        [worker] = await make_warm(store, pool)
        shelf = Shelf(pool, [worker])
        pair = await assigned(store, pool)
        if moment.startswith("cancelled"):
            shelf.on_protect = lambda: end(store, pair.claim, "cancel")
        else:
            shelf.answers_lost = True
        await HandOvers(store, shelf, Metrics()).hand_over(pool, pair)
        pod = shelf.kept[worker]
        assert (pod.stamp, pod.protected) == (None, False)
        assert int(pod.version) > 2, "it was stamped in between"
        assert await state_of(store, "worker", worker) == "warm"
        assert await broken(store) == []

    on_store(story)


def test_a_hand_over_done_twice_takes_nothing_off(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        pool = await make_pool(store, JOB)
        [worker] = await make_warm(store, pool)
        shelf = Shelf(pool, [worker])
        pair = await assigned(store, pool)
        for _ in range(2):
            await HandOvers(store, shelf, Metrics()).hand_over(pool, pair)
        assert shelf.kept[worker].protected

    on_store(story)
