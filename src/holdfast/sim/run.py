"""Run one seed: build a fleet, apply the seed's faults and check the promises. Then heal everything; the fleet must converge."""

import asyncio
import gc
import hashlib
import logging
import random
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import msgspec
import structlog

from ..model.pod import Pod, Stamp
from ..model.pool import Pool, PoolSpec
from ..ports.cluster import Cluster, Order, Refused
from .agent import SimAgent
from .book import Book, Broken
from .chaos import Chaos
from .checks import Checks
from .cluster import SimCluster
from .faults import Fault, draw
from .gate import Gate, Line, name_of
from .healed import Healed
from .holder import Holder
from .loop import WORLD, Owner, VirtualLoop, owned_by, start
from .moments import OF_PODS, Moments, Target
from .network import Network
from .operator import TENANTS, Operator, token_of
from .pods import FORGED, WorldPod
from .process import KEY, ReplicaClock, ReplicaProcess
from .server import INSTALL, Postgres
from .tables import last_event
from .trace import Trace
from .world import World

EPOCH = 1_800_000_000.0
BEGIN = 1000.0  # virtual time at which a run begins, in seconds
WARM_UP, CHAOS = 30.0, 240.0


class BrokenPromise(msgspec.Struct, frozen=True):
    """The broken promise that a run found."""

    promise: str
    what: str
    at: float


class RunResult(msgspec.Struct, frozen=True):
    seed: str
    failure: BrokenPromise | None
    faults: list[Fault]
    lines: list[str]
    digest: str
    statements: int
    seconds: float  # virtual


class WorldClock:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return EPOCH + self._loop.time()


class Watched(SimCluster):
    """A replica's cluster that reports refusals to the checks, and effects to the replica's process."""

    def __init__(
        self, run: "Run", process: ReplicaProcess, source: random.Random, away: Callable[[], bool], cut: Callable[[], bool]
    ) -> None:
        super().__init__(run.world, INSTALL, KEY, source, away, cut)
        self._run = run
        self._process = process

    async def create(self, order: Order) -> Pod | Refused:
        answer = await super().create(order)
        if isinstance(answer, Refused):
            self._run.checks.refused(order.name)
        self._process.did_something()
        return answer

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        answer = await super().protect(name, uid, stamp)
        self._process.did_something()
        return answer

    async def delete(self, name: str, uid: str, grace: float) -> None:
        await super().delete(name, uid, grace)
        self._process.did_something()

    async def clear(self, name: str, uid: str, version: str) -> bool:
        answer = await super().clear(name, uid, version)
        self._process.did_something()
        return answer

    async def forget(self, name: str, uid: str) -> None:
        await super().forget(name, uid)
        self._process.did_something()


