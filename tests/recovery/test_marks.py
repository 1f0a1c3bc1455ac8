"""The first beat of any replica notices lost commits, however few they are. Before that nothing is done (P7)."""

import asyncio
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.duties.actions import DeletePod
from holdfast.local.cluster import LocalCluster
from holdfast.local.keeping import LOCK_SECONDS
from holdfast.model.effect import Done, Skipped
from holdfast.model.pod import Stamp
from holdfast.ports.cluster import ClusterUnavailable
from holdfast.ports.recovery import Remembered
from holdfast.ports.store import StoreUnavailable
from holdfast.postgres.store import PostgresStore
from holdfast.recovery import marks
from holdfast.recovery.marks import LOOK_SECONDS
from holdfast.running.replica import Replica
from postgres.recorded_cluster import RecordedCluster, applier, replica_on
from postgres.store_locks import replicas
from postgres.store_steps import BARE, DIRECT, SESSION, ask, assigned, end, make_active, make_pool, make_warm, match
from waiting import Deadline

MARK = "SELECT mark FROM holdfast.hearing"
RECOVERIES = "SELECT recoveries FROM holdfast.installation"


async def restore(store: PostgresStore, mark: int) -> None:
    """Makes the database look like a copy of older files: the same server, the same timeline, an earlier mark."""
    await store.db.rows("UPDATE holdfast.hearing SET mark = $1", mark)


async def interrupt(replica: Replica) -> None:
    """Makes a beat of this replica fail."""

    async def refuse(*_: object) -> Any:
        raise StoreUnavailable("the store is not available (ConnectionRefusedError)")

    with pytest.MonkeyPatch.context() as away:
        away.setattr(replica.ports.store.fleet, "beat", refuse)
        with pytest.raises(StoreUnavailable):
            await replica.beat()


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_the_first_beat_notices_that_even_one_mark_was_lost(store: PostgresStore, lost: int, first: int) -> None:
    """Each of three replicas has seen another mark. The others may be dead, so only their marks outside are left."""

    outside = RecordedCluster()
    async with replicas(store, 3) as peers:
        beating = [replica_on(peer, outside) for peer in peers]
        for replica in beating:
            await replica.beat()
        assert await store.db.value(MARK) == 3
        await restore(store, 3 - lost)
        await beating[first].beat()
        state = await store.recovery.state()
        assert (state.recovering, state.epoch) == (True, 2)
        assert state.mark > 3, "no mark is given twice"
        assert "mark 3 of epoch 1 was seen" in (state.reason or "")


@pytest.mark.parametrize("server", ["the same server", "another server"])
async def test_a_loss_that_all_replicas_see_is_one_recovery(store: PostgresStore, server: str) -> None:
    outside = RecordedCluster()
    async with replicas(store, 3) as peers:
        beating = [replica_on(peer, outside) for peer in peers]
        for replica in beating:
            await replica.beat()
        outside.down = True  # so that each replica knows only its own mark
        for _ in range(20):
            await beating[2].beat()
        await restore(store, 0)
        if server == "another server":
            await store.db.rows("UPDATE holdfast.installation SET system_identifier = 'another'")
        for _ in range(2):
            for replica in beating:
                await replica.beat()
            assert (await store.recovery.state()).recovering
        await store.recovery.end()
        for _ in range(2):
            for replica in beating:
                await replica.beat()
        assert await store.db.value(RECOVERIES) == 1


async def test_after_a_failover_nothing_is_given_out_before_the_next_beat(store: PostgresStore) -> None:
    """The lost commits contain no beat of this replica, so only the server's timeline shows the failover."""
    pool = await make_pool(store, DIRECT)
    await make_warm(store, pool, 2)
    async with replicas(store, 1) as (peer,):
        replica = replica_on(peer, RecordedCluster())
        await replica.beat()
        assert len(await match(peer, pool, ask())) == 1
        await store.db.rows("UPDATE holdfast.installation SET timeline = timeline + 7")
        assert await match(peer, pool, ask()) == []
        assert not (await store.recovery.state()).recovering, "no beat has noticed it yet"
        await replica.beat()
        assert (await store.recovery.state()).recovering


