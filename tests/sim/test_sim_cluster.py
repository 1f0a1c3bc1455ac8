"""The simulated cluster keeps the contract of every cluster without faults, and each of its faults does what it claims."""

import asyncio

import pytest
from sim_stage import SimStage, on_virtual_time, play_virtually, running, seen

from contracts.cluster import ClusterContract, OutputContract, stamp
from holdfast.model.pod import Pod
from holdfast.ports.cluster import ClusterUnavailable, OutcomeUnknown, Refused
from holdfast.sim.cluster import SimCluster


class TestSimCluster(ClusterContract, OutputContract):
    @pytest.fixture
    def stage(self) -> SimStage:
        return SimStage()


# Requests


@on_virtual_time
async def test_a_stale_list_shows_the_past_and_a_read_does_not(stage: SimStage, cluster: SimCluster) -> None:
    first = await running(stage, cluster, stage.order("w-1"))
    await asyncio.sleep(60)
    await running(stage, cluster, stage.order("w-2"))
    await cluster.protect("w-1", first.uid, stamp())
    stage.world.vanish(first)
    stage.weather.stale, stage.weather.stale_by = 1.0, (30.0, 30.0)
    (past,) = await cluster.pods()
    assert (past.name, past.phase, past.protected) == ("w-1", "running", False)
    assert await cluster.read("w-1") is None
    await asyncio.sleep(31)
    assert [pod.name for pod in await cluster.pods()] == ["w-2"]
    await asyncio.sleep(3600)
    await cluster.protect("w-2", stage.world.pods["w-2"].uid, stamp())
    assert [pod.protected for pod in await cluster.pods()] == [False], "what is older than the kept past is not forgotten"


@on_virtual_time
async def test_an_empty_list_is_not_believed(stage: SimStage, cluster: SimCluster) -> None:
    await running(stage, cluster, stage.order("w-1"))
    stage.weather.empty = 1.0
    assert await cluster.pods() == []
    assert (await seen(cluster)).phase == "running"


@on_virtual_time
async def test_a_failing_request_has_no_effect(stage: SimStage, cluster: SimCluster) -> None:
    stage.weather.failing = 1.0
    with pytest.raises(ClusterUnavailable) as error:
        await cluster.create(stage.order("w-1"))
    assert not isinstance(error.value, OutcomeUnknown)
    assert stage.world.pods == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_answer_leaves_the_effect(seed: int) -> None:
    async def scenario(stage: SimStage, cluster: SimCluster) -> None:
        stage.weather.lost = 1.0
        with pytest.raises(OutcomeUnknown):
            await cluster.create(stage.order("w-1"))
        assert "w-1" in stage.world.pods
        with pytest.raises(ClusterUnavailable) as error:
            await cluster.read("w-1")
        assert not isinstance(error.value, OutcomeUnknown), "a read has no outcome"

    play_virtually(scenario, seed)


@on_virtual_time
async def test_a_cancelled_protect_still_arrives(stage: SimStage, cluster: SimCluster) -> None:
    pod = await running(stage, cluster, stage.order("w-1"))
    stage.weather.latency = (0.7, 0.7)
    call = asyncio.create_task(cluster.protect("w-1", pod.uid, stamp()))
    await asyncio.sleep(0.5)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert not pod.protected
    await asyncio.sleep(0.5)
    assert pod.protected


@on_virtual_time
async def test_a_protect_is_given_up_after_a_second(stage: SimStage, cluster: SimCluster) -> None:
    pod = await running(stage, cluster, stage.order("w-1"))
    stage.weather.latency = (0.7, 0.7)
    begun = asyncio.get_running_loop().time()
    with pytest.raises(OutcomeUnknown):
        await cluster.protect("w-1", pod.uid, stamp())
    assert asyncio.get_running_loop().time() - begun == pytest.approx(1.0)
    assert pod.protected


@on_virtual_time
async def test_a_late_clear_is_refused_by_its_version_and_a_late_protect_by_nothing(stage: SimStage, cluster: SimCluster) -> None:
    pod = await running(stage, cluster, stage.order("w-1"))
    first = await cluster.protect("w-1", pod.uid, stamp("c-1", 1))
    assert first is not None
    stage.weather.late, stage.weather.late_by = 1.0, (60.0, 60.0)
    with pytest.raises(OutcomeUnknown):
        await cluster.clear("w-1", pod.uid, first.version)
    with pytest.raises(OutcomeUnknown):
        await cluster.protect("w-1", pod.uid, stamp("c-0", 0))
    stage.weather.late = 0.0
    assert await cluster.protect("w-1", pod.uid, stamp("c-2", 2)) is not None
    await asyncio.sleep(59)
    assert pod.stamp is not None
    assert pod.protected
    await asyncio.sleep(3)
    assert pod.stamp.fence == 0, "a merge patch overwrites"
    assert [kind for kind, _ in stage.notes if kind.startswith("clear")] == ["clear-refused"]


