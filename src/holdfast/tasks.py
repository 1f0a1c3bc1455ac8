"""End background tasks, also if a cancellation is lost."""

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN = 0.5  # seconds after which a task that still runs is cancelled again


async def end_all(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancels the tasks until all of them have ended. One cancellation is not enough: in Python 3.11 `asyncio.wait_for` drops a
    cancellation that arrives together with the result, and then a loop would run on and its replica would never stop."""
    all_tasks = set(tasks)
    left = {task for task in all_tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)
    await asyncio.gather(*all_tasks, return_exceptions=True)  # otherwise asyncio logs errors that no code has read