async def test_a_replica_that_slept_does_nothing_before_it_has_compared(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica was paused while the others saw the database lose commits. It does not know that a mark is missing."""
    monkeypatch.setattr(marks, "UNHEARD_SECONDS", 0.2)

    pool = await make_pool(store, DIRECT)
    await make_warm(store, pool, 2)
    async with replicas(store, 1) as (peer,):
        replica = replica_on(peer, RecordedCluster())
        await replica.beat()
        assert len(await match(peer, pool, ask())) == 1
        time.sleep(0.3)  # blocks the whole process, as SIGSTOP does
        await asyncio.sleep(0)
        assert await match(peer, pool, ask()) == []
        await replica.beat()
        assert len(await match(peer, pool)) == 1


async def test_a_replica_that_lost_its_store_does_nothing_before_it_has_compared(store: PostgresStore) -> None:
    pool = await make_pool(store, DIRECT)
    [spare, *_] = await make_warm(store, pool, 3)
    assert await store.workers.condemn(spare, None, "not wanted", counted=False) == Done()
    outside = RecordedCluster(pool, [spare])
    async with replicas(store, 1) as (peer,):
        replica = replica_on(peer, outside)
        assert replica.waits_for is not None
        await replica.beat()
        assert replica.waits_for is None
        assert len(await match(peer, pool, ask())) == 1

        await interrupt(replica)
        assert replica.waits_for == "the store is not available (ConnectionRefusedError)"
        assert await match(peer, pool, ask()) == [], "what answers now may be another database"
        assert (await peer.recovery.state()).uncertain, "and what it does not know may exist"
        assert await applier(peer, outside)(DeletePod(spare, f"uid-{spare}", 30.0)) == Skipped("recovering")

        outside.down = True
        for _ in range(2):
            with pytest.raises(ClusterUnavailable):
                await replica.beat()
        assert replica.waits_for == "marks not yet compared: the API server is down"
        assert await match(peer, pool) == []

        outside.down = False
        await replica.beat()
        assert replica.waits_for is None
        assert not (await peer.recovery.state()).uncertain
        assert len(await match(peer, pool)) == 1


@pytest.mark.parametrize("back", ["all of it", "all but the sequence", "all, and the worker was new"])
async def test_what_was_given_out_since_the_last_mark_and_then_lost_is_noticed_by_its_stamp(
    store: PostgresStore, back: str
) -> None:
    pool = await make_pool(store, BARE)
    workers = await make_warm(store, pool, 2)
    pods = RecordedCluster(pool, workers)
    async with replicas(store, 2) as (one, other):
        await replica_on(other, pods).beat()
        survivor = replica_on(one, pods)
        await survivor.beat()
        before = await store.db.value("SELECT nextval('holdfast.fence')")  # other claims were served before
        given = await assigned(other, pool)
        await pods.protect(given.worker, f"uid-{given.worker}", Stamp(given.tenant, given.claim, given.fence))

        # The other replica dies, and the database returns to its last mark. No mark is missing.
        await interrupt(survivor)
        await store.db.rows("DELETE FROM holdfast.claim")
        await store.db.rows(
            "UPDATE holdfast.worker SET state = 'warm', claim_id = NULL, held_from = NULL, tenant = NULL, fence = NULL"
        )
        # After a crash Postgres continues after the sequence numbers that it had reserved.
        await store.db.rows("SELECT setval('holdfast.fence', $1)", before + (32 if back == "all but the sequence" else 0))
        if back == "all, and the worker was new":
            await store.db.rows("DELETE FROM holdfast.worker WHERE id = $1", given.worker)
        await survivor.beat()
        state = await store.recovery.state()
        assert (state.recovering, state.epoch) == (True, 2)
        assert f"pod {given.worker} is stamped for claim {given.claim}" in (state.reason or "")
        assert await match(one, pool, ask("b")) == []


async def test_stamps_that_the_rows_know_are_no_loss(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    workers = await make_warm(store, pool, 4)
    pods = RecordedCluster(pool, [*workers, "w-stranger"])
    held, parked, cancelled, moved = [await assigned(store, pool, ask(tenant, lease=60.0)) for tenant in "abcd"]
    for pair in (held, parked, cancelled, moved):
        await pods.protect(pair.worker, f"uid-{pair.worker}", Stamp(pair.tenant, pair.claim, pair.fence))
    await pods.protect("w-stranger", "uid-w-stranger", Stamp("x", "c-long-ago", held.fence - 1))
    for pair in (held, parked):
        await make_active(store, pool, pair)
    # Their stamps stay until `converge` clears them.
    assert await end(store, parked.claim) == Done()
    assert await end(store, cancelled.claim, "cancel") == Done()
    assert await store.claims.requeue(moved.claim, moved.fence, reason="its pod was gone") == Done()
    await make_warm(store, pool)
    assert [again.claim for again in await match(store, pool)] == [moved.claim]
    replica = replica_on(store, pods)
    for _ in range(3):
        await replica.beat()
        await interrupt(replica)
    assert await store.db.value(RECOVERIES) == 0


async def test_a_list_that_cannot_be_had_after_an_interruption_stops_no_beat(store: PostgresStore) -> None:
    pods = RecordedCluster()
    pods.blind = True
    replica = replica_on(store, pods)
    await replica.beat()
    await interrupt(replica)
    await replica.beat()
    assert replica.waits_for is None


async def test_a_mark_that_is_slow_to_read_holds_up_no_beat_but_the_first(store: PostgresStore) -> None:
    outside = RecordedCluster()
    outside.may_read.clear()
    replica = replica_on(store, outside)
    with pytest.raises(ClusterUnavailable, match="marks not yet compared: the mark was not read within"):
        await replica.beat()
    assert await store.db.value(MARK) == 0
    outside.may_read.set()
    await replica.beat()

    outside.may_read.clear()
    for _ in range(3):
        deadline = Deadline(LOOK_SECONDS + 1)
        await replica.beat()
        assert not deadline.over()
    assert await store.db.value(MARK) == 4


async def test_the_marks_lock_held_by_another_replica_stops_no_beat(store: PostgresStore, tmp_path: Path) -> None:
    highwater = tmp_path / "highwater.json"
    cluster = LocalCluster(tmp_path / "workers", tmp_path / "output", highwater, tmp_path / "servers", "i-test", b"key")
    replica = replica_on(store, cluster)
    with open(tmp_path / ".highwater.json.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another replica hangs while it holds the lock
        begun = time.monotonic()
        while time.monotonic() - begun < 2.5 * LOCK_SECONDS:
            deadline = Deadline(LOCK_SECONDS)
            await replica.beat()
            assert not deadline.over()
        assert replica.waits_for is None
        assert await store.db.value(MARK) > 3
        assert not highwater.exists(), "its lock was really held"
    async with asyncio.timeout(60):
        while (kept := await cluster.remembered()) is None or kept.mark < await store.db.value(MARK):
            await replica.beat()
            await asyncio.sleep(0.05)
    await replica.stop()
    await cluster.close()


async def test_a_replica_that_the_restored_database_does_not_know_joins_it_again(store: PostgresStore) -> None:
    replica = replica_on(store, RecordedCluster())
    await replica.beat()
    await store.db.rows("DELETE FROM holdfast.replica")
    await restore(store, 0)
    for _ in range(2):
        await replica.beat()
    [known] = await store.fleet.replicas()
    assert (known["id"], known["pid"]) == (replica.id, os.getpid())


async def test_another_installations_mark_is_ignored_and_its_database_is_left_alone(store: PostgresStore) -> None:
    outside = RecordedCluster()
    outside.mark = Remembered("i-other", 99, 9)
    replica = replica_on(store, outside)
    await store.db.rows("UPDATE holdfast.installation SET install_id = 'i-other'")
    with pytest.raises(ClusterUnavailable, match="belongs to installation i-other"):
        await replica.beat()
    assert replica.waits_for is not None
    assert "belongs to installation i-other" in replica.waits_for
    assert await store.db.value(MARK) == 0
    assert await store.fleet.replicas() == []
    await store.db.rows("UPDATE holdfast.installation SET install_id = 'i-test'")
    await replica.beat()
    assert not (await store.recovery.state()).recovering
