"""Count what leaked: what runs and rows without each other, and workers that stay parked past their time."""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

from ..client import Client, HoldfastError, Page
from ..client.endpoints import at

# Seconds. A worker on its way in or out is one without the other for a moment, and a take-over may last 15 s.
BOUND = 30.0


class Leaks:
    """Looks once a second from outside: at what runs, and at the rows that any operator may read."""

    def __init__(self, client: Client, running: Callable[[], Collection[str]], what: str, park_ttl: float) -> None:
        self._client = client
        self._running = running  # the workers that the world outside of Holdfast shows; it may block
        self._what = what  # and as what it shows them
        self._park_ttl = park_ttl
        self._since: dict[str, tuple[float, float]] = {}  # what, since when, and how long it may last

    async def watch(self) -> None:
        while True:
            try:
                await self.look()
            except HoldfastError:
                self._since.clear()  # time in which nobody could look or repair does not count
            await asyncio.sleep(1.0)

    async def look(self) -> int:
        """One look; how many workers there are at all, by either."""
        # What runs first: a row is made before its process or pod, so that one without a row had none.
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
        now = time.monotonic()
        return [what for what, (since, bound) in self._since.items() if now - since > bound]
