"""The nodes of the simulated cluster: they place, start and end pods, and notify the watchers."""

import random
import uuid
from asyncio import Task, get_running_loop
from collections.abc import Callable, Coroutine
from typing import Any

from ..model.pool import PoolSpec
from .loop import later
from .pods import Node, Past, Weather, WorldClock, WorldPod

Program = Coroutine[Any, Any, int]
DRAIN_AGAIN = 5.0  # seconds between two tries of a drain, as in kubectl


def _in_its_own_task(pod: WorldPod, program: Program) -> Task[int]:
    return get_running_loop().create_task(program, name=pod.name)


class Kubelets:
    """The scheduler's and the nodes' side of the cluster. `World` has the API's side and the faults."""

    def __init__(
        self,
        clock: WorldClock,
        source: random.Random,
        note: Callable[[str, str], None],
        run: Callable[[WorldPod], Program],
        spawn_task: Callable[[WorldPod, Program], Task[int]] | None,
        weather: Weather,
        nodes: int,
    ) -> None:
        self.clock = clock
        self.weather = weather
        self.pods: dict[str, WorldPod] = {}  # by name; names are unique, as in a namespace
        self.nodes: dict[str, Node] = {}
        self.on_effect: list[Callable[[str, WorldPod], None]] = []  # called before each effect on a pod
        self.watchers: list[Callable[[WorldPod], None]] = []  # called after each change that the API shows
        self._note = note
        self._run = run
        self._spawn_task = spawn_task or _in_its_own_task
        self._salt = source.getrandbits(64)
        self._births: dict[str, int] = {}
        self._version = 0
        self._past = Past()
        for number in range(1, nodes + 1):
            self.nodes[f"n-{number}"] = Node(f"n-{number}")

    def on(self, node: Node) -> list[WorldPod]:
        return [pod for pod in self.pods.values() if pod.node is node]

    def _born(self, name: str, install: str, spec: PoolSpec, pool_id: str, pool: str, revision: str, epoch: int) -> WorldPod:
        self._births[name] = self._births.get(name, 0) + 1
        luck = random.Random(f"{self._salt}/{name}/{self._births[name]}")
        return WorldPod(
            name=name, uid=str(uuid.UUID(int=luck.getrandbits(128), version=4)), install=install, pool_id=pool_id, pool=pool,
            revision=revision, epoch=epoch, spec=spec, created_at=self.clock.wall(), luck=luck,
            stubborn=luck.random() < self.weather.stubborn,
        )  # fmt: skip

    def _place(self, pod: WorldPod) -> None:
        nodes = [node for node in self.nodes.values() if not (node.cordoned or node.partitioned or node.dead)]
        if not nodes:
            pod.trouble = "unschedulable: no node takes it"
        else:
            pod.node, pod.trouble = pod.luck.choice(nodes), None
            later(pod.luck.uniform(*self.weather.start), lambda: self._start(pod))
        self._changed(pod)

    def _place_waiting(self) -> None:
        for pod in [pod for pod in self.pods.values() if pod.phase == "pending" and pod.node is None]:
            self._place(pod)

    def _start(self, pod: WorldPod) -> None:
        image, crash, after = pod.luck.random(), pod.luck.random(), pod.luck.uniform(*self.weather.crash_after)
        if pod.phase != "pending":
            return  # it was deleted first, or its node died
        if image < self.weather.image_errors:
            self._note("image-error", pod.name)
            pod.trouble = "image: ErrImagePull"
            self._report(pod)
            return
        self._effect("start", pod, f"on {pod.node.name if pod.node is not None else '?'}")
        pod.phase, pod.ready = "running", not pod.agent
        pod.task = self._spawn_task(pod, self._program(pod))
        self._report(pod)
        if crash < self.weather.crashes:
            later(after, lambda: self._die(pod, 1))

    async def _program(self, pod: WorldPod) -> int:
        try:
            code = await self._run(pod)
        except Exception:  # a bug: the pod fails, and its task raises, which ends the run
            self._exited(pod, 1)
            raise
        self._exited(pod, code)
        return code

    def _exited(self, pod: WorldPod, code: int) -> None:
        pod.task = None
        if pod.alive:  # otherwise it was killed before, and only its cancelled task ends here
            self._effect("exit", pod, f"exit code {code}")
            self._over(pod, code)

    def _mark(self, pod: WorldPod, grace: float, kind: str) -> None:
        """Mark the pod as being deleted. A later mark can only shorten the grace. An ended pod is not marked."""
        if pod.view().phase == "ended" or (pod.terminating_at is not None and grace >= pod.grace):
            return
        self._effect(kind, pod, f"grace {grace:g}")
        pod.terminating_at = self.clock.now() if pod.terminating_at is None else pod.terminating_at
        pod.grace = grace
        self._changed(pod)
        self._obey(pod)

    def _obey(self, pod: WorldPod) -> None:
        """Act on a deletion mark as the kubelet does when it sees the mark. A grace that has started continues by itself."""
        if pod.terminating_at is None or pod.held is not None or pod.phase == "ended":
            return
        if pod.phase == "pending":
            self._over(pod, None)
            return
        if not pod.stubborn:
            pod.sigterm.set()
        if pod.grace <= 0:
            self._die(pod, 137)
        else:
            later(pod.grace, lambda: self._die(pod, 137))

    def _die(self, pod: WorldPod, code: int) -> None:
        if pod.alive:
            self._effect("kill", pod, f"exit code {code}")
            self._over(pod, code)

    def _over(self, pod: WorldPod, code: int | None) -> None:
        """End the pod's process. The API shows this only if the kubelet can report."""
        pod.phase, pod.ready, pod.exit_code, pod.ended_at = "ended", False, code, self.clock.wall()
        if pod.task is not None:
            pod.task.cancel()
        self._report(pod)

    def _drain(self, node: Node, evict: Callable[[WorldPod], object]) -> None:
        left = [pod for pod in self.on(node) if pod.phase != "ended"]
        if left and node.draining and not node.dead:
            for pod in left:
                evict(pod)
            later(DRAIN_AGAIN, lambda: self._drain(node, evict))

    def _effect(self, kind: str, pod: WorldPod, text: str = "") -> None:
        self._note(kind, f"{pod.name} {text}".rstrip())
        for look in self.on_effect:
            look(kind, pod)

    def _report(self, pod: WorldPod) -> None:
        """Publish the kubelet's report, unless its node is cut off; then the report waits."""
        if pod.held is None:
            self._changed(pod)

    def _changed(self, pod: WorldPod, there: bool = True) -> None:
        self._version += 1
        pod.version = self._version
        self._past.add(self.clock.now(), pod.name, pod.view() if there else None)
        for tell in list(self.watchers):
            tell(pod)

    def _remove(self, pod: WorldPod) -> None:
        del self.pods[pod.name]
        self._changed(pod, there=False)
