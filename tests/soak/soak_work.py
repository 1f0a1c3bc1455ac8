"""The work of a soak test: jobs that write marks into files, and sessions that are renewed and used."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from holdfast.client import Claim, Client, HoldfastError, claim

PATIENCE = 120.0  # seconds, longer than any single fault
TENANTS = ("acme", "globex", "initech")
COMMAND = 'echo "$HOLDFAST_CLAIM" >> "$1"; sleep "$3"; echo "$HOLDFAST_CLAIM" >> "$2"'


@dataclass
class Job:
    key: str
    retry: bool
    claim: Claim | None = None
    error: str = ""


@dataclass(frozen=True)
class Broken:
    """A session that ended although its holder did not end it."""

    claim: str
    worker: str
    error: str


class Work:
    def __init__(self, urls: list[str], token: str, folder: Path, chance: random.Random) -> None:
        self._clients = [Client([*urls[n:], *urls[:n]], token, patience=PATIENCE) for n in range(len(urls))]
        self._turn = itertools.cycle(self._clients)
        self._chance = chance
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun, self._done = folder / "begun", folder / "done"
        self.jobs: list[Job] = []
        self.sessions = 0
        self.broken: list[Broken] = []

    def begun(self) -> Counter[str]:
        return _marks(self._begun)

    def done(self) -> Counter[str]:
        return _marks(self._done)

    def start(self) -> None:
        self._spawn(self._flow())
        for tenant in TENANTS:
            self._spawn(self._visits(tenant))

    async def finish(self, within: float) -> None:
        """Stops new requests, and waits at most `within` seconds for those in progress."""
        self._stopping.set()
        await asyncio.wait(self._tasks, timeout=within)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            await client.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flow(self) -> None:
        while not self._stopping.is_set():
            job = Job(f"job-{len(self.jobs)}", retry=self._chance.random() < 0.4)
            self.jobs.append(job)
            self._spawn(self._run(job, self._chance.uniform(0.1, 5.0)))
            await self._pause(self._chance.uniform(0.3, 1.5))

    async def _run(self, job: Job, seconds: float) -> None:
        client = next(self._turn)
        command = ["sh", "-c", COMMAND, "job", str(self._begun), str(self._done), f"{seconds:.1f}"]
        try:
            job.claim = await client.claim("linux", key=job.key, command=command, retry="lost" if job.retry else None, wait="5s")
            job.claim = await client.until(job.claim, "ended", poll="10s")
        except HoldfastError as error:
            job.error = f"{type(error).__name__}: {error}"

    async def _visits(self, tenant: str) -> None:
        while not self._stopping.is_set():
            which = ("", "")
            try:
                async with claim("notebook", client=next(self._turn), tenant=tenant) as worker, aiohttp.ClientSession() as http:
                    which = (worker.claim_id, worker.id)
                    self.sessions += 1
                    for _ in range(self._chance.randint(1, 12)):
                        async with http.get(
                            str(worker.endpoint), headers=worker.headers, timeout=aiohttp.ClientTimeout(10)
                        ) as answer:
                            answer.raise_for_status()
                        await self._pause(1.0)
            except (HoldfastError, aiohttp.ClientError, TimeoutError) as error:
                self.broken.append(Broken(*which, f"{type(error).__name__}: {error}"))
            await self._pause(self._chance.uniform(0.1, 2.0))

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


def _marks(path: Path) -> Counter[str]:
    return Counter(path.read_text().split()) if path.exists() else Counter()
