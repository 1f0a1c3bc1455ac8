"""Reads a job's output exactly once, also when replicas stop and start.

The client keeps the offset: after a broken connection it requests the rest from another replica. A stream that ends
normally does not prove that the output is complete, because a replica that shuts down ends its streams in the same way.
Therefore one more read follows after the claim has ended, and only that read is the last. Its headers also show reliably
whether the output was truncated; while a job runs, its output may still grow beyond the limit.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from holdfast.model.output import Stream, missing_line

from .answers import Claim
from .endpoints import at
from .errors import HoldfastError, Refused

if TYPE_CHECKING:
    from .endpoints import Endpoints

QUIET = 60.0  # seconds without a byte until we reconnect: a job may print nothing for hours, but a dead host must be detected
PIECE = 64 * 1024
LINES = "application/x-ndjson"


class OutputPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that the job printed to one stream; or, if `missing` is more than 0, that many bytes are not kept at `offset`.

    `stream` is stdout for both streams where the worker cannot tell them apart (Kubernetes, and releases before this one).
    """

    offset: int
    stream: Stream = "stdout"
    data: bytes = b""
    missing: int = 0

    @property
    def end(self) -> int:
        return self.offset + len(self.data) + self.missing


_decode = msgspec.json.Decoder(OutputPiece).decode


def ignore_truncation(_kept: int, _missing: int) -> None:
    """Does nothing: the default for callers that need not know whether the output was truncated."""


async def read_bytes(pieces: AsyncGenerator[OutputPiece, None]) -> AsyncGenerator[bytes, None]:
    """Yields the bytes of both streams in their order, with a line where bytes are missing."""
    last = b""
    try:
        async for piece in pieces:
            data = missing_line(piece.missing, last) if piece.missing else piece.data
            last = data[-1:]
            yield data
    finally:
        await pieces.aclose()


async def read_pieces(
    endpoints: "Endpoints", claim: str, offset: int, follow: bool, truncated: Callable[[int, int], object]
) -> AsyncGenerator[OutputPiece, None]:
    """Yields the output from `offset`. If not all of it is kept, `truncated` is called once with the numbers of bytes that are
    kept and that are missing in the middle. If none are missing there, the end is."""
    transport = endpoints.transport
    reported = False  # whether `truncated` was called
    over = not follow  # whether this read is the last one
    while True:
        path = at("claims", claim, "output")
        broken = empty = True
        headers = {"Accept": f"{LINES}, application/octet-stream"}
        try:
            response = await transport.stream(path, params={"offset": offset, "follow": not over}, headers=headers, quiet=QUIET)
        except Refused as error:
            if error.status == 416:  # the offset is beyond the end, so there is nothing more to read
                return
            raise
        served_by = str(response.url.origin())
        async with response:
            missing = int(response.headers.get("Holdfast-Missing", "0"))
            # While bytes are still being dropped, only the last read knows how many.
            if not reported and response.headers.get("Holdfast-Truncated") == "true" and (over or not missing):
                reported = True
                truncated(int(response.headers.get("Holdfast-Size", "0")), missing)
            try:
                async for piece in _lines(response) if response.content_type == LINES else _raw(response, offset):
                    empty = False
                    offset = piece.end
                    yield piece
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


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[OutputPiece]:
    """Yields one piece per complete line. A line that was cut by a broken connection is requested again."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            try:
                yield _decode(line)
            except msgspec.DecodeError as error:
                raise HoldfastError(f"a line of the output is not one that Holdfast sends: {error}") from error


async def _raw(response: aiohttp.ClientResponse, offset: int) -> AsyncIterator[OutputPiece]:
    """Yields the bytes of a server of the release before, which sends both streams as one."""
    skip = offset - int(response.headers.get("Holdfast-Offset", offset))
    if skip < 0:  # the beginning is no longer kept, so continue where the output starts
        offset, skip = offset - skip, 0
    async for chunk in response.content.iter_chunked(PIECE):
        fresh, skip = chunk[skip:], max(0, skip - len(chunk))
        if fresh:
            yield OutputPiece(offset=offset, data=fresh)
            offset += len(fresh)
