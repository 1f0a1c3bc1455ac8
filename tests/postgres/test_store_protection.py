"""A late clear never removes the protection of a new claim, and a pool that requires protection refuses without it (P3)."""

import asyncio
from typing import Literal

import msgspec
import pytest

from holdfast.claimpath.signals import Signals
from holdfast.duties.actions import Clear
from holdfast.model.effect import Done, Stale
from holdfast.model.pod import Pod, Stamp
from holdfast.model.pool import Pool, PoolSpec, ProtectionSpec
from holdfast.postgres.store import PostgresStore
from holdfast.running.looks import due_workers
from postgres.recorded_cluster import RecordedCluster, applier, claim_path
from postgres.store_locks import PATIENCE
from postgres.store_steps import BARE, JOB, SESSION, agent_report, ask, assigned, end, lone_active, make_pool, make_warm, match
from postgres.store_tables import broken, state_of
from waiting import becomes


async def left_over(store: PostgresStore, pool: Pool, cluster: RecordedCluster) -> Clear:
    """Returns the plan of `converge` to clear a worker whose claim was cancelled after the worker was protected."""
    pair = await assigned(store, pool)
    assert pair.uid is not None
    await cluster.protect(pair.worker, pair.uid, Stamp(pair.tenant, pair.claim, pair.fence))
    assert await end(store, pair.claim, "cancel") == Done()
    row, pod = await store.workers.get(pair.worker), await cluster.read(pair.worker)
    assert row is not None
    assert row.state == "warm"
    assert pod is not None
    return Clear(row.id, row.version, pod.uid, pod.version)


@pytest.mark.parametrize("moment", ["before the guard", "between guard and write", "after the write"])
async def test_a_late_clear_never_takes_a_new_claims_protection(store: PostgresStore, moment: str) -> None:
    pool = await make_pool(store, BARE)
    [worker] = await make_warm(store, pool)
    cluster = RecordedCluster(pool, [worker])
    apply = applier(store, cluster)
    hand_overs = claim_path(store, cluster)
    plan = await left_over(store, pool, cluster)

    async def claim() -> int:
        pair = await assigned(store, pool)
        assert pair.worker == worker
        await hand_overs.start_hand_over(pool, pair)
        assert await state_of(store, "claim", pair.claim) == "active"
        return pair.fence

    if moment == "before the guard":
        fence = await claim()
        assert await apply(plan) == Stale()
    elif moment == "between guard and write":
        cluster.may_clear.clear()
        clearing = asyncio.create_task(apply(plan))
        await cluster.clearing.wait()
        fence = await claim()
        cluster.may_clear.set()
        assert await clearing == Stale()
    else:
        assert await apply(plan) == Done()
        assert not cluster.kept[worker].protected
        fence = await claim()
    pod = cluster.kept[worker]
    assert pod.protected
    assert pod.stamp is not None
    assert pod.stamp.fence == fence


async def test_clears_racing_claims_leave_every_holder_protected(store: PostgresStore) -> None:
    pool = await make_pool(store, BARE)
    workers = await make_warm(store, pool, 15)
    cluster = RecordedCluster(pool, workers)
    apply = applier(store, cluster)
    hand_overs = claim_path(store, cluster)
    for turn in range(15):
        plan = await left_over(store, pool, cluster)

        async def claim() -> None:
            # A worker whose row is locked is skipped. The duty `match` tries again.
            new, pairs = ask(), []
            async with asyncio.timeout(PATIENCE):
                while not pairs:
                    pairs = await match(store, pool, new)
            await hand_overs.start_hand_over(pool, pairs[0])
            assert await state_of(store, "claim", new.id) == "active"

        clear = apply(plan)
        await asyncio.gather(*([clear, claim()] if turn % 2 else [claim(), clear]))
    held = await store.db.rows("SELECT worker_id, fence FROM holdfast.claim WHERE state = 'active'")
    assert len(held) == 15
    for row in held:
        stamp = cluster.kept[row["worker_id"]].stamp
        assert stamp is not None
        assert stamp.fence == row["fence"]
    assert await broken(store) == []


