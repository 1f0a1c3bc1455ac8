"""The simulated cluster: its pods and nodes, and everything that happens to them. All replicas share it, and it outlives them."""

import random
from asyncio import Task
from collections.abc import Callable

import msgspec

from ..model.pod import Pod, Stamp
from ..model.pool import PoolSpec
from ..ports.cluster import Order, Output, Refused
from ..ports.recovery import Remembered
from .kubelets import Kubelets, Program
from .loop import later
from .pods import Node, PodStatus, Range, SimResult, Weather, WorldClock, WorldPod

__all__ = ["FOREIGN", "Node", "PodStatus", "Program", "Range", "SimResult", "Weather", "World", "WorldClock", "WorldPod"]

YOUNG = 60.0  # seconds; a younger output may belong to a claim that was made after `keep` was read
FOREIGN = "somebody-else"


class World(Kubelets):
    """Everything here takes effect immediately. Notes and observers are called *before* the effect, so that a checker sees the
    pod as it was."""

    def __init__(
        self,
        clock: WorldClock,
        source: random.Random,
        note: Callable[[str, str], None],
        run: Callable[[WorldPod], Program],
        *,
        spawn_task: Callable[[WorldPod, Program], Task[int]] | None = None,
        weather: Weather | None = None,
        nodes: int = 3,
    ) -> None:
        super().__init__(clock, source, note, run, spawn_task, weather or Weather(), nodes)
        self._foreign: list[tuple[WorldPod, int]] = []
        self._outputs: dict[str, tuple[bytes, bool, float]] = {}
        self._marks: dict[str, Remembered] = {}

    # Requests of replicas

    def find(self, install: str, name: str, uid: str | None = None) -> WorldPod | None:
        pod = self.pods.get(name)
        return pod if pod is not None and pod.install == install and uid in (None, pod.uid) else None

    def listed(self, install: str, ago: float = 0.0) -> list[Pod]:
        """Returns all pods of this installation, sorted by name, as they were `ago` seconds ago."""
        shown = self._past.at(self.clock.now() - ago) if ago > 0 else {name: pod.view() for name, pod in self.pods.items()}
        return [shown[name] for name in sorted(shown) if shown[name].install == install]

    def create(self, order: Order, install: str, token: Callable[[str, str], str]) -> Pod | Refused:
        there = self.pods.get(order.name)
        if there is not None:
            return there.view() if there.install == install else Refused("other", f"the name {order.name!r} is taken by another")
        worker, quota = order.pool.spec.worker, self.weather.quota
        if not worker.agent and not (worker.serve or worker.run):
            return Refused("invalid", "worker.run is empty: without an agent nothing else says what to run")
        if quota is not None and (used := len(self.living())) >= quota:
            return Refused("quota", f"exceeded quota: requested pods=1, used pods={used}, limited pods={quota}")
        pool = order.pool
        pod = self._born(order.name, install, pool.spec, pool.id, pool.name, pool.revision, order.epoch)
        pod.token = token(pod.name, pod.uid)
        self._effect("create", pod, f"pool {pod.pool}, epoch {pod.epoch}")
        self.pods[pod.name] = pod
        self._changed(pod)
        self._place(pod)
        return pod.view()

    def protect(self, install: str, name: str, uid: str, stamp: Stamp) -> Pod | None:
        """Stamp and protect the pod. There is no version check, as in a merge patch, so a late call overwrites a newer stamp."""
        pod = self.find(install, name, uid)
        if pod is None:
            return None
        kept = pod.stamp
        again = kept is not None and (kept.tenant, kept.claim, kept.fence) == (stamp.tenant, stamp.claim, stamp.fence)
        if not (again and pod.protected):  # otherwise nothing changes, and the version stays the same
            self._effect("protect", pod, f"{stamp.claim}/{stamp.fence}")
            pod.stamp, pod.protected = msgspec.structs.replace(stamp, at=self.clock.wall()), True
            self._changed(pod)
        return pod.view()

    def clear(self, install: str, name: str, uid: str, version: str) -> bool:
        pod = self.find(install, name, uid)
        if pod is None or version not in (str(pod.version), ""):  # without a version the real API does not check either
            self._note("clear-refused", f"{name} at {version}, is at {pod.version if pod is not None else 'nothing'}")
            return False
        self._effect("clear", pod, f"at {version}")
        pod.stamp, pod.protected = None, False
        self._changed(pod)
        return True

    def delete(self, install: str, name: str, uid: str, grace: float) -> None:
        pod = self.find(install, name, uid)
        if pod is not None:
            self._mark(pod, grace, "delete")

    def forget(self, install: str, name: str, uid: str) -> None:
        pod = self.find(install, name, uid)
        if pod is not None and pod.view().phase == "ended":
            self._effect("forget", pod)
            self._remove(pod)

    def output(self, claim: str, offset: int, limit: int) -> Output:
        data, truncated, _ = self._outputs.get(claim, (b"", False, 0.0))
        return Output(data[offset : offset + limit], offset, len(data), truncated)

    def put_output(self, claim: str, data: bytes, *, truncated: bool = False, age: float = 0.0) -> None:
        """Store everything that a claim's command has printed so far."""
        self._outputs[claim] = data, truncated, self.clock.now() - age

    def output_sizes(self) -> dict[str, int]:
        return {claim: len(data) for claim, (data, _, _) in self._outputs.items()}

    def prune_output(self, keep: set[str]) -> int:
        old = [c for c, (_, _, at) in self._outputs.items() if c not in keep and self.clock.now() - at >= YOUNG]
        for claim in old:
            del self._outputs[claim]
        return len(old)

    def remember(self, mark: Remembered) -> None:
        kept = self._marks.get(mark.install, mark)
        self._marks[mark.install] = kept.raised_to(mark)

    def remembered(self, install: str) -> Remembered | None:
        return self._marks.get(install)

    # Faults of pods

    def living(self) -> list[WorldPod]:
        """Returns the pods whose process has not ended, including foreign pods, in the order of their creation."""
        return [pod for pod in self.pods.values() if pod.phase != "ended"]

    def kill(self, pod: WorldPod, exit_code: int = 137) -> None:
        """Terminate the pod's container, as after a crash or when it is out of memory."""
        self._die(pod, exit_code)

    def vanish(self, pod: WorldPod) -> None:
        """Remove the pod's object and its process immediately."""
        if self.pods.get(pod.name) is pod:
            self._effect("vanish", pod)
            del self.pods[pod.name]
            if pod.phase != "ended":
                self._over(pod, None)
            self._changed(pod, there=False)

    def evict(self, pod: WorldPod, grace: float = 30.0, *, force: bool = False) -> bool:
        """Delete the pod as another client would. A budget protects it from the Eviction API, but not from `force`, a direct
        DELETE."""
        if pod.protected and not force:
            self._note("evict-refused", pod.name)
            return False
        self._mark(pod, grace, "evict")
        return True

    def create_foreign(self, name: str) -> WorldPod:
        """Create a pod of another installation, on a node without faults. So every change of it is caused by our replicas."""
        pod = self._born(name, FOREIGN, PoolSpec(), "p-foreign", "foreign", "r-foreign", 1)
        pod.node, pod.phase = Node("elsewhere"), "running"
        self.pods[name] = pod
        self._changed(pod)
        self._foreign.append((pod, pod.version))
        return pod

    def foreign_touched(self) -> list[str]:
        """Returns the names of foreign pods that are not exactly as they were created. There must never be one."""
        return [p.name for p, version in self._foreign if self.pods.get(p.name) is not p or not p.alive or p.version != version]

    # Faults of nodes

    def add_node(self, name: str) -> Node:
        self.nodes[name] = node = Node(name)
        self._place_waiting()
        return node

    def cordon(self, node: Node, cordoned: bool = True) -> None:
        self._note("cordon" if cordoned else "uncordon", node.name)
        node.cordoned, node.draining = cordoned, node.draining and cordoned
        for pod in self.on(node):
            self._changed(pod)
        self._place_waiting()

    def uncordon(self, node: Node) -> None:
        self.cordon(node, False)

    def drain(self, node: Node, grace: float = 30.0) -> None:
        """Cordon the node, and evict its pods repeatedly until none is left. Protected pods are waited for."""
        self.cordon(node)
        node.draining = True
        self._drain(node, lambda pod: self.evict(pod, grace))

    def partition(self, node: Node) -> None:
        """Cut the node off. Its processes continue, but its kubelet neither sends nor receives anything."""
        self._note("partition", node.name)
        node.partitioned = True
        for pod in self.on(node):
            pod.held = pod.held or pod.status

    def heal(self, node: Node) -> None:
        if node.dead or not node.partitioned:
            return
        self._note("heal", node.name)
        node.partitioned = False
        for pod in self.on(node):
            before, pod.held = pod.held, None
            if pod.status != before:
                self._changed(pod)
            self._obey(pod)
        self._place_waiting()

    def die(self, node: Node, gc: float = 40.0) -> None:
        """Kill the node's processes now. The API shows them as running until they are garbage-collected, `gc` seconds later."""
        self._note("node-death", node.name)
        node.dead = True
        lost = self.on(node)
        for pod in lost:
            pod.held = pod.held or pod.status
            if pod.phase != "ended":
                self._effect("node-death", pod)
                self._over(pod, None)
        later(gc, lambda: self._collect(lost))

    def _collect(self, lost: list[WorldPod]) -> None:
        for pod in lost:
            self.vanish(pod)
