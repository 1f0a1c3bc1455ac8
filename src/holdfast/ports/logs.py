"""The last output of workers, which outlives them for a day."""

from typing import Protocol

import msgspec

LOG_LIMIT = 64 * 1024  # characters per worker


class WorkerLog(msgspec.Struct, frozen=True):
    """What a worker's processes and its agent wrote last, as its agent last sent it."""

    worker: str
    at: float
    text: str

    def last_lines(self, count: int) -> list[str]:
        return [line.rstrip() for line in self.text.splitlines() if line.strip()][-count:]


class Logs(Protocol):
    async def keep(self, worker: str, uid: str, text: str) -> bool:
        """Replaces the worker's log. Returns False if there is no such worker with this pod."""

    async def get(self, worker: str) -> WorkerLog | None:
        """Returns the worker's log, or None if its agent has sent none or it was removed."""

    async def newest(self, pool_id: str) -> WorkerLog | None:
        """Returns the log that was stored last of the pool's workers that have ended or are ending."""
