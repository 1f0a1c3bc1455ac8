"""A replica compares marks before its first beat and after every interruption, waits at most half a second, and counts errors."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
import structlog.testing

from holdfast.model.pod import Pod
from holdfast.ports.cluster import ClusterUnavailable
from holdfast.ports.recovery import UNCOMPARED, Recovery, Remembered, Seen
from holdfast.ports.store import Beat
from holdfast.recovery import marks
from holdfast.recovery.marks import Marks
from postgres.recorded_cluster import RecordedCluster
from virtual_time import on_virtual_time, passed, settle


class RecordedRecovery:
    """Records what the marks ask of the store."""

    def __init__(self) -> None:
        self.install = "i-test"
        self.saws: list[tuple[Any, ...]] = []
        self.compared = 0

    def saw(self, *about: Any) -> None:
        self.saws.append(about)

    async def state(self) -> Recovery:
        return Recovery(self.install, 1, 0, False, None, 0.0, 0)

    async def compare_stamps(self, pods: Iterable[Pod]) -> bool:
        self.compared += 1
        return False


class Store:
    def __init__(self) -> None:
        self.recovery = RecordedRecovery()


class Hanging(RecordedCluster):
    """Counts reads and writes of the mark. While `hangs` is set, no call returns."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.reads = self.writes = 0

    async def remembered(self) -> Remembered | None:
        self.reads += 1
        await self._maybe_hang()
        return await super().remembered()

    async def remember(self, mark: Remembered) -> None:
        self.writes += 1
        await self._maybe_hang()
        await super().remember(mark)

    async def pods(self) -> list[Pod]:
        await self._maybe_hang()
        return await super().pods()

    async def _maybe_hang(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()


class Replica:
    def __init__(self) -> None:
        self.cluster, self.store, self.errors = Hanging(), Store(), 0
        self.marks = Marks(self.store, self.cluster, self._count)  # type: ignore[arg-type]

    def _count(self) -> None:
        self.errors += 1

    async def beat(self, mark: int, *, recovering: bool = False, epoch: int = 1) -> None:
        await self.marks.look()
        self.marks.stored(Beat(Seen(mark, epoch), recovering, []))
        await settle()


def test_the_numbers_of_the_marks_are_the_documented_ones() -> None:
    assert (marks.LIST_SECONDS, marks.UNHEARD_SECONDS, marks.LOOK_SECONDS) == (5.0, 5.0, 0.5)


def test_nothing_is_done_before_the_first_beat_and_then_for_five_seconds_after_each() -> None:
    async def main() -> None:
        replica = Replica()
        assert replica.store.recovery.saws == [(UNCOMPARED,)]
        await replica.beat(3)
        assert replica.store.recovery.saws == [(UNCOMPARED,), (3, marks.UNHEARD_SECONDS)]
        assert replica.marks.seen == Seen(3, 1)

    on_virtual_time(main())


def test_what_a_replica_has_seen_never_falls() -> None:
    async def main() -> None:
        replica = Replica()
        await replica.beat(7, epoch=2)
        await replica.beat(3, epoch=1)
        assert replica.marks.seen == Seen(7, 2)
        assert replica.store.recovery.saws[-1] == (7, marks.UNHEARD_SECONDS)

    on_virtual_time(main())


def test_the_mark_outside_is_read_before_each_beat_and_written_after_it() -> None:
    async def main() -> None:
        replica = Replica()
        for mark in (3, 4, 5):
            await replica.beat(mark)
            assert replica.cluster.mark == Remembered("i-test", mark, 1)
        assert (replica.cluster.reads, replica.cluster.writes) == (3, 3)
        replica.cluster.mark = Remembered("i-test", 9, 2)
        await replica.marks.look()
        assert replica.marks.seen == Seen(9, 2), "another replica has seen more"

    on_virtual_time(main())


@pytest.mark.parametrize("kept", [None, Remembered("i-other", 99, 9)])
def test_a_mark_that_is_missing_or_foreign_changes_nothing(kept: Remembered | None) -> None:
    async def main() -> None:
        replica = Replica()
        replica.cluster.mark = kept
        await replica.marks.look()
        assert replica.marks.seen == Seen()

    on_virtual_time(main())


def test_stamps_are_compared_at_the_start_and_after_an_interruption_and_not_before_each_beat() -> None:
    async def main() -> None:
        replica = Replica()
        for _ in range(3):
            await replica.beat(3)
        assert replica.store.recovery.compared == 1
        replica.marks.interrupted()
        replica.marks.interrupted()
        assert [saw for saw in replica.store.recovery.saws if saw == (UNCOMPARED,)] == [(UNCOMPARED,)] * 2
        await replica.beat(4)
        assert replica.store.recovery.compared == 2

    on_virtual_time(main())


@pytest.mark.parametrize(("seconds", "compared"), [(5.0, 1), (5.1, 2)])
def test_a_replica_that_stored_no_beat_for_more_than_five_seconds_was_interrupted(seconds: float, compared: int) -> None:
    async def main() -> None:
        replica = Replica()
        await replica.beat(3)
        await asyncio.sleep(seconds)
        await replica.beat(4)
        assert replica.store.recovery.compared == compared

    on_virtual_time(main())


def test_a_read_from_before_the_interruption_does_not_count() -> None:
    async def main() -> None:
        replica = Replica()
        await replica.beat(3)
        replica.cluster.hangs = True
        await replica.marks.look()
        reads = replica.cluster.reads
        replica.marks.interrupted()
        replica.cluster.hangs = False
        await replica.marks.look()
        assert replica.cluster.reads == reads + 1

    on_virtual_time(main())


def test_a_read_that_hangs_delays_a_beat_by_half_a_second_and_is_not_started_twice() -> None:
    async def main() -> None:
        replica = Replica()
        await replica.beat(3)
        replica.cluster.hangs = True
        for turn in (1, 2):
            await replica.beat(3)
            assert passed() == turn * marks.LOOK_SECONDS
        assert (replica.cluster.reads, replica.cluster.writes) == (2, 2), "one that returned, and one that hangs"

    on_virtual_time(main())


def test_without_a_comparison_a_read_that_hangs_stops_the_beat() -> None:
    async def main() -> None:
        replica = Replica()
        replica.cluster.hangs = True
        with pytest.raises(ClusterUnavailable, match=r"marks not yet compared: the mark was not read within 0\.5 s"):
            await replica.marks.look()
        assert (passed(), replica.store.recovery.compared) == (marks.LOOK_SECONDS, 0)

    on_virtual_time(main())


def test_a_mark_that_cannot_be_read_stops_only_a_beat_without_comparison_and_is_counted() -> None:
    async def main() -> None:
        replica = Replica()
        replica.cluster.down = True
        with pytest.raises(ClusterUnavailable, match="marks not yet compared: the API server is down"):
            await replica.marks.look()
        assert replica.errors == 1
        replica.cluster.down = False
        await replica.beat(3)
        replica.cluster.down = True
        await replica.beat(4)
        assert replica.errors == 3, "one for the read and one for the write"

    on_virtual_time(main())


def test_a_database_of_another_installation_is_not_compared() -> None:
    async def main() -> None:
        replica = Replica()
        replica.store.recovery.install = "i-other"
        with pytest.raises(ClusterUnavailable, match="belongs to installation i-other, and these pods to i-test"):
            await replica.marks.look()
        assert replica.store.recovery.compared == 0

    on_virtual_time(main())


@pytest.mark.parametrize("fault", ["blind", "hangs"])
def test_pods_that_cannot_be_listed_are_counted_and_stop_no_beat(fault: str) -> None:
    async def main() -> None:
        replica = Replica()
        read = replica.cluster.remembered

        async def read_then_fail() -> Remembered | None:
            found = await read()
            setattr(replica.cluster, fault, True)
            return found

        replica.cluster.remembered = read_then_fail  # type: ignore[method-assign]
        await replica.marks.look()
        assert (replica.errors, replica.store.recovery.compared) == (1, 0)
        assert passed() == (marks.LIST_SECONDS if fault == "hangs" else 0)

    on_virtual_time(main())


def test_the_begin_of_a_recovery_is_logged_once() -> None:
    async def main() -> None:
        replica = Replica()
        with structlog.testing.capture_logs() as logs:
            for recovering in (False, True, True, False, True):
                await replica.beat(3, recovering=recovering)
        assert len(logs) == 2

    on_virtual_time(main())


def test_a_replica_whose_first_beat_shows_a_recovery_logs_it() -> None:
    async def main() -> None:
        with structlog.testing.capture_logs() as logs:
            await Replica().beat(3, recovering=True)
        assert len(logs) == 1

    on_virtual_time(main())


def test_closing_ends_the_read_and_the_write_that_hang() -> None:
    async def main() -> None:
        replica = Replica()
        await replica.marks.close()  # nothing was started
        await replica.beat(3)
        replica.cluster.hangs = True
        await replica.beat(4)
        tasks = [replica.marks._looking, replica.marks._keeping]
        assert [task is not None and task.done() for task in tasks] == [False, False]
        await replica.marks.close()
        assert [task is not None and task.cancelled() for task in tasks] == [True, True]

    on_virtual_time(main())
