"""Simulate one setting on one trace: a replica with the production wiring and the real SQL, on virtual time, without faults."""

import asyncio
import gc
import logging
import math
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import structlog

from ..api.auth import hash_token
from ..duties.scale import free_target, plan_pool
from ..model.pool import PoolSpec
from ..model.tenant import TenantSpec
from ..ports.cluster import Cluster
from ..ports.store import PoolLoad
from ..postgres.notices import Kind
from ..running.replica import Replica
from ..sim.cluster import SimCluster
from ..sim.gate import Gate
from ..sim.loop import Owner, VirtualLoop, start
from ..sim.network import Network
from ..sim.operator import ADMIN, HAND_OUT
from ..sim.pods import Weather, WorldPod
from ..sim.process import KEY, ReplicaClock, ReplicaProcess
from ..sim.run import BEGIN, EPOCH, WorldClock
from ..sim.server import INSTALL, Postgres
from ..sim.world import World
from .agenda import Agenda
from .agent import Defect, PlannedAgent
from .figures import Figures, percentile
from .holder import Holders
from .meter import Meter
from .trace import Trace

SEED = 1
TICK = 0.05  # seconds; the resolution of the database's clock, so that a chain of statements does not set the clock each time
# Seconds. These duties run less often, because they repair faults that do not occur here: lost notices, stalled hand-overs, and
# deleted pools.
BACKSTOPS = {"match": 10.0, "deadlines": 10.0, "pools": 60.0}
COLLECT = 500  # claims between two garbage collections, which run only at these fixed moments
AGE = """
WITH p AS (UPDATE holdfast.pool SET shrunk_at = shrunk_at - make_interval(secs => $1) WHERE shrunk_at IS NOT NULL)
UPDATE holdfast.ending SET at = at - make_interval(secs => $1)
"""


class Unfit(Exception):
    """No cluster could run a worker of this pool's spec."""


class Setting(msgspec.Struct, frozen=True):
    """A pool's spec with its number of warm workers, and how long its workers take to start (from, to)."""

    pool: str
    spec: PoolSpec
    start_time: tuple[float, float]
    tenants: dict[str, TenantSpec]


class Quiet(SimCluster):
    """A cluster whose watch reports only ends of pods, to save reads. The next full pass sees starts and protections, and the
    agent reports when its worker is ready. Pods without an agent are watched completely."""

    async def changes(self) -> AsyncIterator[set[str]]:
        ended: asyncio.Queue[str] = asyncio.Queue()

        def report(pod: WorldPod) -> None:
            if pod.phase == "ended" or not pod.agent:
                ended.put_nowait(pod.name)

        self._world.watchers.append(report)
        while True:
            yield {await ended.get()}


