"""Wait for the first of several tasks, and cancel tasks that are no longer needed."""

import asyncio
from typing import Any


async def first_of(*awaited: "asyncio.Future[Any]") -> None:
    """Waits until at least one is done. The caller checks which, because several may be done at the same time."""
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)


async def settle(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels the tasks and waits until they have cleaned up. Their errors are dropped; the caller has read those that matter."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
