"""Faults of pods and nodes."""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..faults import Fault
from ..loop import VirtualLoop
from ..moments import Target
from ..pods import Node, WorldPod
from ..world import World
from .cause import Cause

if TYPE_CHECKING:
    from ..chaos import Chaos


def _pod(chaos: "Chaos", fault: Fault, target: Target, agents_only: bool = False) -> WorldPod | None:
    run = chaos.run
    pods = [p for p in run.world.living() if p.install == run.install and (p.agent or not agents_only)]
    if target.worker is not None:
        return next((pod for pod in pods if pod.name == target.worker), None)
    busy = [pod for pod in pods if pod.uid in run.book.doing]
    among = busy if busy and fault.amount < 0.5 else pods
    return among[int(fault.pick * len(among))] if among else None


def kill(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (pod := _pod(chaos, fault, target)) is not None:
        chaos.run.world.kill(pod)


def kill_many(chaos: "Chaos", fault: Fault, target: Target) -> None:
    source = random.Random(fault.pick)
    for pod in chaos.run.world.living():
        if pod.install == chaos.run.install and source.random() < fault.amount:
            chaos.run.world.kill(pod)


def vanish(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (pod := _pod(chaos, fault, target)) is not None:
        chaos.run.world.vanish(pod)


def evict(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (pod := _pod(chaos, fault, target)) is not None:
        chaos.run.world.evict(pod, 5 + 60 * fault.pick)


def delete(chaos: "Chaos", fault: Fault, target: Target) -> None:
    """Delete a pod as `kubectl delete` does, which ignores budgets."""
    if (pod := _pod(chaos, fault, target)) is not None:
        chaos.run.world.evict(pod, 5 + 60 * fault.pick, force=True)


def impostor(chaos: "Chaos", fault: Fault, target: Target) -> None:
    """Replace a pod by another pod of the same name, as a restore tool may do."""
    if (pod := _pod(chaos, fault, target)) is not None:
        chaos.run.world.vanish(pod)
        chaos.run.impostor(pod)


def hang(chaos: "Chaos", fault: Fault, target: Target) -> None:
    pod = _pod(chaos, fault, target, agents_only=True)
    owner = chaos.run.agents.get(pod.uid) if pod is not None else None
    loop = asyncio.get_running_loop()
    if owner is not None and isinstance(loop, VirtualLoop):
        loop.pause(owner)
        chaos.until(fault, lambda: loop.resume(owner))


def _node(chaos: "Chaos", fault: Fault, target: Target) -> Node | None:
    nodes = [node for node in chaos.run.world.nodes.values() if not node.dead]
    if (pod := chaos.run.world.pods.get(target.worker or "")) is not None:
        return pod.node if pod.node in nodes else None
    return nodes[int(fault.pick * len(nodes))] if nodes else None


def _on_node(begin: Callable[[World, Node, Fault], None], end: Callable[[World, Node], None]) -> Cause:
    """Returns the cause that begins something on one node, and ends it when the fault is over."""

    def cause(chaos: "Chaos", fault: Fault, target: Target) -> None:
        world, node = chaos.run.world, _node(chaos, fault, target)
        if node is not None:
            begin(world, node, fault)
            chaos.until(fault, lambda: end(world, node))

    return cause


def node_death(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (node := _node(chaos, fault, target)) is not None:
        chaos.run.world.die(node, 5 + 60 * fault.amount)
        chaos.run.world.add_node(f"n-new-{chaos.number()}")


PODS: dict[str, Cause] = {
    "pod.kill": kill,
    "pod.vanish": vanish,
    "pod.evict": evict,
    "pod.delete": delete,
    "pod.hang": hang,
    "pod.impostor": impostor,
    "pods.kill-many": kill_many,
    "node.cordon": _on_node(lambda world, node, _: world.cordon(node), World.uncordon),
    "node.drain": _on_node(lambda world, node, fault: world.drain(node, 5 + 60 * fault.amount), World.uncordon),
    "node.partition": _on_node(lambda world, node, _: world.partition(node), World.heal),
    "node.death": node_death,
}
