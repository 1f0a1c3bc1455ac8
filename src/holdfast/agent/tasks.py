"""Wait for whichever comes first, and end what is no longer needed."""

import asyncio
from typing import Any


async def first_of(*awaited: "asyncio.Future[Any]") -> None:
    """Until one of them is done. The caller looks which, in the order that matters to it."""
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)


async def settle(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel them and wait until they have cleaned up; what they failed with was another's to tell."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
