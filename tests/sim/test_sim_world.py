"""Simulated pods and nodes fail in the same ways as real ones, in the worst case."""

import asyncio

from sim_stage import SimStage, on_virtual_time, running, seen

from contracts.cluster import stamp
from holdfast.model.pod import Pod
from holdfast.ports.cluster import Refused
from holdfast.sim.cluster import SimCluster
from holdfast.sim.world import Node, SimResult, WorldPod

STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]


def node_of(pod: WorldPod) -> Node:
    assert pod.node is not None
    return pod.node


# Pods


@on_virtual_time
async def test_pods_of_others_are_neither_listed_nor_touched(stage: SimStage, cluster: SimCluster) -> None:
    foreign = stage.world.create_foreign("w-1")
    await running(stage, cluster, stage.order("w-0"))
    await running(stage, cluster, stage.order("w-2"))
    assert [pod.name for pod in await cluster.pods()] == ["w-0", "w-2"]
    assert isinstance(await cluster.create(stage.order("w-1")), Refused)
    assert await cluster.read("w-1") is None
    assert await cluster.protect("w-1", foreign.uid, stamp()) is None
    assert not await cluster.clear("w-1", foreign.uid, str(foreign.version))
    await cluster.delete("w-1", foreign.uid, 0)
    await cluster.forget("w-1", foreign.uid)
    for node in stage.world.nodes.values():
        stage.world.die(node)
    await asyncio.sleep(100)
    assert list(stage.world.pods) == ["w-1"]
    assert stage.world.foreign_touched() == []
    stage.world.kill(foreign)
    assert stage.world.foreign_touched() == ["w-1"]


@on_virtual_time
async def test_a_stubborn_pod_is_killed_after_its_grace_and_grace_never_grows(stage: SimStage, cluster: SimCluster) -> None:
    pod = await running(stage, cluster, stage.order("w-1", STUBBORN))
    await asyncio.sleep(0.1)
    await cluster.delete("w-1", pod.uid, 30)
    partly_protected = await seen(cluster)
    await cluster.delete("w-1", pod.uid, 300)
    assert await seen(cluster) == partly_protected
    await asyncio.sleep(29)
    assert (await seen(cluster)).phase == "running"
    assert (await seen(cluster)).terminating
    assert not pod.sigterm.is_set()
    await asyncio.sleep(2)
    assert (await seen(cluster)).phase == "ended"
    assert (await seen(cluster)).exit_code == 137
    hurried = await running(stage, cluster, stage.order("w-2", STUBBORN))
    await asyncio.sleep(0.1)
    await cluster.delete("w-2", hurried.uid, 300)
    await cluster.delete("w-2", hurried.uid, 5)
    await asyncio.sleep(6)
    assert not hurried.alive, "but it shrinks"


@on_virtual_time
async def test_a_pod_deleted_before_its_start_never_starts(stage: SimStage, cluster: SimCluster) -> None:
    stage.weather.start = (10.0, 10.0)
    made = await cluster.create(stage.order("w-1"))
    assert isinstance(made, Pod)
    await cluster.delete("w-1", made.uid, 30)
    await asyncio.sleep(20)
    assert (await seen(cluster)).phase == "ended"
    assert "start" not in [kind for kind, _ in stage.notes]


@on_virtual_time
async def test_starts_fail_by_image_by_crash_and_for_want_of_a_node(stage: SimStage, cluster: SimCluster) -> None:
    stage.weather.image_errors = 1.0
    await cluster.create(stage.order("w-1"))
    await asyncio.sleep(60)
    assert (await seen(cluster)).phase == "pending"
    assert "image" in ((await seen(cluster)).trouble or "")
    stage.weather.image_errors, stage.weather.crashes = 0.0, 1.0
    await cluster.create(stage.order_with_agent("w-2"))
    await asyncio.sleep(60)
    crashed = await seen(cluster, "w-2")
    assert (crashed.phase, crashed.exit_code, crashed.trouble) == ("ended", None, "the agent exited with 1")
    stage.weather.crashes = 0.0
    for node in stage.world.nodes.values():
        stage.world.cordon(node)
    await cluster.create(stage.order("w-3"))
    await asyncio.sleep(60)
    assert "unschedulable" in ((await seen(cluster, "w-3")).trouble or "")
    stage.world.add_node("n-4")
    await asyncio.sleep(1)
    assert (await seen(cluster, "w-3")).node == "n-4"
    assert (await seen(cluster, "w-3")).ready


@on_virtual_time
async def test_an_agents_result_is_the_claims_exit_code_however_it_died(stage: SimStage, cluster: SimCluster) -> None:
    pod = await running(stage, cluster, stage.order_with_agent("w-1"))
    pod.result = SimResult("c-1", 5, 3)
    stage.world.kill(pod)
    shown = await seen(cluster)
    assert (shown.phase, shown.exit_code, shown.exit_fence, shown.trouble) == ("ended", 3, 5, None)


