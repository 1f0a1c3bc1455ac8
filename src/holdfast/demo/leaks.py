"""Count leaks: processes or pods without a row, rows without a process or pod, and workers that stay parked too long."""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

from ..client import Client, HoldfastError, Page
from ..client.endpoints import at

# Seconds. While a worker starts or ends it has only a row or only a process for a moment, and a take-over may last 15 s.
BOUND = 30.0


class Leaks:
    """Compares once per second the running processes or pods with the rows that the API shows to operators."""

    def __init__(self, client: Client, running: Callable[[], Collection[str]], what: str, park_ttl: float) -> None:
        self._client = client
        self._running = running  # returns the workers that run, without using Holdfast; it may block
        self._what = what  # how messages call what runs: a process or a pod
        self._park_ttl = park_ttl
        self._since: dict[str, tuple[float, float]] = {}  # problem: since when, and how long it may last

    async def watch(self) -> None:
        while True:
            try:
                await self.look()
            except HoldfastError:
                self._since.clear()  # an outage does not count, because no replica could repair anything
            await asyncio.sleep(1.0)

    async def look(self) -> int:
        """Compares once. Returns the number of workers that run or have a row."""
        # The processes or pods are read first. A row is made before its process or pod, so a process without a row is a leak.
        running = set(await asyncio.to_thread(self._running))
        rows = await self.rows()
        odd = {f"worker {name} runs without a row": BOUND for name in running if name not in rows}
        for name, row in rows.items():
            if name not in running:
                odd[f"worker {name} is a row ({row['state']}) without a {self._what}"] = BOUND
            if row["state"] == "parked":
                odd[f"worker {name} is parked since {row['parked_since']}"] = self._park_ttl + BOUND
        now = time.monotonic()
        self._since = {what: (self._since.get(what, (now, 0.0))[0], bound) for what, bound in odd.items()}
        return len(rows.keys() | running)

    async def rows(self) -> dict[str, dict[str, Any]]:
        page = await self._client.ask(Page[dict[str, Any]], "GET", at("workers"), params={"limit": 1000})
        return {row["id"]: row for row in page.items}

    def found(self) -> list[str]:
        """Returns the problems that lasted too long."""
        now = time.monotonic()
        return [what for what, (since, bound) in self._since.items() if now - since > bound]
