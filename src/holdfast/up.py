"""Runs a whole fleet on one machine: Postgres, and replicas that are restarted when they die."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .local import addresses
from .local.addresses import http_url
from .local.layout import Layout, only_one
from .local.listening import PortTaken, check_free, replica_left_over
from .ports.store import StoreUnavailable
from .postgres.embedded import EmbeddedPostgres, PostgresFailed, find_binaries
from .postgres.store import PostgresStore
from .unix_socket import to_url
from .wiring import Settings, admit, connect

T = TypeVar("T")

STOP_SECONDS = 15.0  # a replica answers its waiting requests and exits within 5 s
STABLE = 10.0  # seconds; a replica that ran this long is restarted at once


@dataclass(frozen=True)
class Plan:
    """The options of `holdfast up`."""

    data_dir: Path
    port: int = 7070
    replicas: int = 1
    dsn: str | None = field(default=None, repr=False)
    stop_workers: bool = False
    host: str = "127.0.0.1"
    pooled: bool = False  # whether the DSN connects through PgBouncer
    insecure: bool = False  # whether replicas may listen on an address that other machines reach

    @property
    def ports(self) -> range:
        return range(self.port, self.port + self.replicas)

    @property
    def urls(self) -> list[str]:
        return [self.url(port) for port in self.ports]

    def url(self, port: int) -> str:
        return http_url(self.host, port)


def prepare(plan: Plan) -> Layout:
    """Creates the files that a replica needs before it starts, and returns their paths."""
    layout = Layout(plan.data_dir.absolute())
    if opened := layout.ensure():
        print_line(f"Data      other users could read {', '.join(opened)} in {layout.root}; closed now")
    addresses.plan(layout, {port: plan.url(port) for port in plan.ports})
    return layout


class Up:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.layout = Layout(plan.data_dir.absolute())
        self.postgres: EmbeddedPostgres | None = None
        self._asked = asyncio.Event()  # set by the first signal: stop
        self._hurry = asyncio.Event()  # set by the second signal: do not wait for busy workers
        self._stopping = asyncio.Event()  # once set, a replica that exits is not restarted
        self._lock: int | None = None
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts Postgres and the replicas. Returns early, without replicas, if a stop is requested before Postgres answers."""
        self._lock = only_one(self.layout.root)
        for port in self.plan.ports:
            await self._until_free(port)
        if self._asked.is_set():
            return
        prepare(self.plan)  # after the checks, so that a refused `up` does not send agents to other addresses
        dsn = self.plan.dsn
        if dsn is None:
            self.postgres = EmbeddedPostgres(self.layout.postgres, find_binaries())
            print_line(f"Postgres  {'running' if self.postgres.running() else 'starting'} in {self.layout.postgres}")
            await asyncio.to_thread(self.postgres.start)
            dsn = self.postgres.dsn
        self._dsn = dsn
        store = await self._unless_stopped(self._store())
        if store is None:
            return
        try:
            await store.fleet.stop_workers(False)
            token = self.layout.token.read_text().strip()
            await admit(store, token)
        finally:
            await store.close()
        if self.postgres is not None:
            self._keepers.append(asyncio.create_task(self._keep_postgres(self.postgres)))
        for port in self.plan.ports:
            self._keepers.append(asyncio.create_task(self._keep_alive(port)))

    async def _store(self) -> PostgresStore:
        settings = Settings(dsn=self._dsn, data_dir=self.layout.root, pooled=self.plan.pooled)
        return await connect(settings, self.layout.install.read_text().strip(), on_delay=_print_delay)

    async def _until_free(self, port: int) -> None:
        """Waits for the end of a replica that an `up` left over when it was killed. Raises PortTaken for any other listener."""
        deadline = time.monotonic() + STOP_SECONDS
        printed = False
        while not self._asked.is_set():
            try:
                check_free(self.plan.host, port)
                return
            except PortTaken:
                if time.monotonic() > deadline or not replica_left_over(self.layout.root, port):
                    raise
            if not printed:
                print_line(f"Replica   of an earlier `holdfast up` still ends on port {port}; waiting for it")
                printed = True
            await asyncio.sleep(0.2)

    async def listening(self) -> list[str]:
        """Waits until a replica listens on its socket, and returns the addresses of all sockets that do. No other user can listen
        there, so the operator's token may be sent to them."""
        sockets = [addresses.socket_of(self.layout, port) for port in self.plan.ports]
        while True:
            if found := [to_url(path) for path in sockets if addresses.listens(path)]:
                return found
            await asyncio.sleep(0.1)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Returns the result of `work`, or None if a stop is requested before it ends. Otherwise Ctrl-C would have no effect
        while `work` waits for a Postgres that does not answer."""
        task, asked = asyncio.create_task(work), asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            asked.cancel()
            await asyncio.wait([task, asked])

    async def _keep_alive(self, port: int) -> None:
        """Restarts a replica whenever it exits. The pause doubles each time, up to 10 s, and is short again after a replica ran
        for longer than STABLE."""
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
            print_line(f"Replica   on port {port} ended ({code}) after {lived:.0f} s; started again in {pause:.1f} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _keep_postgres(self, postgres: EmbeddedPostgres) -> None:
        """Restarts Postgres after a crash. A Postgres that was stopped cleanly stays down, because an operator did that."""
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1)
            if self._stopping.is_set() or not postgres.crashed():
                continue
            print_line("Postgres  crashed; starting it again")
            try:
                await asyncio.to_thread(postgres.start)
            except PostgresFailed as error:
                print_line(f"Postgres  {error}")

    async def _launch(self, port: int) -> asyncio.subprocess.Process:
        # The DSN holds a password. It is passed in the environment, because other users can read the command line.
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
            *(["--insecure"] if self.plan.insecure else []),
        ]
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", *arguments, env=environment, start_new_session=True
        )

    def stop_soon(self) -> None:
        """Requests a stop. A second call also skips the wait for busy workers."""
        if self._asked.is_set():
            self._hurry.set()
        self._asked.set()

    @property
    def stopped_early(self) -> bool:
        """Returns whether `start` returned without replicas, because a stop was requested."""
        return not self._keepers

    async def run(self) -> None:
        """Returns when a stop is requested."""
        await self._asked.wait()

    async def stop(self) -> None:
        """Stops the replicas, and then Postgres if this process started it. Busy workers continue, and report their results
        after the next start."""
        if self.plan.stop_workers and self._keepers:
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
            print_line("Postgres  stopping")
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
        """Ends free workers, waits until busy ones finish, and prints how many are left."""
        try:
            store = await asyncio.wait_for(self._store(), 10)
        except TimeoutError:
            print_line("Workers   not drained: Postgres does not answer")
            return
        try:
            await store.fleet.stop_workers(True)
            printed = -1
            while True:
                workers, _ = await store.workers.find(pool=None, state=None, limit=1000, cursor=None)
                held = sum(worker.state == "held" for worker in workers)
                if len(workers) != printed:
                    print_line(f"Workers   {len(workers)} left, {held} of them busy" if workers else "Workers   all gone")
                    printed = len(workers)
                if not workers or self._hurry.is_set():
                    return
                await asyncio.sleep(0.5)
        except StoreUnavailable as error:
            print_line(f"Workers   not drained: {error}")
        finally:
            await store.close()


def _print_delay(reason: StoreUnavailable) -> None:
    print_line(f"Postgres  {reason}; trying again, Ctrl-C stops")


def print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


Then = Callable[[Plan, Layout, list[str]], Coroutine[Any, Any, None]]


async def up(plan: Plan, then: Then) -> None:
    """Starts the fleet, runs `then` (applies pools and prints the next steps) with the URLs of replicas that listen, waits for a
    signal, and stops the fleet."""
    fleet = Up(plan)

    async def greet() -> None:
        await then(plan, fleet.layout, await fleet.listening())

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, fleet.stop_soon)
    try:
        await fleet.start()
        if fleet.stopped_early:
            return
        greeting = asyncio.create_task(greet())
        running = asyncio.create_task(fleet.run())
        await asyncio.wait([greeting, running], return_when=asyncio.FIRST_COMPLETED)
        if greeting.done():
            greeting.result()  # raises what `then` raised, so that a pools file that is refused ends `up` with the reason
        await running
        greeting.cancel()
    finally:
        await fleet.stop()