@on_virtual_time
async def test_a_late_delete_comes_minutes_later_and_never_to_a_successor(stage: SimStage, cluster: SimCluster) -> None:
    stage.weather.late, stage.weather.late_by = 1.0, (60.0, 60.0)
    first = await running(stage, cluster, stage.order("w-1"))
    second = await running(stage, cluster, stage.order("w-2"))
    for pod in (first, second):
        with pytest.raises(OutcomeUnknown):
            await cluster.delete(pod.name, pod.uid, 5)
    stage.world.vanish(first)
    successor = await running(stage, cluster, stage.order("w-1"))
    assert second.alive
    await asyncio.sleep(120)
    assert successor.alive
    assert (await seen(cluster, "w-2")).phase == "ended"


@on_virtual_time
async def test_a_replica_without_a_route_learns_nothing_and_does_nothing(stage: SimStage, cluster: SimCluster) -> None:
    stage.away = True
    for call in (cluster.pods(), cluster.read("w-1"), cluster.create(stage.order("w-1")), cluster.remembered()):
        with pytest.raises(ClusterUnavailable) as error:
            await call
        assert not isinstance(error.value, OutcomeUnknown), "nothing was sent"
    stage.away, stage.cut = False, True
    with pytest.raises(asyncio.CancelledError):
        await cluster.create(stage.order("w-1"))
    assert stage.world.pods == {}


@on_virtual_time
async def test_a_full_quota_refuses(stage: SimStage, cluster: SimCluster) -> None:
    stage.weather.quota = 1
    first = await running(stage, cluster, stage.order("w-1"))
    refused = await cluster.create(stage.order("w-2"))
    assert isinstance(refused, Refused)
    assert (refused.kind, "w-2" in stage.world.pods) == ("quota", False)
    stage.world.kill(first)
    assert isinstance(await cluster.create(stage.order("w-2")), Pod), "what has ended does not count"


# Hints


async def hints(cluster: SimCluster, seconds: float) -> list[set[str]]:
    """Returns the hints of a watch within this time, which may be none."""
    notified: list[set[str]] = []

    async def listen() -> None:
        async for names in cluster.changes():
            notified.append(names)

    task = asyncio.create_task(listen())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait([task])
    return notified


@pytest.mark.parametrize(("dropped", "doubled", "expected"), [(0.0, 0.0, [{"w-1"}]), (0.0, 1.0, [{"w-1"}] * 2), (1.0, 0.0, [])])
@on_virtual_time
async def test_hints_come_once_or_twice_or_never(
    stage: SimStage, cluster: SimCluster, dropped: float, doubled: float, expected: list[set[str]]
) -> None:
    await running(stage, cluster, stage.order("w-2"))
    pod = await running(stage, cluster, stage.order("w-1"))
    stage.weather.hints_dropped, stage.weather.hints_doubled, stage.weather.relist = dropped, doubled, 100.0
    listening = asyncio.create_task(hints(cluster, 150))
    await asyncio.sleep(1)
    stage.world.kill(pod)
    assert await listening == [*expected, {"w-1", "w-2"}], "and the next list names them all"
    assert stage.world.watchers == []


@on_virtual_time
async def test_a_replica_that_was_cut_off_gets_all_pods_when_it_is_back(stage: SimStage, cluster: SimCluster) -> None:
    pod = await running(stage, cluster, stage.order("w-1"))
    listening = asyncio.create_task(hints(cluster, 60))
    await asyncio.sleep(1)
    stage.away = True
    stage.world.vanish(pod)
    await asyncio.sleep(20)
    stage.away = False
    assert await listening == [{"w-1"}], "also what is gone"


def test_the_same_seed_gives_the_same_run() -> None:
    async def scenario(stage: SimStage, cluster: SimCluster) -> None:
        weather = stage.weather
        weather.failing, weather.lost, weather.late, weather.crashes, weather.image_errors = 0.2, 0.2, 0.2, 0.2, 0.2
        others = [cluster, stage.open(), stage.open()]

        async def work(number: int) -> None:
            for turn in range(30):
                name = f"w-{number}-{turn}"
                try:
                    made = await others[number].create(stage.order(name))
                    assert isinstance(made, Pod)
                    await asyncio.sleep(0.1)
                    found = await others[number].protect(name, made.uid, stamp())
                    await others[number].delete(name, found.uid if found else made.uid, 5)
                except ClusterUnavailable as error:
                    stage.notes.append(("unavailable", str(error)))

        await asyncio.gather(*(work(number) for number in range(3)))

    first, again, other = (play_virtually(scenario, seed).notes for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert {"unavailable", "delete", "exit"} <= {kind for kind, _ in first}
