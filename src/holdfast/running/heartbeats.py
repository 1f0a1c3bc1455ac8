"""Store agents' reports, many of them in one statement per second."""

import asyncio

from ..ports.store import AgentReport, Store


class Heartbeats:
    """Buffers the last report of each agent for the next flush (1/s). Reports are dropped, not retried, when a flush fails,
    because an old report that is stored after an outage would look current, although its worker may have been given out
    meanwhile. Agents report again within 20 s."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reports: dict[str, AgentReport] = {}

    def add(self, report: AgentReport) -> None:
        self._reports[report.worker] = report

    async def run(self) -> None:
        """Flushes once a second, until cancelled."""
        while True:
            await asyncio.sleep(1)
            await self.flush()

    async def flush(self) -> None:
        reports, self._reports = self._reports, {}
        if reports:
            await self._store.workers.beat(list(reports.values()))
