"""Store agents' reports, many of them in one statement per second."""

import asyncio
from collections.abc import Callable

from ..ports.store import AgentReport, Store


class Heartbeats:
    """Buffers the last report of each agent for the next flush (1/s). Reports are dropped, not retried, when a flush fails,
    because an old report that is stored after an outage would look current, although its worker may have been given out
    meanwhile. Agents report again within 20 s.

    For the same reason a report counts only in the epoch that its agent saw last. The epoch grows when a recovery begins, so a
    replica that was paused cannot store an old report as one from after it. For an agent that does not send it, the epoch that
    this replica knew when it received the report takes its place."""

    def __init__(self, store: Store, epoch: Callable[[], int]) -> None:
        self._store = store
        self._epoch = epoch
        self._reports: dict[str, tuple[int, AgentReport]] = {}

    def add(self, report: AgentReport) -> None:
        self._reports[report.worker] = self._epoch() if report.incarnation is None else report.incarnation, report

    async def run(self) -> None:
        """Flushes once a second, until cancelled."""
        while True:
            await asyncio.sleep(1)
            await self.flush()

    async def flush(self) -> None:
        reports, self._reports = self._reports, {}
        for epoch in {epoch for epoch, _ in reports.values()}:  # usually one
            await self._store.workers.beat([report for of, report in reports.values() if of == epoch], epoch)
