"""A worker's pod is protected within three tries of one second, and what the cluster answers decides what the holder is sent."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from claimpath.recorded_store import RecordedStore, make_pair, make_pool
from holdfast.claimpath import protection
from holdfast.claimpath.protection import Protection, Unusable, Usable, clear
from holdfast.duties import deadlines
from holdfast.metrics import Metrics
from holdfast.model.effect import Done, Skipped, Stale
from holdfast.model.pod import Pod, Stamp
from holdfast.model.pool import ProtectionSpec
from holdfast.model.worker import Worker
from holdfast.ports.cluster import ClusterUnavailable
from holdfast.ports.store import Pair
from postgres.recorded_cluster import RecordedCluster
from virtual_time import on_virtual_time, passed

PAIR = make_pair("c-1")
CLAIM, ALWAYS, OFF = ProtectionSpec(mode="claim"), ProtectionSpec(mode="always"), ProtectionSpec(mode="off")


class Cluster(RecordedCluster):
    """A cluster with one pod. `faults` are what the next calls do instead of an answer; each call's time is recorded."""

    def __init__(self, **pod: Any) -> None:
        super().__init__(make_pool(), ["w-1"])
        self.kept["w-1"] = msgspec.structs.replace(self.kept["w-1"], **pod)
        self.faults: list[Callable[[], Any]] = []
        self.times: list[float] = []

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        await self._called()
        return await super().protect(name, uid, stamp)

    async def read_cached(self, names: Any) -> dict[str, Pod]:
        await self._called()
        return await super().read_cached(names)

    async def read(self, name: str) -> Pod | None:
        await self._called()
        return await super().read(name)

    async def _called(self) -> None:
        self.times.append(passed())
        if self.faults:
            await self.faults.pop(0)()


async def away() -> None:
    raise ClusterUnavailable("the API server is down")


async def hangs() -> None:
    await asyncio.Event().wait()


def errors(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("holdfast_protect_errors_total")


def test_the_numbers_of_the_protection_are_the_documented_ones() -> None:
    assert (protection.TRIES, protection.PAUSE, protection.TRY_SECONDS, protection.TURNS) == (3, 0.1, 1.0, 32)


def test_the_first_try_is_made_at_once_and_writes_the_claims_stamp() -> None:
    async def main() -> None:
        cluster, metrics = Cluster(), Metrics()
        assert await Protection(cluster, metrics).ensure(PAIR, CLAIM) == Usable(True)
        assert (cluster.times, errors(metrics)) == ([0.0], 0)
        assert cluster.kept["w-1"].stamp == Stamp("acme", "c-1", 7)

    on_virtual_time(main())


@pytest.mark.parametrize(
    ("faults", "times", "protected"),
    [
        ([away], [0.0, 0.1], True),
        ([hangs], [0.0, 1.1], True),
        ([away, hangs], [0.0, 0.1, 1.2], True),
        ([away, away, away], [0.0, 0.1, 0.2], False),
        ([hangs, hangs, hangs], [0.0, 1.1, 2.2], False),
    ],
)
def test_a_failed_try_is_repeated_after_a_pause_and_counted(faults: list[Any], times: list[float], protected: bool) -> None:
    async def main() -> None:
        cluster, metrics = Cluster(), Metrics()
        cluster.faults = list(faults)
        assert await Protection(cluster, metrics).ensure(PAIR, CLAIM) == Usable(protected)
        assert cluster.times == times
        assert errors(metrics) == len(faults)

    on_virtual_time(main())


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({"phase": "ended"}, "its worker's pod was gone at hand-over"),
        ({"terminating": True}, "its worker's pod was terminating at hand-over"),
        ({"schedulable": False}, "its worker's node was cordoned at hand-over"),
    ],
)
@pytest.mark.parametrize("spec", [CLAIM, ALWAYS, OFF], ids=["claim", "always", "off"])
def test_a_pod_that_leaves_is_unusable_in_every_mode(spec: ProtectionSpec, pod: dict[str, Any], reason: str) -> None:
    async def main() -> None:
        assert await Protection(Cluster(**pod), Metrics()).ensure(PAIR, spec) == Unusable(reason)

    on_virtual_time(main())


@pytest.mark.parametrize("spec", [ALWAYS, OFF], ids=["always", "off"])
def test_a_pod_that_is_not_in_the_list_is_unusable(spec: ProtectionSpec) -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.kept.clear()
        assert await Protection(cluster, Metrics()).ensure(PAIR, spec) == Unusable("its worker's pod was gone at hand-over")

    on_virtual_time(main())


def test_a_pod_that_the_write_did_not_find_is_unusable() -> None:
    class Gone(Cluster):
        async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
            return None

    async def main() -> None:
        assert await Protection(Gone(), Metrics()).ensure(PAIR, CLAIM) == Unusable("its worker's pod was gone at hand-over")

    on_virtual_time(main())


def test_a_worker_without_a_pod_is_unusable_and_nothing_is_written() -> None:
    async def main() -> None:
        cluster = Cluster()
        pair = msgspec.structs.replace(PAIR, uid=None)
        assert await Protection(cluster, Metrics()).ensure(pair, CLAIM) == Unusable("its worker has no pod yet")
        assert cluster.times == []

    on_virtual_time(main())


@pytest.mark.parametrize(
    ("spec", "protected", "answer", "written"),
    [
        (ALWAYS, True, Usable(True), False),
        (ALWAYS, False, Usable(True), True),
        (OFF, True, Usable(False), False),
        (OFF, False, Usable(False), False),
    ],
)
def test_a_mode_that_writes_nothing_writes_only_if_the_pod_lost_its_protection(
    spec: ProtectionSpec, protected: bool, answer: Usable, written: bool
) -> None:
    async def main() -> None:
        cluster = Cluster(protected=protected)
        assert await Protection(cluster, Metrics()).ensure(PAIR, spec) == answer
        assert (cluster.kept["w-1"].stamp is not None) is written

    on_virtual_time(main())


