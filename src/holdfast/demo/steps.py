"""The steps of the local demo. In each step something happens to a real fleet, and the demo prints the figures."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..up import Up
from . import machine
from .base import Demo
from .leaks import Leaks
from .printer import BOLD, Printer, seconds
from .stage import LocalStage
from .traffic import Job, Traffic

LEASE = 6  # seconds; shorter than the outage, so that leases which ran on during the outage would end every session
PARK_TTL = 5
SERVE = """
import http.server, os, socketserver
class Handler(http.server.SimpleHTTPRequestHandler):
    def address_string(self): return "the agent"
socketserver.ThreadingUnixStreamServer(os.environ["SOCKET"], Handler).serve_forever()
"""
POOLS: dict[str, dict[str, Any]] = {
    "linux": {"mode": "job", "warm": 4, "max": 10},
    "notebook": {
        "mode": "session",
        "warm": 2,
        "max": 6,
        "worker": {"listen": "socket", "serve": [sys.executable, "-c", SERVE]},
        "claim": {"lease": f"{LEASE}s"},
        "park": {"ttl": f"{PARK_TTL}s"},
    },
}


class LocalDemo(Demo):
    def __init__(self, stage: LocalStage, printer: Printer, calm: float, outage: float) -> None:
        super().__init__(printer)
        self._stage = stage
        self._calm, self._outage = calm, outage
        self._up = Up(stage.plan)
        self.connect(stage.plan.urls, stage.token)
        self._traffic = Traffic(self._clients, stage.begun, stage.done)
        self._leaks = Leaks(self._observer, lambda: machine.workers(stage.home), "process", PARK_TTL)
        self._stop_long = stage.home / "stop"
        self._session_over = asyncio.Event()

    async def play(self) -> bool:
        """Runs all steps. Returns whether nothing was lost, doubled or leaked."""
        out = self._print
        out.line("Holdfast in a minute: a real fleet on this machine, and what it does when parts of it die.", BOLD)
        out.line("  lost     a job that did not run to its end, a session that broke under its holder")
        out.line("  doubled  a job that ran twice, a worker that two holders had at once")
        out.line("  leaked   a worker's process without a row or a row without a process, a worker parked past its time")
        return await self.run_steps([self.start, self.work, self.kill_a_replica, self.stop_postgres, self.finish, self.drain])

    async def close(self) -> None:
        """Stops the traffic, the replicas and Postgres, at any point of the demo."""
        await self.disconnect()
        await self._up.stop()

    # The steps

    async def start(self, number: int) -> None:
        self._print.step(number, "A fleet starts: Postgres, two replicas, a pool of jobs and a pool of sessions")
        begun = time.monotonic()

        async def all_live() -> bool:
            return await self.live() == len(self._stage.plan.urls)

        await self._up.start()
        await self.until(all_live, "the replicas are ready")
        for name, spec in POOLS.items():
            await self._clients[0].put_pool(name, spec)
        self._print.figure("Postgres and replicas ready after", seconds(time.monotonic() - begun))
        wanted = sum(int(spec["warm"]) for spec in POOLS.values())

        async def warm() -> bool:
            return await self.warm() >= wanted

        await self.until(warm, "the workers are warm")
        self._print.figure(f"{wanted} workers warm after", seconds(time.monotonic() - begun))
        self.watch()

    async def work(self, number: int) -> None:
        self._print.step(number, f"Jobs and sessions run for {self._calm:.0f} s; one job and one session stay to the end")
        since = time.monotonic()
        self._long_job = self._traffic.start_job(f'while test ! -e "{self._stop_long}"; do sleep 0.2; done')
        self._traffic.start_session("initech", self._session_over)
        self._traffic.start()
        await asyncio.sleep(self._calm)
        self.figures(since)
        self._print.proves("P1", "each worker went to one holder, by a warm hand-over instead of a start")

    async def kill_a_replica(self, number: int) -> None:
        self._print.step(number, "kill -9 of the replica that does most duties, while it works")
        victim = await self.busiest()
        assert victim.pid is not None
        before = await self._pids(self._long_job)
        os.kill(victim.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        self._print.figure("killed", f"pid {victim.pid}, {victim.url}, duties: {', '.join(sorted(victim.duties))}")
        await self.recovered(victim, killed_at)
        self._same(before, await self._pids(self._long_job))
        self._print.proves("P2", "a replica's death ends no worker under a claim")
        self._print.proves("P6", "another replica takes every duty over, within 15 s")
        self._print.proves("P8", "a claim whose answer was lost is requested again with its key, and runs once")

    async def stop_postgres(self, number: int) -> None:
        self._print.step(number, f"Postgres is stopped for {self._outage:.0f} s, longer than the sessions' lease of {LEASE} s")
        postgres = self._up.postgres
        assert postgres is not None
        before = await self._pids(self._long_job)
        since = time.monotonic()
        await asyncio.to_thread(postgres.stop)
        stopped_at = time.monotonic()
        await asyncio.sleep(self._outage)
        pages = sum(at > stopped_at for at in self._traffic.pages)
        await asyncio.to_thread(postgres.start)
        back_at = time.monotonic()
        self._print.figure("away for", seconds(back_at - stopped_at))
        self._print.figure("pages that sessions fetched in this time", str(pages))

        async def served() -> bool:
            return any(s.active_at > back_at for s in self._traffic.served)

        await self.until(served, "a claim is served")
        after = [s for s in self._traffic.served if s.active_at > back_at]
        self._print.figure("next claim served after its return", seconds(min(s.active_at for s in after) - back_at))
        await self.until(self._caught_up(back_at), "the claims of the outage are served")
        waited = [s for s in self._traffic.served if since < s.requested_at < back_at < s.active_at]
        if waited:
            last = seconds(max(s.active_at for s in waited) - back_at)
            self._print.figure("claims made in this time, last served", f"{len(waited)}, {last} after its return")
        self._same(before, await self._pids(self._long_job))
        self._print.proves("P7", "during the outage nothing is ended; a lease runs only while the holder can renew it")
        self._print.proves("P8", "claims made during the outage waited, and were served")

    async def finish(self, number: int) -> None:
        self._print.step(number, "No new work: the rest finishes, and every job is compared with the files that it wrote")
        self._stop_long.touch()
        self._session_over.set()
        await self.settle()

    async def drain(self, number: int) -> None:
        self._print.step(number, "The pools are deleted: every worker, parked ones included, must go")
        since = time.monotonic()
        for name in POOLS:
            await self._clients[0].delete_pool(name)

        async def gone() -> bool:
            return await self._leaks.look() == 0

        try:
            await self.until(gone, "every worker is gone")
            self._print.figure("all rows and processes gone after", seconds(time.monotonic() - since))
        except TimeoutError:
            self._left += [f"worker {name} still runs" for name in machine.workers(self._stage.home)]
            self._left += [f"worker {w.id} is still {w.state}" for w in (await self._clients[0].list_workers()).items]
        self._print.proves("P5", "nothing leaks")

    # Reading the state

    def _caught_up(self, moment: float) -> Callable[[], Awaitable[bool]]:
        """Returns a check whether all claims that were made before this moment have a worker."""

        async def none_waits() -> bool:
            return not any(asked_at < moment for asked_at in self._traffic.asking)

        return none_waits

    async def _pids(self, job: Job) -> set[int]:
        """Returns the pids of a running job's processes."""
        assert job.claim is not None
        assert job.claim.worker is not None
        running = await asyncio.to_thread(machine.workers, self._stage.home)
        return {process.pid for process in running.get(job.claim.worker, [])}

    def _same(self, before: set[int], after: set[int]) -> None:
        # The job's shell starts a new `sleep` five times per second, but shim, agent and shell must stay the same.
        kept = len(before & after)
        self._print.figure("the long job's processes", f"{kept} of shim, agent and shell are the same")
        if kept < 3:
            self._lost.append(f"the long job ran as {sorted(before)}, and now as {sorted(after)}")
