"""A whole fleet on one machine: Postgres, replicas that are started again when they die, and pools from a file."""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .ports.store import StoreUnavailable
from .postgres.embedded import EmbeddedPostgres, PostgresFailed, find_binaries
from .postgres.store import PostgresStore
from .wiring import Layout, Settings, admit, connect

STOP_SECONDS = 15.0  # a replica answers its waiters and leaves within 5 s
STABLE = 10.0  # a replica that lived this long may be started again at once


@dataclass(frozen=True)
class Plan:
    """What `holdfast up` was asked for."""

    data_dir: Path
    port: int = 7070
    replicas: int = 1
    dsn: str | None = field(default=None, repr=False)
    stop_workers: bool = False
    host: str = "127.0.0.1"
    pooled: bool = False  # the DSN leads through PgBouncer

    @property
    def urls(self) -> list[str]:
        return [f"http://{self.host}:{self.port + n}" for n in range(self.replicas)]


def prepare(plan: Plan) -> Layout:
    """The files that must be there before a replica starts."""
    layout = Layout(plan.data_dir.absolute())
    layout.ensure()
    layout.announce(plan.urls, only=True)
    return layout


class Up:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.layout = prepare(plan)
        self.postgres: EmbeddedPostgres | None = None
        self._asked = asyncio.Event()  # somebody wants us to stop
        self._hurry = asyncio.Event()  # … and asked twice: without waiting for busy workers
        self._stopping = asyncio.Event()  # replicas that end now are not started again
        self._lock: int | None = None
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._lock = _only_one(self.layout.root)
        dsn = self.plan.dsn
        if dsn is None:
            self.postgres = EmbeddedPostgres(self.layout.postgres, find_binaries())
            say(f"Postgres  {'running' if self.postgres.running() else 'starting'} in {self.layout.postgres}")
            await asyncio.to_thread(self.postgres.start)
            dsn = self.postgres.dsn
        self._dsn = dsn
        store = await self._store()
        try:
            await store.fleet.stop_workers(False)
            token = self.layout.token.read_text().strip()
            await admit(store, token)
        finally:
            await store.close()
        if self.postgres is not None:
            self._keepers.append(asyncio.create_task(self._keep_postgres(self.postgres)))
        for n in range(self.plan.replicas):
            self._keepers.append(asyncio.create_task(self._keep_alive(self.plan.port + n)))

    async def _store(self) -> PostgresStore:
        settings = Settings(dsn=self._dsn, data_dir=self.layout.root, pooled=self.plan.pooled)
        return await connect(settings, self.layout.install.read_text().strip())

    async def _keep_alive(self, port: int) -> None:
        """A replica that dies is started again: at once if it had lived, later and later if it had not."""
        pause = 0.2
        while not self._stopping.is_set():
            born = time.monotonic()
            process = await self._launch(port)
            self._processes[port] = process
            code = await process.wait()
            if self._stopping.is_set():
                return
            lived = time.monotonic() - born
            pause = 0.2 if lived > STABLE else min(pause * 2, 10.0)
            say(f"Replica   on port {port} ended ({code}) after {lived:.0f} s; started again in {pause:.1f} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _keep_postgres(self, postgres: EmbeddedPostgres) -> None:
        """A server that crashed is started again. One that was stopped in order is somebody's wish."""
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1)
            if self._stopping.is_set() or not postgres.crashed():
                continue
            say("Postgres  crashed; starting it again")
            try:
                await asyncio.to_thread(postgres.start)
            except PostgresFailed as error:
                say(f"Postgres  {error}")

    async def _launch(self, port: int) -> asyncio.subprocess.Process:
        # The DSN holds a password: it goes by the environment, which other users cannot read, not by the command line.
        environment = {**os.environ, "HOLDFAST_DSN": self._dsn, "HOLDFAST_SUPERVISOR": str(os.getpid())}
        arguments = [
            "serve",
            "--data-dir",
            str(self.layout.root),
            "--host",
            self.plan.host,
            "--port",
            str(port),
            *(["--pooled"] if self.plan.pooled else []),
        ]
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", *arguments, env=environment, start_new_session=True
        )

    def stop_soon(self) -> None:
        """Asked once: in order. Asked again: without waiting for workers."""
        if self._asked.is_set():
            self._hurry.set()
        self._asked.set()

    async def run(self) -> None:
        """Until somebody asks to stop."""
        await self._asked.wait()

    async def stop(self) -> None:
        """Only what is ours: replicas first, then Postgres. Busy workers go on, and report after the next start."""
        if self.plan.stop_workers and self._lock is not None:
            await self._drain()
        self._stopping.set()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(self._ended(process) for process in self._processes.values()))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        if self.postgres is not None and self._lock is not None:
            say("Postgres  stopping")
            await asyncio.to_thread(self.postgres.stop)
        if self._lock is not None:
            os.close(self._lock)

    async def _ended(self, process: asyncio.subprocess.Process) -> None:
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _drain(self) -> None:
        """Free workers go, busy ones finish: wait for the last, and say how many are left."""
        try:
            store = await asyncio.wait_for(self._store(), 10)
        except TimeoutError:
            say("Workers   not drained: Postgres does not answer")
            return
        try:
            await store.fleet.stop_workers(True)
            said = -1
            while True:
                workers, _ = await store.workers.find(pool=None, state=None, limit=1000, cursor=None)
                held = sum(worker.state == "held" for worker in workers)
                if len(workers) != said:
                    say(f"Workers   {len(workers)} left, {held} of them busy" if workers else "Workers   all gone")
                    said = len(workers)
                if not workers or self._hurry.is_set():
                    return
                await asyncio.sleep(0.5)
        except StoreUnavailable as error:
            say(f"Workers   not drained: {error}")
        finally:
            await store.close()


class AlreadyUp(Exception):
    """Another `holdfast up` runs on this data directory."""


def _only_one(root: Path) -> int:
    """One fleet a data directory: a second one would stop the first one's Postgres when it leaves."""
    lock = os.open(root / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode().strip()
        os.close(lock)
        raise AlreadyUp(f"another `holdfast up` (pid {owner or 'unknown'}) runs on {root}") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


Then = Callable[[Plan, Layout], Coroutine[Any, Any, None]]


async def up(plan: Plan, then: Then) -> None:
    """Start, do `then` beside it (apply pools, greet), run until a signal, stop."""
    fleet = Up(plan)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, fleet.stop_soon)
    try:
        await fleet.start()
        greeting = asyncio.create_task(then(plan, fleet.layout))
        running = asyncio.create_task(fleet.run())
        await asyncio.wait([greeting, running], return_when=asyncio.FIRST_COMPLETED)
        if greeting.done():
            greeting.result()  # a bad pools file ends `up` with its reason
        await running
        greeting.cancel()
    finally:
        await fleet.stop()