@on_virtual_time
async def test_a_stamp_that_came_after_the_end_gets_no_exit_code_and_the_dead_have_no_token(
    stage: SimStage, cluster: SimCluster
) -> None:
    pod = await running(stage, cluster, stage.order("w-1"))
    assert await cluster.verify(pod.token) is not None
    stage.world.kill(pod, 7)
    await asyncio.sleep(1)
    late = await cluster.protect("w-1", pod.uid, stamp())
    assert late is not None
    assert (late.phase, late.exit_code, late.exit_fence) == ("ended", 7, None)
    assert await cluster.verify(pod.token) is None


@on_virtual_time
async def test_observers_look_before_the_effect(stage: SimStage, cluster: SimCluster) -> None:
    looks: list[tuple[str, bool, bool]] = []
    stage.world.on_effect.append(lambda kind, pod: looks.append((kind, pod.name in stage.world.pods, pod.protected)))
    pod = await running(stage, cluster, stage.order("w-1"))
    protected = await cluster.protect("w-1", pod.uid, stamp())
    assert protected is not None
    assert await cluster.protect("w-1", pod.uid, stamp()) == protected, "nothing changes, so no effect and no new version"
    await cluster.clear("w-1", pod.uid, protected.version)
    stage.world.vanish(pod)
    assert looks == [
        ("create", False, False),
        ("start", True, False),
        ("protect", True, False),
        ("clear", True, True),
        ("vanish", True, False),
    ]


# Nodes


@on_virtual_time
async def test_a_dead_node_shows_its_pods_running_until_they_are_collected(stage: SimStage, cluster: SimCluster) -> None:
    pod = await running(stage, cluster, stage.order("w-1"))
    task = pod.task
    assert task is not None
    stage.world.die(node_of(pod), gc=40)
    await asyncio.sleep(1)
    assert task.cancelled()
    assert not pod.alive
    assert pod.cut
    await cluster.delete("w-1", pod.uid, 5)
    await asyncio.sleep(30)
    assert (await seen(cluster)).phase == "running"
    assert (await seen(cluster)).terminating
    await asyncio.sleep(10)
    assert await cluster.read("w-1") is None


@on_virtual_time
async def test_a_partitioned_node_neither_reports_nor_obeys_until_it_is_healed(stage: SimStage, cluster: SimCluster) -> None:
    stage.world.cordon(stage.world.nodes["n-2"])
    stage.world.cordon(stage.world.nodes["n-3"])
    ended = await running(stage, cluster, stage.order_with_agent("w-1"))
    deleted = await running(stage, cluster, stage.order("w-2"))
    node = node_of(ended)
    stage.world.partition(node)
    assert ended.cut
    ended.result = SimResult("c-1", 1, 0)
    before = ended.version
    stage.world.kill(ended)
    assert ended.version == before
    await cluster.delete("w-2", deleted.uid, 5)
    assert await cluster.protect("w-1", ended.uid, stamp()) is not None, "the API takes it all the same"
    await asyncio.sleep(300)
    shown = await seen(cluster)
    assert (shown.phase, shown.exit_code, shown.protected) == ("running", None, True)
    assert deleted.alive
    assert not deleted.sigterm.is_set()
    stage.world.heal(node)
    shown = await seen(cluster)
    assert (shown.phase, shown.exit_code, shown.exit_fence) == ("ended", 0, 1)
    await asyncio.sleep(1)
    assert (await seen(cluster, "w-2")).phase == "ended"


@on_virtual_time
async def test_a_drain_takes_the_free_and_waits_for_the_protected(stage: SimStage, cluster: SimCluster) -> None:
    stage.world.cordon(stage.world.nodes["n-2"])
    stage.world.cordon(stage.world.nodes["n-3"])
    free = await running(stage, cluster, stage.order("w-1"))
    busy = await running(stage, cluster, stage.order("w-2"))
    protected = await cluster.protect("w-2", busy.uid, stamp())
    assert protected is not None
    stage.world.drain(node_of(free))
    await asyncio.sleep(600)
    assert (await seen(cluster)).phase == "ended"
    shown = await seen(cluster, "w-2")
    assert (shown.phase, shown.terminating, shown.schedulable) == ("running", False, False)
    assert await cluster.clear("w-2", busy.uid, shown.version)
    await asyncio.sleep(10)
    assert (await seen(cluster, "w-2")).phase == "ended"


@on_virtual_time
async def test_an_eviction_spares_the_protected_unless_forced(stage: SimStage, cluster: SimCluster) -> None:
    pod = await running(stage, cluster, stage.order("w-1"))
    await cluster.protect("w-1", pod.uid, stamp())
    assert not stage.world.evict(pod)
    assert not (await seen(cluster)).terminating
    assert stage.world.evict(pod, force=True)
    assert (await seen(cluster)).terminating
