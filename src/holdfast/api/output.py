"""The route for the output of a claim's command. Any replica can serve it (decision 0019)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from starlette.responses import Response, StreamingResponse

from ..claimpath.path import LOOK_AGAIN
from ..model.claim import Claim
from ..model.output import Stream, missing_line
from ..ports.cluster import Output
from .auth import FOLLOWERS
from .claims import own
from .context import Context
from .routes import Call, Route

CHUNK = 64 * 1024
LOOK_SECONDS = 0.25  # between two looks at the output, which cost no statement
RAW, LINES = "application/octet-stream", "application/x-ndjson"
encode = msgspec.json.Encoder().encode


class OutputQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    follow: bool = False


class OutputPiece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of an output as `application/x-ndjson`: bytes of one stream (base64), or the number of bytes missing at `offset`."""

    offset: int
    stream: Stream | None = None
    data: bytes = b""
    missing: int = 0


async def output(context: Context, call: Call) -> Response:
    claim = await own(context, call)
    query: OutputQuery = call.query
    first = await context.cluster.output(claim.id, claim.worker or "", query.offset, CHUNK)
    accepted = call.request.headers.get("accept", "")
    lines = LINES in accepted
    headers = {
        # The bytes of a raw answer begin here, which is later than requested if the bytes before are not kept.
        "Holdfast-Offset": str(query.offset if lines else first.offset),
        "Holdfast-Size": str(first.size - first.missing),
        "Holdfast-Missing": str(first.missing),
        "Holdfast-Truncated": "true" if first.truncated or first.missing else "false",
    }
    if query.follow:
        context.auth.may_stream(call.caller, FOLLOWERS)
    parts = _follow(context, call, claim, query.offset if lines else first.offset)
    if lines:
        return StreamingResponse(_as_lines(parts, query.offset), headers=headers, media_type=LINES)
    # Clients of the release before accept JSON. They count the bytes of the answer, so it must end where bytes are missing.
    counts = query.follow and accepted == "application/json"
    raw = _as_bytes(parts, first.offset, counts)
    return StreamingResponse(raw, headers=headers, media_type=RAW)


async def _as_lines(parts: AsyncIterator[Output], offset: int) -> AsyncIterator[bytes]:
    async for part in parts:
        lines = [OutputPiece(offset=offset, missing=part.offset - offset)] if part.offset > offset else []
        lines += [OutputPiece(offset=at, stream=stream, data=data) for at, stream, data in part.pieces()]
        offset = part.offset + len(part.data)
        yield b"".join(encode(line) + b"\n" for line in lines)


async def _as_bytes(parts: AsyncIterator[Output], offset: int, ends_at_gap: bool) -> AsyncIterator[bytes]:
    last = b""
    async for part in parts:
        if part.offset > offset:
            yield missing_line(part.offset - offset, last)
            if ends_at_gap:
                return
        offset, last = part.offset + len(part.data), part.data[-1:] or last
        yield part.data


async def _follow(context: Context, call: Call, claim: Claim, offset: int) -> AsyncIterator[Output]:
    """Yields the output from `offset`, and what follows until the claim has ended, if the caller wants that. The claim is read
    when it is signalled, because a statement per look would let a few followers keep the database busy."""
    ended = claim.state == "ended" or not call.query.follow
    if ended:
        async for part in _rest(context, claim, offset):
            yield part
        return
    reader, looked = context.ids.new("r", 16), asyncio.get_running_loop().time()
    with context.auth.streaming(call.caller, FOLLOWERS), context.signals.claims.watch(claim.id) as waiter:
        must_read = True  # it may have changed before the watch
        while not context.signals.stopping.is_set():
            part = await context.cluster.output(claim.id, claim.worker or "", offset, CHUNK, reader)
            if part.data:
                offset = part.offset + len(part.data)
                yield part
                continue
            if ended or not await context.auth.still(call.request.headers.get("authorization")):
                return
            now = asyncio.get_running_loop().time()
            row, must_read = waiter.row, must_read or waiter.must_read or now - looked >= LOOK_AGAIN
            waiter.clear()
            if row is not None and not must_read:
                claim, ended = row, row.state == "ended"
            elif must_read:
                # After the claim has ended, the loop reads once more to the end of the file. That read is complete, because the
                # last bytes are written before the result.
                found = await context.store.claims.get([claim.id])
                looked, must_read = now, False
                ended = not found or found[0].state == "ended"
                claim = found[0] if found else claim
            if not ended:
                await waiter.wait(LOOK_SECONDS)


async def _rest(context: Context, claim: Claim, offset: int) -> AsyncIterator[Output]:
    """Yields what is stored of the output from `offset`."""
    while not context.signals.stopping.is_set():
        part = await context.cluster.output(claim.id, claim.worker or "", offset, CHUNK)
        if not part.data:
            return
        offset = part.offset + len(part.data)
        yield part


ROUTES = [
    Route("GET", "/v1/claims/{id}/output", "The output of a claim's command", output, query=OutputQuery, errors=(404, 429),
         raw=RAW),
]  # fmt: skip