class PlannedFleet:
    """Runs one setting. With `exact` it skips no time and runs everything as often as production does; the tests compare both."""

    def __init__(
        self, setting: Setting, trace: Trace, dsn: str, progress: Callable[[float], None], *, exact: bool = False
    ) -> None:
        self._setting = setting
        self._trace = trace
        self._progress = progress
        self._exact = exact
        self._loop = VirtualLoop(self._stream("turns"), BEGIN)
        postgres = Postgres(dsn, f"plan_{os.getpid()}_{setting.spec.warm}")
        self._gate = Gate(postgres, lambda: EPOCH + math.floor(self._loop.time() / TICK) * TICK)
        self._agents: dict[str, PlannedAgent] = {}
        self._holders: Holders | None = None
        self._meter = Meter()
        self._reported_at = time.monotonic()

    def _stream(self, name: str) -> random.Random:
        return random.Random(f"{SEED}/{name}")  # noqa: S311 - the same random numbers for all settings

    def run(self) -> Figures:
        """Runs the simulation. Needs its own process, because it changes logging and garbage collection for the whole process."""
        structlog.configure(processors=[self._logged], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        gc.disable()
        began = time.monotonic()
        try:
            self._loop.run_until_complete(self._story())
        finally:
            self._dispose()
        return self._figures(time.monotonic() - began)

    async def _story(self) -> None:
        weather = Weather(start=self._setting.start_time)
        clock = WorldClock(self._loop)
        self._world = World(clock, self._stream("world"), lambda _kind, _text: None, self._program, spawn_task=self._start_pod,
                            weather=weather)  # fmt: skip
        self._world.watchers.append(self._meter.saw)
        self._process = ReplicaProcess("plan", self._gate, ReplicaClock(self._loop, EPOCH), self._stream("plan"), self._cluster)
        self._network = Network([self._process], self._stream("network"))
        self._gate.postgres.ask(self._gate.clock(), HAND_OUT, "t-0", hash_token(ADMIN), "plan", "admin", None)
        self._process.boot()
        await asyncio.sleep(TICK)  # a separate task builds the replica
        for duty, period in ({} if self._exact else BACKSTOPS).items():
            self._replica.duties[duty].period = period
        self._loop.watch(start(Owner("notices"), self._notices()))
        await self._prepare()
        self._agenda = Agenda(self._at_rest, self._age)
        self._meter.now = self._agenda.now
        holders = self._holders = Holders(self._setting.pool, self._setting.spec, self._network, self._agenda, self._meter)
        self._loop.watch(start(Owner("agenda"), self._agenda.run(leaps=not self._exact)))
        following = []
        for number, arrival in enumerate(self._trace.arrivals, 1):
            await self._agenda.at(arrival.at)
            following.append(self._loop.watch(start(Owner(f"holder-{number}"), holders.follow(arrival))))
            self._report_progress(arrival.at)
            if number % COLLECT == 0:
                gc.collect()
        await asyncio.gather(*following)

    async def _prepare(self) -> None:
        """Creates the tenants and the pool, and waits until all its warm workers are ready."""
        for tenant, limits in self._setting.tenants.items():
            await self._call_until_ready("PUT", f"/v1/tenants/{tenant}", msgspec.to_builtins(limits))
        await self._call_until_ready("PUT", f"/v1/pools/{self._setting.pool}", msgspec.to_builtins(self._setting.spec))
        rest = False
        while not rest:
            await asyncio.sleep(1)
            rest = await self._at_rest()
            if trouble := (await self._load()).pool.trouble:
                raise Unfit(f"a worker of this pool cannot start: {trouble}")

    async def _call_until_ready(self, method: str, path: str, body: Any) -> None:
        """Repeats the call while the answer is 503, because a new replica answers so until its first beat is stored."""
        answer = await self._network.call(method, path, ADMIN, body)
        while answer.status == 503:
            await asyncio.sleep(0.5)
            answer = await self._network.call(method, path, ADMIN, body)
        if answer.status >= 300:
            raise Defect(f"{method} {path} was answered {answer.status}: {answer.body}")

    @property
    def _replica(self) -> Replica:
        assert self._process.wired is not None
        return self._process.wired.replica

    def _dispose(self) -> None:
        self._gate.down = self._process.line.cut = True
        self._loop.end_all()
        self._gate.postgres.close()

    # Rest

    async def _at_rest(self) -> bool:
        """Returns whether nothing would happen until the next claim arrives or ends: all pods run, no claim waits, and the
        scaling code has nothing to do now or later."""
        if any(pod.phase != "running" for pod in self._world.pods.values()):
            return False
        load = await self._load()
        moving = load.spawning + load.retiring + load.parked + load.unusable + load.waiting
        settled = load.warm == free_target(load) or load.warm + load.held == load.pool.spec.max
        waiting = self._holders.waiting if self._holders is not None else 0
        return not moving and not waiting and settled and not plan_pool(load)

    async def _load(self) -> PoolLoad:
        (load,) = await self._replica.ports.store.pools.loads()
        return load

    def _age(self, by: float) -> None:
        """Makes the only two stored times that scaling uses older: its last step down, and the endings that the brake counts."""
        self._gate.postgres.ask(self._gate.clock(), AGE, by)

    # Parts

    def _cluster(self, process: ReplicaProcess) -> Cluster:
        line, kind = process.line, SimCluster if self._exact else Quiet
        return kind(self._world, INSTALL, KEY, self._stream("cluster"), lambda: False, lambda: line.cut)

    def _program(self, pod: WorldPod) -> Coroutine[Any, Any, int]:
        if not pod.agent:
            return self._bare(pod)
        agent = self._agents[pod.name] = PlannedAgent(pod, self._network, lambda: self._agenda)
        return agent.run()

    async def _bare(self, pod: WorldPod) -> int:
        await pod.sigterm.wait()
        return 0

    def _start_pod(self, pod: WorldPod, program: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
        return self._loop.watch(start(Owner(pod.name), program, name=pod.name))

    async def _notices(self) -> None:
        """Wakes an agent by the same notices that wake its poll in the server."""
        line = self._gate.line("agents", self._stream("notices"))
        notices: asyncio.Queue[tuple[Kind, list[str]]] = asyncio.Queue()
        line.hears = notices
        while True:
            kind, ids = await notices.get()
            for worker in ids if kind == "w" else ():
                if worker in self._agents:
                    self._agents[worker].noticed.set()

    def _logged(self, _logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Drops all log lines. A logged exception ends the plan, because a fleet without faults must not raise one."""
        error = sys.exc_info()[1] if event.get("exc_info") else None
        if error is not None:
            self._loop.failed = self._loop.failed or Defect(f"{event['event']}: {type(error).__name__}: {error}")
        raise structlog.DropEvent

    # Results

    def _report_progress(self, at: float) -> None:
        if time.monotonic() - self._reported_at >= 0.5:
            self._reported_at = time.monotonic()
            self._progress(at / (self._trace.horizon or 1.0))

    def _figures(self, took: float) -> Figures:
        meter, until = self._meter, max(self._trace.horizon, self._meter.end)
        workers, waits = meter.worker_seconds(until), sorted(meter.waits)
        return Figures(
            warm=self._setting.spec.warm,
            claims=len(waits),
            refused=meter.refused,
            p50=percentile(waits, 50),
            p95=percentile(waits, 95),
            p99=percentile(waits, 99),
            longest=waits[-1],
            utilisation=round(meter.busy_seconds(until) / workers, 4) if workers else 0.0,
            worker_hours=round(workers / 3600, 3),
            most_workers=meter.most_workers(),
            leapt=round(self._agenda.leapt, 1),
            statements=self._gate.statements,
        )
