"""Read a job's output exactly once, across replicas that come and go.

The offset is ours: after any break we ask another replica for what we have not yet seen. A stream that ends
in good order proves nothing while the claim lives, since a replica that shuts down ends its streams like that
too; so one more read follows once the claim is known to have ended, and only that one is the last. Its head also
says for good whether all that was printed was kept: while a job runs, its output may still grow beyond the bound.
"""

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

import aiohttp

from .answers import Claim
from .endpoints import at
from .errors import Refused

if TYPE_CHECKING:
    from .endpoints import Endpoints

QUIET = 60.0  # seconds; a job may be silent for hours, but a dead host must be noticed: reconnect and go on
PIECE = 64 * 1024


def unheard(_size: int) -> None:
    """For those who do not ask whether an output was cut off."""


async def read_output(
    doors: "Endpoints", claim: str, offset: int, follow: bool, truncated: Callable[[int], object] = unheard
) -> AsyncGenerator[bytes, None]:
    """`truncated` hears, once, after how many bytes the job's output was cut off."""
    transport = doors.transport
    told = False
    over = not follow  # whether this read is the last one
    while True:
        path = at("claims", claim, "output")
        broken = empty = True
        try:
            response = await transport.stream(path, params={"offset": offset, "follow": not over}, quiet=QUIET)
        except Refused as error:
            if error.status == 416:  # nothing beyond what we have
                return
            raise
        served_by = str(response.url.origin())
        async with response:
            if not told and response.headers.get("Holdfast-Truncated") == "true":
                told = True
                truncated(int(response.headers.get("Holdfast-Size", "0")))
            skip = offset - int(response.headers.get("Holdfast-Offset", offset))
            if skip < 0:  # the beginning is no longer kept: go on from what there is
                offset, skip = offset - skip, 0
            try:
                async for piece in response.content.iter_chunked(PIECE):
                    fresh, skip = piece[skip:], max(0, skip - len(piece))
                    if fresh:
                        empty = False
                        offset += len(fresh)
                        yield fresh
                broken = False
            except (aiohttp.ClientError, TimeoutError, OSError):
                for url in transport.urls:
                    if url.startswith(served_by):
                        transport.leave(url)
        if over and not broken:
            return
        if over:
            continue
        if not broken:
            over = (await doors.ask(Claim, "GET", at("claims", claim))).ended
        if empty and not over:  # neither bytes nor an end: do not spin
            await transport.sleep(0.2)
