"""The base of all demos: runs the steps, prints the counter after each step, and reads the state of the fleet."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from ..client import Client, HoldfastError
from ..client.answers import Replica
from .leaks import Leaks
from .printer import RED, Printer, seconds
from .traffic import Traffic

STEP_WITHIN = 60.0  # seconds; longer than every time limit of the failure table that a demo needs
PATIENCE = 60.0
RARE = ("prune",)  # these duties run once in many minutes, so only their holder can be checked

Step = Callable[[int], Awaitable[None]]


class Demo:
    """Runs the steps of a demo. A subclass calls `connect`, and sets `_traffic` and `_leaks`, before the first step."""

    def __init__(self, printer: Printer) -> None:
        self._print = printer
        self._clients: list[Client] = []
        self._observer: Client
        self._traffic: Traffic
        self._leaks: Leaks
        self._watch: asyncio.Task[None] | None = None
        self._lost: list[str] = []
        self._left: list[str] = []
        self._unsound: list[str] = []  # the failed checks of `doctor`

    def connect(self, urls: Sequence[str], token: str) -> None:
        """Makes one client per replica, which tries that replica first, and an observer, which does not retry."""
        self._clients = [Client([*urls[n:], *urls[:n]], token, patience=PATIENCE) for n in range(len(urls))]
        self._observer = Client(urls, token, patience=0.0)

    async def run_steps(self, steps: Sequence[Step]) -> bool:
        """Runs all steps. Returns whether nothing was lost, doubled or leaked."""
        clean = True
        for number, step in enumerate(steps, 1):
            await step(number)
            lost, doubled, leaked = self._traffic.lost() + self._lost, self._traffic.doubled(), self._leaks.found() + self._left
            self._print.counter(lost, doubled, leaked)
            clean = clean and not (lost or doubled or leaked or self._unsound)
            for what in self._unsound:
                self._print.line(f"{what}", RED)
        return clean

    async def disconnect(self) -> None:
        """Stops the traffic and closes the clients."""
        if self._watch is not None:
            self._watch.cancel()
        if self._clients:
            await self._traffic.drop()
            for client in (*self._clients, self._observer):
                await client.close()

    # Helpers for the steps

    def watch(self) -> None:
        self._watch = asyncio.create_task(self._leaks.watch())

    async def settle(self) -> None:
        """Starts no new work, waits for the work in progress, and compares the demo's own records with the fleet."""
        await self._traffic.finish(STEP_WITHIN)
        self._lost += self._traffic.unfinished()
        self._print.figure("jobs requested / completed", f"{len(self._traffic.jobs)} / {self._traffic.jobs_done()}")
        self._print.figure("sessions held / pages fetched", f"{self._traffic.sessions} / {len(self._traffic.pages)}")
        doctor = await self._observer.doctor()
        self._unsound = [f"{check.promise} {check.name}: {check.detail}" for check in doctor.checks if not check.ok]
        failing = len(self._unsound)
        self._print.figure(
            "holdfast doctor",
            f"{failing} of {len(doctor.checks)} checks fail" if failing else f"{len(doctor.checks)} checks pass",
        )

    async def busiest(self) -> Replica:
        """Returns the replica that does most duties."""
        return max((await self._observer.list_replicas()).items, key=lambda replica: len(replica.duties))

    async def recovered(self, victim: Replica, killed_at: float) -> None:
        """Waits until another replica has the duties of the killed replica and that replica is ready again. Prints both times."""
        took_over, back = await asyncio.gather(self._taken_over(victim, killed_at), self._back(victim, killed_at))
        self._print.figure("another replica has its duties after", seconds(took_over))
        self._print.figure("started again and ready after", seconds(back))
        first = min((s.active_at for s in self._traffic.served if s.requested_at > killed_at), default=time.monotonic())
        self._print.figure("next new claim served after", seconds(first - killed_at))
        self.figures(killed_at)

    async def live(self) -> int:
        """Returns the number of live replicas."""
        return len({r.url for r in (await self._observer.list_replicas()).items if r.state == "live"})

    async def warm(self) -> int:
        rows = await self._leaks.rows()
        return len([row for row in rows.values() if row["state"] == "warm" and row["ready"]])

    def figures(self, since: float) -> None:
        served = [s.latency for s in self._traffic.served if s.active_at > since]
        pages = sum(at > since for at in self._traffic.pages)
        self._print.figure("claims served / pages fetched", f"{len(served)} / {pages}")
        if served:
            self._print.figure(
                "from request to worker, p50 / max", f"{seconds(statistics.median(served))} / {seconds(max(served))}"
            )

    async def until(self, check: Callable[[], Awaitable[bool]], what: str) -> None:
        """Repeats the check until it is true. Errors count as false, because a replica may not answer yet."""
        deadline = time.monotonic() + STEP_WITHIN
        while True:
            with contextlib.suppress(HoldfastError):
                if await check():
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"did not happen within {STEP_WITHIN:.0f} s: {what}")
            await asyncio.sleep(0.1)

    async def _taken_over(self, victim: Replica, killed_at: float) -> float:
        """Waits until each of its duties has succeeded on another replica. Returns the seconds since the kill."""

        async def others() -> bool:
            since = time.monotonic() - killed_at
            duties = [duty for duty in (await self._observer.list_duties()).items if duty.duty in victim.duties]
            return all(
                duty.holder not in (None, victim.id) and (duty.duty in RARE or (duty.age is not None and duty.age < since))
                for duty in duties
            )

        await self.until(others, "the duties are taken over")
        return time.monotonic() - killed_at

    async def _back(self, victim: Replica, killed_at: float) -> float:
        async def ready() -> bool:
            found = (await self._observer.list_replicas()).items
            return any(r.url == victim.url and r.id != victim.id and r.state == "live" for r in found)

        await self.until(ready, "the replica is back")
        return time.monotonic() - killed_at
