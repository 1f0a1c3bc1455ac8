"""Listening for other replicas' notifications. A hint only: every wait also looks again by itself."""

import asyncio
from typing import Literal

import asyncpg

from .database import CONNECT_SECONDS, UNAVAILABLE

Kind = Literal["c", "w", "p", "reset"]


class PostgresNotices:
    """One connection of its own, which comes back after every loss; a gap is announced as `reset`."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._queue: asyncio.Queue[tuple[Kind, list[str]]] = asyncio.Queue(maxsize=10_000)
        self._task = asyncio.create_task(self._listen())

    def __aiter__(self) -> "PostgresNotices":
        return self

    async def __anext__(self) -> tuple[Kind, list[str]]:
        return await self._queue.get()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            lost = asyncio.Event()
            connection: asyncpg.Connection | None = None
            try:
                connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS, statement_cache_size=0)
                connection.add_termination_listener(lambda *_, lost=lost: lost.set())
                await connection.add_listener("holdfast", self._heard)
                self._put("reset", [])
                while not lost.is_set():
                    try:
                        await asyncio.wait_for(lost.wait(), 15)
                    except TimeoutError:
                        # A half-open connection hears nothing and says nothing: ask it.
                        await connection.execute("SELECT 1", timeout=5)
            except UNAVAILABLE:
                pass
            finally:
                if connection is not None and not connection.is_closed():
                    connection.terminate()
            await asyncio.sleep(0.5)

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        kind, _, ids = payload.partition(" ")
        if kind in ("c", "w", "p"):
            self._put(kind, ids.split(" "))  # type: ignore[arg-type]

    def _put(self, kind: Kind, ids: list[str]) -> None:
        try:
            self._queue.put_nowait((kind, ids))
        except asyncio.QueueFull:
            # Better late than never: who waits looks again every few seconds anyway.
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(("reset", []))
