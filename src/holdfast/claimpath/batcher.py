"""Share one store call between callers that arrive at the same time. A batch is sent when the one before it has returned."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """A single caller pays one round trip, because a batch does not wait for more items. A burst shares commits, because items
    that arrive while a batch is being sent go together into the next one."""

    def __init__(self, send: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]], limit: int) -> None:
        """`send` returns one answer per item, in order; an exception in place of an answer is raised at that item's caller.
        `limit` is the largest number of items in one batch."""
        self._send = send
        self._limit = limit
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._nudged = False
        self._running: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._running is None

    async def add(self, item: Item) -> Answer:
        """Sends the item with the next batch and returns its answer."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._start()
        return await future

    def nudge(self) -> None:
        """Sends a batch soon, even if it has no items."""
        self._nudged = True
        self._start()

    def _start(self) -> None:
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting or self._nudged:
                taken, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                self._nudged = False
                await self._send_one(taken)
        finally:
            self._running = None

    async def _send_one(self, taken: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._send([item for item, _ in taken])
        except Exception as error:
            answers = [error] * len(taken)
        for (_, future), answer in zip(taken, answers, strict=True):
            if future.done():
                continue  # its caller was cancelled
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
