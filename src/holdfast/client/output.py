"""Reads a job's output exactly once, also when replicas stop and start.

The client keeps the offset: after a broken connection it requests the rest from another replica. A stream that ends
normally does not prove that the output is complete, because a replica that shuts down ends its streams in the same way.
Therefore one more read follows after the claim has ended, and only that read is the last. Its headers also show reliably
whether the output was truncated; while a job runs, its output may still grow beyond the limit.
"""

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

import aiohttp

from .answers import Claim
from .endpoints import at
from .errors import Refused

if TYPE_CHECKING:
    from .endpoints import Endpoints

QUIET = 60.0  # seconds without a byte until we reconnect: a job may print nothing for hours, but a dead host must be detected
PIECE = 64 * 1024


def ignore_truncation(_size: int) -> None:
    """Does nothing: the default for callers that need not know whether the output was truncated."""


async def read_output(
    endpoints: "Endpoints", claim: str, offset: int, follow: bool, truncated: Callable[[int], object] = ignore_truncation
) -> AsyncGenerator[bytes, None]:
    """Yields the output from `offset`. If it was truncated, `truncated` is called once with the number of bytes kept."""
    transport = endpoints.transport
    reported = False  # whether `truncated` was called
    over = not follow  # whether this read is the last one
    while True:
        path = at("claims", claim, "output")
        broken = empty = True
        try:
            response = await transport.stream(path, params={"offset": offset, "follow": not over}, quiet=QUIET)
        except Refused as error:
            if error.status == 416:  # the offset is beyond the end, so there is nothing more to read
                return
            raise
        served_by = str(response.url.origin())
        async with response:
            if not reported and response.headers.get("Holdfast-Truncated") == "true":
                reported = True
                truncated(int(response.headers.get("Holdfast-Size", "0")))
            skip = offset - int(response.headers.get("Holdfast-Offset", offset))
            if skip < 0:  # the beginning is no longer kept, so continue where the output starts
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
                        transport.switch_from(url)
        if over and not broken:
            return
        if over:
            continue
        if not broken:
            over = (await endpoints.ask(Claim, "GET", at("claims", claim))).ended
        if empty and not over:  # neither bytes nor an end: pause, so that this is no busy loop
            await transport.sleep(0.2)