class Run:
    def __init__(self, seed: str, dsn: str, faults: list[Fault] | None = None, name: str = "") -> None:
        self.seed = seed
        self.install = INSTALL
        self.faults = draw(seed, WARM_UP, CHAOS) if faults is None else faults
        self.loop = VirtualLoop(self.stream("turns"), BEGIN)
        self.trace = Trace(self.loop.time, BEGIN)
        self.database_clock = 0.0
        postgres = Postgres(dsn, name or f"sim_{hashlib.sha256(seed.encode()).hexdigest()[:16]}")
        self.gate = Gate(postgres, lambda: EPOCH + self.loop.time() + self.database_clock)
        self.gate.ran = self._ran
        self.moments = Moments()
        self.book = Book()
        self.agents: dict[str, Owner] = {}
        self.processes: list[ReplicaProcess] = []
        self.quarantined: dict[str, None] = {}  # names of quarantined pods, in order
        self._bad = self.stream("habits").choice((0.0, 0.05, 0.25))
        self._event = 0
        self._unlooked = 0

    def stream(self, name: str) -> random.Random:
        """Returns the random source of one part of the run. It does not depend on what other parts draw."""
        return random.Random(f"{self.seed}/{name}")

    def run(self) -> RunResult:
        structlog.configure(processors=[self._logged], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        gc.collect()
        gc.disable()  # a collection at a random moment could change the run
        failure = None
        try:
            self.loop.run_until_complete(self._story())
        except Broken as broken:
            failure = BrokenPromise(broken.promise, broken.what, self.loop.time() - BEGIN)
            self.trace.line("BROKEN", broken.promise, broken.what)
        finally:
            self._dispose()
            gc.enable()
            self.gate.postgres.close()
        lines, seconds = self.trace.lines, self.loop.time() - BEGIN
        return RunResult(self.seed, failure, self.faults, lines, self.trace.digest, self.gate.statements, seconds)

    async def _story(self) -> None:
        self.world = World(WorldClock(self.loop), self.stream("world"), self._note, self._program, spawn_task=self._start_pod)
        self.checks = Checks(self.gate, self.world, self.book, INSTALL, self.loop.time)
        self.world.on_effect.append(self._changed)
        count = self.stream("replicas").choice((1, 2, 2, 3))
        self.processes = [self._process(f"r{number}") for number in range(1, count + 1)]
        self.network = Network(self.processes, self.stream("network"))
        self.operator = Operator(self.network, self.stream("operator"))
        self.operator.hand_out_tokens(self.gate)
        if self.stream("brake").random() < 0.25:
            self.gate.postgres.ask(self.gate.clock(), "UPDATE holdfast.installation SET brake_limit = 6, brake_share = 0.1")
        for name in ("w-job-00000000", "zz-theirs"):
            self.world.create_foreign(name)
        for process in self.processes:
            process.boot()
        await self.operator.prepare()
        holders = [self._holder(number, tenant) for number, tenant in enumerate([*TENANTS, *TENANTS])]
        chaos = Chaos(self)
        chaos.schedule(self.faults, BEGIN)
        asking = [start(Owner(f"holder-{number}"), holder.run()) for number, holder in enumerate(holders)]
        for task in asking:
            self.loop.watch(task)
        await asyncio.sleep(BEGIN + WARM_UP + CHAOS - self.loop.time())
        self.trace.line("heal", "", "everything is mended")
        for holder in holders:
            holder.stopping = True
        chaos.heal()
        await self.operator.settle()
        await Healed(self).converge()

    def _process(self, name: str) -> ReplicaProcess:
        def cluster(process: ReplicaProcess) -> Cluster:
            line = process.line  # the line of this boot; each boot has a new one
            source = self.stream(f"{name}/cluster/{process.boots}")
            return Watched(self, process, source, lambda: process.cluster_away, lambda: line.cut)

        return ReplicaProcess(name, self.gate, ReplicaClock(self.loop, EPOCH), self.stream(name), cluster)

    def _holder(self, number: int, tenant: str) -> Holder:
        source = self.stream(f"holder/{number}")
        return Holder(tenant, token_of(tenant), self.network, self.book, source, lambda claim: claim in self.checks.ended)

    # Pods

    def _program(self, pod: WorldPod) -> Coroutine[Any, Any, int]:
        source = self.stream(f"agent/{pod.name}/{pod.uid}")
        if pod.agent:
            return SimAgent(pod, self.network, self.book, source, self._bad, lambda: self.world.weather.hooks_fail).run()
        return self._bare(pod)

    async def _bare(self, pod: WorldPod) -> int:
        """Run a program without an agent, until SIGTERM."""
        await pod.sigterm.wait()
        return 0

    def _start_pod(self, pod: WorldPod, program: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
        owner = self.agents[pod.uid] = Owner(pod.name)
        return self.loop.watch(start(owner, program, name=pod.name))

    def impostor(self, pod: WorldPod) -> None:
        pool = self.checks.before and self.checks.before.workers.get(pod.name)
        if pool is None:
            return
        order = Order(worker=pod.name, pool=_pool_of(pod), epoch=pod.epoch)
        self.world.create(order, INSTALL, lambda worker, uid: f"{worker}.{uid}{FORGED}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.watch(start(Owner("operator"), work))

    def lift_outage(self) -> None:
        self.gate.down = False

    # Checks after each step

    def _ran(self, line: Line, sql: str, result: list[asyncpg.Record] | BaseException) -> None:
        name = name_of(sql)
        if name == "compared_beat" and not isinstance(result, BaseException):
            self.checks.heard()
        answer = type(result).__name__ if isinstance(result, BaseException) else str(len(result))
        self.trace.line("sql", line.name, f"{name} {answer}")
        self._unlooked += 1
        if name.startswith(("from ", "select")) and self._unlooked < 25:
            return  # a read
        last = last_event(self.gate.postgres, self.gate.clock())
        if last != self._event or self._unlooked >= 25:
            self._event, self._unlooked = last, 0
            with owned_by(WORLD):
                self.checks.statement()
            for event in self.checks.spread:
                if event.kind == "pod.quarantined" and event.worker:
                    self.quarantined[event.worker] = None
                about = " ".join(part for part in (event.claim, event.worker, event.also) if part)
                self.trace.line("event", event.kind, f"{about} {event.reason}".strip())
                for moment in (event.kind, event.also):
                    self.moments.happened(moment or "", Target(line.name, event.worker, event.claim))

    def _changed(self, kind: str, pod: WorldPod) -> None:
        if pod.install == INSTALL:
            self.moments.happened(OF_PODS.get(kind, ""), Target(worker=pod.name))

    def _note(self, kind: str, text: str) -> None:
        self.trace.line("cluster", kind, text)

    def _logged(self, _logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Add the product's log lines to the trace. A logged exception is a bug and ends the run."""
        self.trace.line("log", method, str(event["event"]))
        error = sys.exc_info()[1] if event.get("exc_info") else None
        if error is not None:
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
            what = f"{event['event']}: {type(error).__name__}: {error} at {where}"
            self.loop.failed = self.loop.failed or (error if isinstance(error, Broken) else Broken("defect", what))
        raise structlog.DropEvent

    def _dispose(self) -> None:
        """Cut all ports and cancel all tasks, so that nothing of this run acts in the next run."""
        self.gate.down, self.gate.ran = True, None
        self.world.on_effect.clear()
        for process in self.processes:
            process.line.cut = True
        self.loop.end_all()


def _pool_of(pod: WorldPod) -> Pool:
    return Pool(id=pod.pool_id, name=pod.pool, spec=PoolSpec(), revision=pod.revision, state="live", source="api", created_at=0.0)
