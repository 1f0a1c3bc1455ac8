"""A steady flow of jobs and sessions, with records outside of Holdfast of how each of them ended."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from ..client import Claim, Client, HoldfastError, claim

JOB_EVERY = 0.7  # seconds; each job needs a new worker, whose start takes about 0.25 s of a core
PAGE_EVERY = 0.4
FETCH_TIMEOUT = 10.0
TENANTS = ("acme", "globex")
# The job writes both lines itself. A claim that is twice in `begun` ran twice; a claim that is missing in `done` was lost.
JOB = 'echo "$HOLDFAST_CLAIM" >> "$1"; {work}; echo "$HOLDFAST_CLAIM" >> "$2"'


@dataclass
class Job:
    """One job of the demo. Its key makes it safe to repeat the request after a lost answer."""

    key: str
    command: list[str]
    claim: Claim | None = None
    failure: str = ""


@dataclass(frozen=True)
class ServedRequest:
    """When a worker was requested, and when its claim became active."""

    requested_at: float
    active_at: float

    @property
    def latency(self) -> float:
        return self.active_at - self.requested_at


class Traffic:
    def __init__(self, clients: Sequence[Client], begun: Path, done: Path, job_every: float = JOB_EVERY) -> None:
        self._clients = clients  # each tries another replica first, so that a killed replica always had callers
        self._turn = itertools.cycle(clients)
        self._begun, self._done = begun, done
        self._job_every = job_every
        self._random = random.Random(1)  # noqa: S311 - the same mix of jobs each time
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: dict[str, str] = {}
        self.jobs: list[Job] = []
        self.asking: set[float] = set()  # the start times of the requests that still wait
        self.served: list[ServedRequest] = []
        self.pages: list[float] = []  # the times at which pages were fetched
        self.sessions = 0
        self.broken: list[str] = []  # sessions that ended before their holder released them
        self.shared: list[str] = []  # workers that two holders had at the same time

    def start(self) -> None:
        self._spawn(self._flow())
        for tenant in TENANTS:
            self._spawn(self._visits(tenant))

    def start_session(self, tenant: str, until: asyncio.Event) -> None:
        self._spawn(self._session(tenant, until))

    def start_job(self, work: str) -> Job:
        """Starts a job. `work` is the shell command that it runs between its two records."""
        command = ["sh", "-c", JOB.format(work=work), "job", str(self._begun), str(self._done)]
        job = Job(f"demo-{len(self.jobs)}", command)
        self.jobs.append(job)
        self._spawn(self._run(job))
        return job

    async def _session(self, tenant: str, until: asyncio.Event) -> None:
        """Holds one worker until the event is set, and fetches its page repeatedly with the claim's credential."""
        which, requested_at = "its claim", self._ask()
        try:
            async with claim("notebook", client=next(self._turn), tenant=tenant) as worker, aiohttp.ClientSession() as http:
                self._serve(requested_at)
                self.sessions += 1
                which = f"{worker.claim_id} on {worker.id}"
                if other := self._held.get(worker.id):
                    self.shared.append(f"worker {worker.id} was given to {other} and to {worker.claim_id}")
                self._held[worker.id] = worker.claim_id
                try:
                    while not until.is_set():
                        await self._fetch(http, str(worker.endpoint), worker.headers)
                        await _wait(until, PAGE_EVERY)
                finally:
                    self._held.pop(worker.id, None)  # before the release, because after it another holder may get the worker
        except (HoldfastError, aiohttp.ClientError, TimeoutError) as error:
            self.asking.discard(requested_at)
            self.broken.append(f"a session of {tenant} broke ({which}): {error or type(error).__name__}")

    async def finish(self, within: float) -> None:
        """Starts no new work, and waits at most `within` seconds for the work in progress."""
        self._stopping.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)

    async def drop(self) -> None:
        """Cancels all work at once."""
        for client in self._clients:
            client.transport.patience = 0.0  # otherwise the clients would wait for the end of an outage
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # The counter

    def lost(self) -> list[str]:
        """Returns the jobs that did not complete, or completed without running, and the sessions that broke."""
        done = _lines(self._done)
        found = list(self.broken)
        for job in self.jobs:
            if job.failure:
                found.append(f"job {job.key}: {job.failure}")
            elif job.claim is not None and job.claim.ended:
                if job.claim.outcome != "completed":
                    found.append(f"job {job.claim.id} ended as {job.claim.outcome}: {job.claim.reason}")
                elif not done[job.claim.id]:
                    found.append(f"job {job.claim.id} is reported as completed, but did not write its last line")
        return found

    def unfinished(self) -> list[str]:
        return [f"job {job.key} never ended" for job in self.jobs if not job.failure and not (job.claim and job.claim.ended)]

    def doubled(self) -> list[str]:
        return [f"job {id_} began {count} times" for id_, count in _lines(self._begun).items() if count > 1] + self.shared

    def jobs_done(self) -> int:
        return sum(job.claim is not None and job.claim.outcome == "completed" for job in self.jobs)

    # The flow

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flow(self) -> None:
        while not self._stopping.is_set():
            self.start_job(f"sleep {self._random.uniform(0.2, 2.5):.1f}")
            await _wait(self._stopping, self._job_every)

    async def _run(self, job: Job) -> None:
        client, requested_at = next(self._turn), self._ask()
        try:
            submitted = await client.claim("linux", key=job.key, command=job.command, wait="10s")
            job.claim = await client.until(submitted, "active")
            self._serve(requested_at)
            job.claim = await client.until(job.claim, "ended")
        except HoldfastError as error:
            self.asking.discard(requested_at)
            job.failure = str(error)

    def _ask(self) -> float:
        requested_at = time.monotonic()
        self.asking.add(requested_at)
        return requested_at

    def _serve(self, requested_at: float) -> None:
        self.asking.discard(requested_at)
        self.served.append(ServedRequest(requested_at, time.monotonic()))

    async def _visits(self, tenant: str) -> None:
        while not self._stopping.is_set():
            over = asyncio.Event()
            timer = asyncio.get_running_loop().call_later(self._random.uniform(2.0, 5.0), over.set)
            await self._session(tenant, over)
            timer.cancel()

    async def _fetch(self, http: aiohttp.ClientSession, endpoint: str, headers: dict[str, str]) -> None:
        async with http.get(endpoint, headers=headers, timeout=aiohttp.ClientTimeout(total=FETCH_TIMEOUT)) as answer:
            answer.raise_for_status()
            await answer.read()
        self.pages.append(time.monotonic())


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def _lines(path: Path) -> Counter[str]:
    return Counter(path.read_text().split()) if path.exists() else Counter()
