"""The routes for the standard input of a claim's command: the caller sends it, the agent asks for it (decision 0019)."""

import asyncio
from typing import Annotated

import msgspec
from starlette.responses import Response

from ..ports.inputs import InputState
from .agent_problems import stale_or_unavailable
from .agent_shapes import Fence
from .claims import own, stale
from .context import Context
from .problems import Problem
from .routes import AGENT, Call, Route, answer

PIECE = 32 * 1024  # bytes of one request; base64 makes them longer, and a request may have 64 KB
ROOM = 1024 * 1024  # bytes that may wait for the agent; a caller that is faster waits
LONGEST_WAIT = 10.0
# Seconds after which another replica's change is found, because it is not signalled. The pause doubles from the first to the second
# number, so that a command that reads nothing for hours costs little.
LOOK_AGAIN, LOOK_RARELY = 0.2, 2.0
BASE64 = {"pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"}
Position = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=60)]

NOTHING = InputState(0, None, complete=False, closed=False)


class SentInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes (base64) that follow the `offset` bytes that were sent before. `end` closes the command's stdin after them."""

    offset: Position
    data: Annotated[bytes, msgspec.Meta(max_length=PIECE, extra_json_schema=BASE64)] = b""
    end: bool = False


class StoredInput(msgspec.Struct, frozen=True, kw_only=True):
    """`offset` is where the next request continues: if it has not grown, there was no room, and the same bytes are sent again.
    `taken` is what the command has received; it is null until its agent has asked. `closed`: the command reads no more."""

    offset: int
    taken: int | None
    end: bool
    closed: bool


class TakeInput(msgspec.Struct, frozen=True):
    fence: Fence
    taken: Position = 0
    closed: bool = False
    wait: Wait = 20


class GivenInput(msgspec.Struct, frozen=True):
    data: bytes
    end: bool


async def send(context: Context, call: Call) -> Response:
    """Stores bytes, and waits for room if there is none, so that a fast caller does not fill the store."""
    claim, body = call.path("id"), call.body
    await own(context, call)
    store, size = context.store.inputs, len(body.data)
    loop = asyncio.get_running_loop()
    end, pause = loop.time() + LONGEST_WAIT, LOOK_AGAIN
    with context.signals.claims.watch(claim) as waiter:
        state = await store.store(claim, body.offset, body.data, body.end, ROOM)
        while state is not None and _no_room(state, body):
            left = end - loop.time()
            if left <= 0 or context.signals.stopping.is_set():
                break
            call.only_waits()
            await waiter.wait(min(left, pause))
            waiter.clear()
            pause = min(2 * pause, LOOK_RARELY)
            state = await store.sent(claim)
            if state is not None and body.offset + size - (state.taken or 0) <= ROOM:
                state = await store.store(claim, body.offset, body.data, body.end, ROOM)
    if state is None:
        raise await _refused(context, call)
    _check(state, body)
    context.signals.claims.changed(claim)
    return answer(_view(state))


def _no_room(state: InputState, body: SentInput) -> bool:
    return bool(body.data) and state.stored == body.offset and not (state.complete or state.closed)


def _check(state: InputState, body: SentInput) -> None:
    """Refuses what cannot follow the input that is stored. A command that reads no more is not an error."""
    last = body.offset + len(body.data)
    if body.offset > state.stored:
        raise Problem(409, "input-lost", f"only {state.stored} bytes of the input are known; what follows was lost")
    if state.closed:
        return
    if state.complete and last > state.stored:
        raise Problem(
            409, "input-differs", f"the input was sent already and ended after {state.stored} bytes; nothing can follow"
        )
    if body.end and last < state.stored:
        raise Problem(
            409, "input-differs", f"the input cannot end after {last} bytes, because {state.stored} bytes were sent already"
        )


async def state(context: Context, call: Call) -> Response:
    claim = await own(context, call)
    return answer(_view(await context.store.inputs.state(claim.id) or NOTHING))


async def _refused(context: Context, call: Call) -> Problem:
    claim = await own(context, call)
    if claim.state == "ended":
        return stale(claim)
    return Problem(409, "no-input", f"claim {claim.id} takes no input; make it with `stdin: true`")


def _view(state: InputState) -> StoredInput:
    return StoredInput(offset=state.stored, taken=state.taken, end=state.complete, closed=state.closed)


async def take(context: Context, call: Call) -> Response:
    """Answers with the next bytes as soon as there are any, or with none when the time is over."""
    body: TakeInput = call.body
    piece = await context.store.inputs.take(call.agent.worker, body.fence, body.taken, body.closed)
    if piece is None:
        raise await stale_or_unavailable(context)
    context.signals.claims.changed(piece.claim)  # there is room now
    loop = asyncio.get_running_loop()
    end, pause = loop.time() + body.wait, LOOK_AGAIN
    with context.signals.claims.watch(piece.claim) as waiter:
        while not (piece.data or piece.end or body.closed or context.signals.stopping.is_set()):
            left = end - loop.time()
            if left <= 0 or await call.request.is_disconnected():
                break
            await waiter.wait(min(left, pause))
            waiter.clear()
            pause = min(2 * pause, LOOK_RARELY)
            piece = await context.store.inputs.next(piece.claim, body.taken)
    return answer(GivenInput(piece.data, piece.end))


ROUTES = [
    Route("GET", "/v1/claims/{id}/input", "How much of its standard input a command has received", state,
         answers={200: StoredInput}, errors=(404,)),
    Route("POST", "/v1/claims/{id}/input", "Send standard input to a claim's command", send, body=SentInput,
         answers={200: StoredInput}, errors=(404, 409)),
    Route("POST", "/v1/worker/input", "Ask for the command's standard input", take, roles=AGENT, body=TakeInput,
         answers={200: GivenInput}, errors=(409,)),
]  # fmt: skip