async def test_only_a_free_worker_that_is_as_seen_is_unprotected(store: PostgresStore) -> None:
    pair = await lone_active(store, SESSION, ask("a", lease=60.0))

    async def version() -> int:
        row = await store.workers.get(pair.worker)
        assert row is not None
        return row.version

    assert await store.workers.unprotect(pair.worker, await version()) == Stale(), "held"
    assert await end(store, pair.claim) == Done()
    seen = await version()
    await store.workers.report(agent_report(pair.worker, served_fence=pair.fence))
    assert await store.workers.unprotect(pair.worker, seen) == Stale(), "changed since"
    await store.recovery.begin("restored", 0)
    assert await store.workers.unprotect(pair.worker, await version()) == Stale(), "its stamp may be all that is left to know"
    await store.recovery.end()
    assert await store.workers.unprotect(pair.worker, await version()) == Done(), "parked is free"


async def test_a_free_worker_that_is_protected_is_looked_at_soon(store: PostgresStore) -> None:
    """The check right after the end of its claim may come too early to clear it."""

    pair = await lone_active(store, SESSION, ask("a", lease=60.0))
    assert await due_workers(store) == []
    assert await end(store, pair.claim) == Done()
    assert await due_workers(store) == [pair.worker]
    row = await store.workers.get(pair.worker)
    assert row is not None
    assert await store.workers.unprotect(pair.worker, row.version) == Done()
    assert await due_workers(store) == []


async def test_a_pool_that_requires_protection_refuses_a_claim_without_it(store: PostgresStore) -> None:
    spec = msgspec.structs.replace(JOB, protection=ProtectionSpec(required=True))
    pool = await make_pool(store, spec)
    [worker] = await make_warm(store, pool)
    cluster = RecordedCluster(pool, [worker])
    cluster.down = True
    pair = await assigned(store, pool, ask(deadline=600.0))
    await claim_path(store, cluster).start_hand_over(pool, pair)
    [claim] = await store.claims.get([pair.claim])
    assert (claim.state, claim.outcome) == ("ended", "refused"), "not left assigned until its deadline"
    assert await state_of(store, "worker", worker) == "warm", "nothing was delivered"
    assert [again.worker for again in await match(store, pool, ask("b"))] == [worker]


async def test_a_pool_that_does_not_require_protection_shows_that_it_is_missing(store: PostgresStore) -> None:
    pool = await make_pool(store, BARE)
    [worker] = await make_warm(store, pool)
    cluster = RecordedCluster(pool, [worker])
    cluster.down = True
    pair = await assigned(store, pool)
    await claim_path(store, cluster).start_hand_over(pool, pair)
    [claim] = await store.claims.get([pair.claim])
    assert (claim.state, claim.protected) == ("active", False)


async def test_what_a_webhook_takes_off_again_is_not_called_protected(store: PostgresStore) -> None:
    pool = await make_pool(store, BARE)
    [worker] = await make_warm(store, pool)
    cluster = Stripping(pool, [worker])
    pair = await assigned(store, pool)
    await claim_path(store, cluster).start_hand_over(pool, pair)
    [claim] = await store.claims.get([pair.claim])
    assert (claim.state, claim.protected) == ("active", False)
    assert not await noted(store, worker), "so that converge looks at it soon"


class Stripping(RecordedCluster):
    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        return self._write(name, stamp, False)


async def noted(store: PostgresStore, worker: str) -> bool:
    """Returns whether the row shows the pod as protected."""
    return bool(await store.db.value("SELECT protected FROM holdfast.worker WHERE id = $1", worker))


@pytest.mark.parametrize("seen", [True, False])
async def test_only_a_protection_that_was_seen_is_noted_of_the_pod(store: PostgresStore, seen: bool) -> None:
    pool = await make_pool(store, BARE if seen else with_mode("always"))
    [worker] = await make_warm(store, pool)
    cluster = RecordedCluster(pool, [worker])
    # in the mode `always` it is given out without a check, because it is most likely protected since its start
    cluster.down = not seen
    [pair] = (await store.claims.match(pool.id, [ask()], 1)).pairs
    assert not await noted(store, worker)
    await claim_path(store, cluster).start_hand_over(pool, pair)
    assert await state_of(store, "claim", pair.claim) == "active"
    assert await noted(store, worker) is seen


