"""A stage for simulated pods: a world without faults, and the programs that its pods run."""

import asyncio
import functools
import inspect
import random
import time
from collections.abc import Awaitable, Callable

from contracts.cluster import FOREVER
from holdfast.model.pod import Pod
from holdfast.model.pool import Pool, PoolSpec, WorkerSpec, revision_of
from holdfast.ports.cluster import Order
from holdfast.sim.cluster import SimCluster
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.world import Weather, World, WorldPod

WALL = 1_700_000_000.0


def pool(worker: WorkerSpec) -> Pool:
    spec = PoolSpec(worker=worker)
    return Pool(id="p-1", name="linux", spec=spec, revision=revision_of(spec), state="live", source="api", created_at=0.0)


async def run(pod: WorldPod) -> int:
    """Runs an agent that does nothing, or one of the few commands that the contract and these tests order."""
    argv = pod.spec.worker.run
    if pod.agent or argv == FOREVER:
        await pod.sigterm.wait()
        return 0 if pod.agent else 143
    assert argv[:2] == ["sh", "-c"]
    if argv[2].startswith("trap '' TERM"):
        pod.stubborn = True
        await asyncio.get_running_loop().create_future()
    assert argv[2] == "sleep 0.3; exit 7"
    await asyncio.sleep(0.3)
    return 7


class RealClock:
    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class VirtualClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return WALL + self.now()


class SimStage:
    def __init__(self, clock: RealClock | VirtualClock | None = None, seed: int = 1) -> None:
        self.notes: list[tuple[str, str]] = []
        self.away = False  # whether the replicas cannot reach the cluster
        self.cut = False
        self.weather = Weather(start=(0.005, 0.01), latency=(0.0001, 0.001))
        self.source = random.Random(seed)
        self.world = World(clock or RealClock(), self.source, self._note, run, weather=self.weather)

    def _note(self, kind: str, text: str) -> None:
        self.notes.append((kind, text))

    def open(self, install: str = "one") -> SimCluster:
        source = random.Random(self.source.getrandbits(64))
        return SimCluster(self.world, install, b"key", source, lambda: self.away, lambda: self.cut)

    def order(self, worker: str, argv: list[str] = FOREVER) -> Order:
        return Order(worker=worker, pool=pool(WorkerSpec(run=argv, agent=False)), epoch=3)

    def order_with_agent(self, worker: str) -> Order:
        return Order(worker=worker, pool=pool(WorkerSpec()), epoch=3)

    def token(self, pod: Pod) -> str:
        return self.world.pods[pod.name].token

    def put_output(self, claim: str, data: bytes, *, truncated: bool = False) -> None:
        self.world.put_output(claim, data, truncated=truncated, age=300.0)


Scenario = Callable[..., Awaitable[None]]


def play_virtually(scenario: Scenario, seed: int = 1) -> SimStage:
    """Runs a scenario on a stage and its cluster. Time is virtual, so waiting costs nothing."""
    stage = SimStage(VirtualClock(), seed)

    async def main() -> None:
        await scenario(stage, stage.open())

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(random.Random(seed))) as runner:
        runner.run(main())
    return stage


def on_virtual_time(test: Scenario) -> Callable[..., None]:
    """Turns `async def test_…(stage, cluster, …)` into a test. Pytest provides the other arguments as fixtures."""

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        play_virtually(functools.partial(test, **fixtures))

    signature = inspect.signature(test)
    asked = [parameter for name, parameter in signature.parameters.items() if name not in ("stage", "cluster")]
    run.__signature__ = signature.replace(parameters=asked)  # type: ignore[attr-defined]
    return run


async def running(stage: SimStage, cluster: SimCluster, order: Order) -> WorldPod:
    """Creates a pod and returns the simulated pod itself as soon as it runs."""
    assert isinstance(await cluster.create(order), Pod)
    pod = stage.world.pods[order.name]
    while not pod.alive:
        await asyncio.sleep(0.1)
    return pod


async def seen(cluster: SimCluster, name: str = "w-1") -> Pod:
    """Returns an existing pod as the API shows it."""
    pod = await cluster.read(name)
    assert pod is not None
    return pod
