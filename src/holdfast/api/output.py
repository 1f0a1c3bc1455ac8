"""The route for the output of a claim's command. Any replica can serve it."""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from starlette.responses import Response, StreamingResponse

from ..model.claim import Claim
from .claims import own
from .context import Context
from .routes import Call, Route

CHUNK = 64 * 1024


class OutputQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    follow: bool = False


async def output(context: Context, call: Call) -> Response:
    claim = await own(context, call)
    query: OutputQuery = call.query
    first = await context.cluster.output(claim.id, claim.worker or "", query.offset, CHUNK)
    headers = {
        "Holdfast-Offset": str(query.offset),
        "Holdfast-Size": str(first.size),
        "Holdfast-Truncated": "true" if first.truncated else "false",
    }
    stream = _follow(context, call, claim, query.offset, query.follow)
    return StreamingResponse(stream, headers=headers, media_type="application/octet-stream")


async def _follow(context: Context, call: Call, claim: Claim, offset: int, follow: bool) -> AsyncIterator[bytes]:
    ended = claim.state == "ended" or not follow
    with context.signals.claims.watch(claim.id) as waiter:
        while not context.signals.stopping.is_set():
            piece = await context.cluster.output(claim.id, claim.worker or "", offset, CHUNK)
            if piece.data:
                offset += len(piece.data)
                yield piece.data
                continue
            if ended or not await context.auth.still(call.request.headers.get("authorization")):
                return
            # After the claim has ended, the loop reads once more to the end of the file. That read is complete, because the
            # last bytes are written before the result.
            found = await context.store.claims.get([claim.id])
            ended = not found or found[0].state == "ended"
            if found:
                claim = found[0]
            if not ended:
                await waiter.wait(0.25)
                waiter.clear()


ROUTES = [
    Route("GET", "/v1/claims/{id}/output", "The output of a claim's command", output, query=OutputQuery, errors=(404,),
         raw="application/octet-stream"),
]  # fmt: skip