async def test_a_worker_whose_claim_ended_during_its_hand_over_is_looked_at_soon(store: PostgresStore) -> None:
    pool = await make_pool(store, BARE)
    [worker] = await make_warm(store, pool)
    cluster, signals, signalled = RecordedCluster(pool, [worker]), Signals(), list[set[str]]()
    signals.workers.subscribe(signalled.append)
    hand_overs = claim_path(store, cluster, signals=signals)
    pair = await assigned(store, pool)
    cluster.on_protect = lambda: end(store, pair.claim, "cancel")
    await hand_overs.start_hand_over(pool, pair)
    assert signalled == [{worker}]


def with_mode(mode: Literal["always", "off"]) -> PoolSpec:
    return msgspec.structs.replace(BARE, protection=ProtectionSpec(mode=mode))


@pytest.mark.parametrize("mode", ["always", "off"])
async def test_no_claim_is_active_before_its_pod_was_looked_at(store: PostgresStore, mode: Literal["always", "off"]) -> None:
    pool = await make_pool(store, with_mode(mode))
    leaving, staying = await make_warm(store, pool, 2)
    cluster = RecordedCluster(pool, [leaving, staying])
    cluster.kept[leaving] = msgspec.structs.replace(cluster.kept[leaving], terminating=True)
    hand_overs, new = claim_path(store, cluster), ask()
    [pair] = (await store.claims.match(pool.id, [new], 1)).pairs
    assert pair.worker == leaving, "the worker that became free first is given out first"
    await hand_overs.start_hand_over(pool, pair)

    async def is_active() -> bool:
        return await state_of(store, "claim", new.id) == "active"

    await becomes(is_active)  # the claim path pairs and hands over the claim again by itself
    [claim] = await store.claims.get([new.id])
    assert claim.worker == staying


async def test_a_worker_older_than_the_mode_always_is_protected_before_its_holder_learns_of_it(store: PostgresStore) -> None:
    pool = await make_pool(store, with_mode("always"))
    [worker] = await make_warm(store, pool)
    cluster = RecordedCluster(pool, [worker])
    [pair] = (await store.claims.match(pool.id, [ask()], 1)).pairs
    await claim_path(store, cluster).start_hand_over(pool, pair)
    assert cluster.kept[worker].protected
    [claim] = await store.claims.get([pair.claim])
    assert (claim.state, claim.protected) == ("active", True)


async def test_a_pool_without_protection_does_not_mention_it(store: PostgresStore) -> None:
    pool = await make_pool(store, with_mode("off"))
    [worker] = await make_warm(store, pool)
    [pair] = (await store.claims.match(pool.id, [ask()], 1)).pairs
    await claim_path(store, RecordedCluster(pool, [worker])).start_hand_over(pool, pair)
    events = await store.db.rows("SELECT kind, reason FROM holdfast.event WHERE claim_id = $1", pair.claim)
    assert [row["reason"] for row in events if row["kind"] == "claim.active"] == [""]
    assert "claim.unprotected" not in {row["kind"] for row in events}


@pytest.mark.parametrize("moment", ["cancelled while it is protected", "refused after an answer that was lost"])
async def test_a_worker_to_which_nothing_was_delivered_is_warm_again_without_a_stamp(store: PostgresStore, moment: str) -> None:
    """The replica whose hand-over failed clears it at once, without waiting for a later pass."""

    pool = await make_pool(store, msgspec.structs.replace(JOB, protection=ProtectionSpec(required=True)))
    [worker] = await make_warm(store, pool)
    cluster = RecordedCluster(pool, [worker])
    pair = await assigned(store, pool)
    if moment.startswith("cancelled"):
        cluster.on_protect = lambda: end(store, pair.claim, "cancel")
    else:
        cluster.answers_lost = True
    await claim_path(store, cluster).start_hand_over(pool, pair)
    pod = cluster.kept[worker]
    assert (pod.stamp, pod.protected) == (None, False)
    assert int(pod.version) > 2, "it was stamped in between"
    assert await state_of(store, "worker", worker) == "warm"
    assert await broken(store) == []


async def test_a_hand_over_done_twice_takes_nothing_off(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    cluster = RecordedCluster(pool, [worker])
    pair = await assigned(store, pool)
    for _ in range(2):
        await claim_path(store, cluster).start_hand_over(pool, pair)
    assert cluster.kept[worker].protected
