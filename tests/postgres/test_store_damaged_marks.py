"""A damaged stamp, or a damaged copy of the mark, stops no beat and exhausts no epoch (P6, P7)."""

from typing import Any

import pytest

from holdfast.model.claim import EPOCH_MARGIN, fence_of
from holdfast.model.pod import Stamp
from holdfast.ports.recovery import UNCOMPARED, Remembered
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, replica_on
from postgres.store_steps import JOB, ask, make_pool, make_warm, match

DAMAGED = [8191 << 40, 2**53 - 1, 2**53, 2**63, 2**90]


async def state(store: PostgresStore) -> tuple[bool, int]:
    found = await store.recovery.state()
    return found.recovering, found.epoch


@pytest.mark.parametrize("fence", [*DAMAGED, fence_of(2 + EPOCH_MARGIN, 1)])
async def test_a_stamp_that_no_database_can_have_given_stops_no_beat(store: PostgresStore, fence: int) -> None:
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    cluster = RecordedCluster(pool, [worker])
    await cluster.protect(worker, f"uid-{worker}", Stamp("acme", "c-x", fence))
    replica = replica_on(store, cluster)
    await replica.beat()
    assert await state(store) == (False, 1)
    assert await store.recovery.begin_by_fence("a pod carries it", fence) is False
    assert len(await match(store, pool, ask())) == 1


async def test_a_stamp_of_some_epochs_later_still_begins_a_recovery(store: PostgresStore) -> None:
    """The backup may be from before several recoveries."""
    pool = await make_pool(store, JOB)
    [worker, damaged] = await make_warm(store, pool, 2)
    cluster = RecordedCluster(pool, [worker, damaged])
    await cluster.protect(worker, f"uid-{worker}", Stamp("acme", "c-x", fence_of(1 + EPOCH_MARGIN, 1)))
    await cluster.protect(damaged, f"uid-{damaged}", Stamp("acme", "c-y", 2**53 - 1))
    await replica_on(store, cluster).beat()
    assert await state(store) == (True, 2 + EPOCH_MARGIN), "the damaged stamp does not hide the other one"


@pytest.mark.parametrize(
    ("mark", "epoch", "recovering"),
    [(5, 8191, True), (0, 8191, False), (UNCOMPARED, 1, False), (2**70, 1, False), (-1, -1, False), (0, 2**70, False)],
)
async def test_a_damaged_copy_of_the_mark_stops_no_beat(store: PostgresStore, mark: int, epoch: int, recovering: bool) -> None:
    cluster = RecordedCluster()
    cluster.mark = Remembered("i-test", mark, epoch)
    replica = replica_on(store, cluster)
    for _ in range(2):
        await replica.beat()
    assert replica.beat_at is not None
    assert await state(store) == (recovering, 2 if recovering else 1)


async def test_an_error_of_the_comparison_of_stamps_stops_no_beat(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_pods: Any) -> bool:
        raise ValueError("a stamp that is not understood")

    cluster = RecordedCluster()
    replica = replica_on(store, cluster)
    monkeypatch.setattr(store.recovery, "compare_stamps", fail)
    await replica.beat()
    assert replica.beat_at is not None