@pytest.mark.parametrize(("fault", "seconds"), [(away, 0.0), (hangs, 1.0)])
@pytest.mark.parametrize("spec", [ALWAYS, OFF], ids=["always", "off"])
def test_a_pod_that_cannot_be_read_is_given_out_as_unprotected(spec: ProtectionSpec, fault: Any, seconds: float) -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.faults = [fault]
        assert await Protection(cluster, Metrics()).ensure(PAIR, spec) == Usable(False)
        assert passed() == seconds

    on_virtual_time(main())


def test_in_a_burst_on_a_cluster_that_hangs_no_try_starts_after_the_time_of_three_tries() -> None:
    """A later try would still be in progress when `deadlines` hands the claim over again, after 4 s."""

    async def main() -> None:
        cluster, metrics = Cluster(), Metrics()
        protecting = Protection(cluster, metrics)
        cluster.faults = [hangs] * 1000
        burst = [asyncio.create_task(protecting.ensure(PAIR, CLAIM)) for _ in range(4 * protection.TURNS)]
        assert await asyncio.gather(*burst) == [Usable(False)] * len(burst)
        # 32 start at 0 s, 32 at 1 s and 32 at 2 s.
        assert [cluster.times.count(at) for at in (0.0, 1.0, 2.0)] == [protection.TURNS] * 3
        assert max(cluster.times) < protection.TRIES * protection.TRY_SECONDS
        assert passed() < deadlines.OFFER_STALL
        # All but the 32 of the last tries wait for another turn at 3 s. Each of them counts one more error.
        assert errors(metrics) == len(cluster.times) + len(burst) - protection.TURNS
        cluster.faults.clear()
        assert await protecting.ensure(PAIR, CLAIM) == Usable(True), "every turn was given back"

    on_virtual_time(main())


def row(state: str = "warm") -> Worker:
    fields: dict[str, Any] = {"pool_id": "p", "pool": "linux", "version": 5, "revision": "r", "created_at": 0.0}
    return Worker(id="w-1", state=state, state_since=0.0, **fields)  # type: ignore[arg-type]


STAMPED = {"stamp": Stamp("acme", "c-1", 7), "protected": True}


async def removed(pair: Pair, worker: Worker | None, **pod: Any) -> bool:
    """Returns whether the stamp was removed from the pod."""
    cluster, store = Cluster(**(STAMPED | pod)), RecordedStore()
    if worker is not None:
        store.workers.rows["w-1"] = worker
    await Protection(cluster, Metrics()).remove(store, pair)  # type: ignore[arg-type]
    assert store.workers.unprotected in ([], [("w-1", 5)])
    cleared = cluster.kept["w-1"].version != "1"
    assert cleared == bool(store.workers.unprotected)
    return cleared


def test_only_the_stamp_of_this_claim_is_removed_and_only_from_a_free_worker() -> None:
    async def main() -> None:
        assert await removed(PAIR, row("warm"))
        assert await removed(PAIR, row("parked"))
        assert not await removed(PAIR, row("held")), "another claim has it"
        assert not await removed(PAIR, row("retiring"))
        assert not await removed(PAIR, None)
        assert not await removed(PAIR, row(), uid="uid-of-another-pod")
        assert not await removed(PAIR, row(), stamp=None)
        assert not await removed(PAIR, row(), stamp=Stamp("acme", "c-2", 8)), "this is the stamp of the next claim"

    on_virtual_time(main())


def test_a_pod_that_is_gone_needs_no_removal() -> None:
    async def main() -> None:
        cluster, store = Cluster(), RecordedStore()
        store.workers.rows["w-1"] = row()
        cluster.kept.clear()
        await Protection(cluster, Metrics()).remove(store, PAIR)  # type: ignore[arg-type]
        assert store.workers.unprotected == []

    on_virtual_time(main())


@pytest.mark.parametrize(("fault", "seconds"), [(away, 0.0), (hangs, 1.0)])
def test_a_removal_that_fails_is_left_to_the_duty_converge(fault: Any, seconds: float) -> None:
    async def main() -> None:
        cluster, store = Cluster(**STAMPED), RecordedStore()
        store.workers.rows["w-1"] = row()
        cluster.faults = [fault]
        await Protection(cluster, Metrics()).remove(store, PAIR)  # type: ignore[arg-type]
        assert (cluster.kept["w-1"].version, passed()) == ("1", seconds)

    on_virtual_time(main())


@pytest.mark.parametrize("outcome", [Stale(), Skipped("frozen")])
def test_a_pod_whose_row_was_not_changed_keeps_its_protection(outcome: Any) -> None:
    async def main() -> None:
        cluster, store = Cluster(**STAMPED), RecordedStore()
        store.workers.next_effect = outcome
        assert await clear(store, cluster, "w-1", 5, "uid-w-1", "1") == outcome  # type: ignore[arg-type]
        assert cluster.kept["w-1"].protected

    on_virtual_time(main())


@pytest.mark.parametrize(("version", "outcome"), [("1", Done()), ("0", Stale())])
def test_a_clear_counts_only_if_the_pod_was_as_read(version: str, outcome: Any) -> None:
    async def main() -> None:
        cluster, store = Cluster(**STAMPED), RecordedStore()
        assert await clear(store, cluster, "w-1", 5, "uid-w-1", version) == outcome  # type: ignore[arg-type]
        assert cluster.kept["w-1"].protected is (outcome != Done())

    on_virtual_time(main())
