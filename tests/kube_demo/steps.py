"""The demo on a cluster, in eight steps. Each step does something to a real fleet of pods and prints figures."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from kube_fleet import KubeFleet

from holdfast.demo.base import Demo
from holdfast.demo.leaks import Leaks
from holdfast.demo.printer import BOLD, Printer, seconds
from holdfast.demo.traffic import Traffic
from holdfast_testcluster import binaries

from .drain import Drain
from .pools import PARK_TTL, POOLS
from .stage import INSTALLED, NODES, REPLICAS, ClusterStage

T = TypeVar("T")
JOB_EVERY = 1.5  # seconds; a pod and its containers cost a core about one second
REFUSALS = 2  # kubectl retries every 5 s
SCALED = 5  # free sessions; there are 3 at the start
LONG_TENANT = "initech"


class ClusterDemo(Demo):
    def __init__(self, stage: ClusterStage, printer: Printer, calm: float) -> None:
        super().__init__(printer)
        self._stage, self._calm = stage, calm
        self._begun = time.monotonic()
        self._fleet: KubeFleet
        self._stop_long = stage.home / "stop"
        self._session_over = asyncio.Event()

    async def play(self) -> bool:
        """Runs all steps. Returns whether nothing was lost, doubled or leaked."""
        out = self._print
        out.line("Holdfast on Kubernetes in a minute: a real control plane, a replica that dies, a node that is drained.", BOLD)
        out.line("  lost     a job that did not run to its end, a session that broke under its holder")
        out.line("  doubled  a job that ran twice, a worker that two holders had at once")
        out.line("  leaked   a pod without a row or a row without a pod, a worker parked past its time")
        steps = [self.start, self.declare, self.work, self.kill_a_replica, self.drain_a_node, self.scale, self.finish, self.leave]
        return await self.run_steps(steps)

    async def close(self) -> None:
        """Releases what is held, and stops replicas, Postgres, nodes and control plane, at whatever step the demo is."""
        await self.disconnect()
        await asyncio.to_thread(self._stage.stop)

    # The steps

    async def start(self, number: int) -> None:
        self._print.step(number, f"A cluster starts, with {NODES} nodes that run pods as processes; Holdfast is installed")
        begun = time.monotonic()
        await aside(self._stage.start_cluster)
        self._print.figure(f"Kubernetes {binaries.version()} ready after", seconds(time.monotonic() - begun))
        applied = await aside(self._stage.install)
        self._print.figure("objects of `holdfast manifests`", f"{len(applied)}: {', '.join(INSTALLED[:4])}, …")
        begun = time.monotonic()
        self._fleet = await aside(self._stage.start_fleet)
        self._print.figure(f"Postgres and {REPLICAS} replicas ready after", seconds(time.monotonic() - begun))
        self.connect([f"http://127.0.0.1:{port}" for port in self._fleet.ports], self._fleet.token)
        self._traffic = Traffic(self._clients, self._stage.begun, self._stage.done, JOB_EVERY)
        self._leaks = Leaks(self._observer, self._stage.workers, "pod", PARK_TTL)

    async def declare(self, number: int) -> None:
        self._print.step(number, "Two pools are declared as objects: one of jobs, one of sessions")
        begun = time.monotonic()
        await self._kubectl("apply", "-f", "pools.yaml", input=yaml.safe_dump_all(POOLS))
        for pool in POOLS:
            await self._until_free(pool["metadata"]["name"], pool["spec"]["warm"])
        self._print.figure("all of them warm after", seconds(time.monotonic() - begun))
        await self._kubectl("get", "workerpools")
        self.watch()

    async def work(self, number: int) -> None:
        self._print.step(number, f"Jobs and sessions flow, for {self._calm:.0f} s; one of each stays")
        since = time.monotonic()
        self._long_job = self._traffic.start_job(f'while test ! -e "{self._stop_long}"; do sleep 0.2; done')
        self._traffic.start_session(LONG_TENANT, self._session_over)
        self._traffic.start()
        await asyncio.sleep(self._calm)
        await self.until(lambda: _now(self._long_job.claim is not None), "the long job runs")
        self.figures(since)
        self._print.proves("P1", "each pod went to one holder, by a warm hand-over instead of a start")
        self._print.proves("P3", "and was protected from evictions before its holder learned of it")

    async def kill_a_replica(self, number: int) -> None:
        self._print.step(number, "kill -9 of the replica that does most of the duties, in the middle of it")
        victim = await self.busiest()
        n = next(n for n, process in self._fleet.replicas.items() if process.pid == victim.pid)
        before = await self._long_process()
        await aside(lambda: self._fleet.kill(n))
        killed_at = time.monotonic()
        self._print.figure("killed", f"pid {victim.pid}, {victim.url}, duties: {', '.join(sorted(victim.duties))}")
        self._fleet.start(n)  # as a Deployment would restart it
        await self.recovered(victim, killed_at)
        after = await self._long_process()
        self._print.figure("the long job", f"is process {after} still" if before == after else f"was {before}, is {after}")
        if before != after:
            self._lost.append(f"the long job ran as process {before}, and now as {after}")
        self._print.proves("P2", "a replica's death ends no pod under a claim")
        self._print.proves("P6", "another replica takes every duty over, within 15 s")

    async def drain_a_node(self, number: int) -> None:
        self._print.step(number, "A node is cordoned and drained while a job runs on it that takes its time")
        node, begun = await self._node_of(self._long_worker), time.monotonic()
        before = await aside(lambda: self._stage.on(node))
        await self._kubectl("cordon", node)
        busy = await self._until_only_busy(node)
        self._print.figure("its free workers have left it after", seconds(time.monotonic() - begun))
        self._print.figure("of its workers, gone / still busy", f"{len(before - busy)} / {len(busy)}")
        async with Drain(self._stage.plane, self._stage.kubeconfig, node) as drain:
            await self.until(lambda: _now(drain.refused(self._long_worker) >= REFUSALS), "the drain has to wait")
            self._print.figure("evictions that were refused meanwhile", f"{drain.refused()}: a budget protects busy pods")
            opened = time.monotonic()
            self._stop_long.touch()
            if self._long_session_on in busy:  # the holder of this session has to release it as well
                self._session_over.set()
            self._print.command(f"kubectl {' '.join(drain.arguments)}", await drain.ended())
        self._print.figure("done after its last job has", seconds(time.monotonic() - opened))
        left = await aside(lambda: self._stage.on(node))
        self._left += [f"worker {name} is on {node} after its drain" for name in left]
        job = self._long_job.claim
        self._print.figure("the long job", f"{job.outcome}, attempts: {job.attempts}" if job else "was never served")
        self.figures(begun)
        await self._kubectl("uncordon", node)
        self._print.proves("P2", "a drain waits for busy pods, and for no others")

    async def scale(self, number: int) -> None:
        self._print.step(number, "The pool of sessions is scaled, as an autoscaler would do it")
        begun = time.monotonic()
        await self._kubectl("scale", "workerpool", "notebook", f"--replicas={SCALED}")
        await self._until_free("notebook", SCALED)
        self._print.figure(f"{SCALED} are free after", seconds(time.monotonic() - begun))
        await self._kubectl("get", "workerpool", "notebook")

    async def finish(self, number: int) -> None:
        self._print.step(number, "No new work: what is under way finishes, and every job is looked up in its own marks")
        self._stop_long.touch()
        self._session_over.set()
        await self.settle()

    async def leave(self, number: int) -> None:
        self._print.step(number, "The pools are deleted: every worker, parked ones included, must go")
        begun = time.monotonic()
        await self._kubectl("delete", "workerpools", "--all")

        async def gone() -> bool:
            return await self._leaks.look() == 0

        try:
            await self.until(gone, "every worker is gone")
            self._print.figure("all rows, pods and processes gone after", seconds(time.monotonic() - begun))
        except TimeoutError:
            self._left += [f"worker {name} still runs" for name in await aside(self._stage.workers)]
            self._left += [f"worker {name} is still {row['state']}" for name, row in (await self._leaks.rows()).items()]
        self._print.figure("the whole story took", seconds(time.monotonic() - self._begun))
        self.figures(self._begun)
        self._print.proves("P5", "nothing leaks")

    # Reads

    async def _kubectl(self, *args: str, input: str | None = None) -> None:
        """Runs kubectl and prints the command as a user would type it. `input` takes the place of the named YAML file."""
        given = ["-" if input is not None and each.endswith(".yaml") else each for each in args]
        printed = await aside(lambda: self._stage.kubectl(*given, input=input))
        self._print.command(f"kubectl {' '.join(args)}", printed)

    async def _until_free(self, pool: str, count: int) -> None:
        async def free() -> bool:
            return await aside(lambda: self._stage.free(pool)) >= count

        await self.until(free, f"{count} workers of {pool} are free")

    async def _until_only_busy(self, node: str) -> set[str]:
        """Waits until no free worker is left on the node. Returns the busy ones."""
        busy: set[str] = set()

        async def only_busy() -> bool:
            rows = await self._leaks.rows()
            held = {name for name, row in rows.items() if row["state"] == "held"}
            here = await aside(lambda: self._stage.on(node))
            busy.clear()
            busy.update(here & held)
            return here <= held

        await self.until(only_busy, f"the free workers leave {node}")
        return busy

    @property
    def _long_worker(self) -> str:
        job = self._long_job
        assert job.claim is not None, job.failure or "the long job waits"
        assert job.claim.worker is not None
        return job.claim.worker

    async def _long_process(self) -> int | None:
        return await aside(lambda: self._stage.process_of(self._long_worker))

    async def _node_of(self, worker: str) -> str:
        rows: dict[str, dict[str, Any]] = await self._leaks.rows()
        self._long_session_on = next((name for name, row in rows.items() if row["tenant"] == LONG_TENANT), None)
        return str(rows[worker]["node"])


async def _now(value: bool) -> bool:
    return value


async def aside(work: Callable[[], T]) -> T:
    """Runs blocking work in a thread. A cancelled caller still waits for it, so that nothing is started after the clean-up."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await task
        raise
