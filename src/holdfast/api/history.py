"""The routes for the history: events, as a list or a live stream, and explanations."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response, StreamingResponse

from ..model.event import Actor
from ..model.nearest import suggest
from ..ports.store import Event, EventFilters, StoreUnavailable
from .auth import Caller
from .claim_shapes import when
from .context import Context
from .explain import explain, shows_worker
from .filters import kinds, known_pool, labels, moment
from .problems import Problem, not_found, refused
from .routes import ALL, Call, Route, answer

Kind = Literal["pool", "worker", "claim"]
KINDS = ("pool", "worker", "claim")


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    at: datetime
    kind: str
    reason: str
    also: str | None
    pool: str | None
    worker: str | None
    claim: str | None
    tenant: str | None
    data: dict[str, Any] | None
    actor: Actor | None  # who caused it; null if Holdfast or an agent did


class EventList(msgspec.Struct, frozen=True):
    items: list[EventView]
    next: str | None  # the cursor for `after`: later events
    previous: str | None = None  # the cursor for `before`: earlier events, or null if it is known that there are none


class EventQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    after: str | None = None
    before: str | None = None
    since: str | None = None
    until: str | None = None
    kind: str | None = None
    claim: str | None = None
    worker: str | None = None
    pool: str | None = None
    tenant: str | None = None
    label: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    newest: bool = False


class Explanation(msgspec.Struct, frozen=True):
    kind: Kind
    id: str
    sentences: list[str]
    facts: dict[str, Any]


async def events(context: Context, call: Call) -> Response:
    query: EventQuery = call.query
    after = query.after
    stream = "text/event-stream" in call.request.headers.get("accept", "")
    if stream:
        context.auth.may_stream(call.caller)
        after = call.request.headers.get("last-event-id") or after
        for name in ("before", "until"):
            if getattr(query, name) is not None:
                raise refused(name, "a live stream has no end; leave it out")
    about = await _filters(context, call)
    backwards = query.newest or query.before is not None
    # Backwards, one event more is read than is shown. It tells whether there are earlier ones.
    limit = query.limit + backwards
    try:
        found, cursor = await context.store.history.events(
            after=after, before=query.before, limit=limit, newest=query.newest, **about
        )
    except ValueError as error:
        raise refused("after" if query.before is None else "before", str(error)) from None
    shown = found[-query.limit :]
    if stream:
        return StreamingResponse(_sse(context, call, shown, cursor, about), media_type="text/event-stream")
    earlier = len(found) > len(shown) if backwards else bool(found) and after is not None
    previous = shown[0].cursor if earlier else None
    return answer(EventList([_event(event, call.caller) for event in shown], cursor, previous))


async def _filters(context: Context, call: Call) -> EventFilters:
    query: EventQuery = call.query
    if query.tenant is not None and not call.caller.sees(query.tenant):
        raise Problem(403, "forbidden", "a tenant may read only its own events")
    return {
        "claim": query.claim,
        "worker": query.worker,
        "pool": await known_pool(context, query.pool),
        "tenant": query.tenant if call.caller.trusted else call.caller.tenant,
        "kinds": kinds(query.kind),
        "since": await moment(context, "since", query.since),
        "until": await moment(context, "until", query.until),
        "labels": labels(query.label),
    }


async def _sse(context: Context, call: Call, found: list[Event], cursor: str, about: EventFilters) -> AsyncIterator[bytes]:
    quiet = 0.0
    with context.auth.streaming(call.caller):
        while not context.signals.stopping.is_set():
            for event in found:
                yield b"id: %s\nevent: %s\ndata: %s\n\n" % (
                    event.cursor.encode(),
                    event.kind.encode(),
                    msgspec.json.encode(_event(event, call.caller)),
                )
            quiet = 0.0 if found else quiet + 0.5
            if quiet >= 15:
                quiet = 0.0
                yield b": still here\n\n"
            if not found:
                await asyncio.sleep(0.5)
            try:
                if not await context.auth.still(call.request.headers.get("authorization")):
                    return
                found, cursor = await _news(context, cursor, about)
            except StoreUnavailable:
                return  # the reader connects again with its Last-Event-ID


async def _news(context: Context, after: str, about: EventFilters) -> tuple[list[Event], str]:
    """Returns the reader's new events, and the cursor for the next read. Without new events the cursor moves to the head of the
    whole history; otherwise every read would scan all events since then that the filter excludes. No event is skipped, because
    the head is read first and the history up to it is complete."""
    _, head = await context.store.history.events(after=after, limit=1, newest=True)
    if head == after:
        return [], after
    found, cursor = await context.store.history.events(after=after, limit=500, **about)
    return found, cursor if found else head


def _event(event: Event, caller: Caller) -> EventView:
    at = when(event.at)
    assert at is not None
    return EventView(
        id=event.cursor,
        at=at,
        kind=event.kind,
        reason=event.reason,
        also=event.also,
        pool=event.pool,
        # P1: the worker is not shown to a tenant before its claim is active.
        worker=event.worker if shows_worker(event, caller) else None,
        claim=event.claim,
        tenant=event.tenant,
        data=event.data,
        actor=event.actor,
    )


async def explained(context: Context, call: Call) -> Response:
    kind, id_ = call.path("kind"), call.path("id")
    if kind not in KINDS:
        raise not_found("kind", kind, suggest(kind, KINDS) or "; pool, worker or claim can be explained")
    if kind != "claim" and not call.caller.trusted:
        raise Problem(403, "forbidden", "a tenant may explain only its own claims")
    sentences, facts = await explain(context, call.caller, kind, id_)
    return answer(Explanation(kind, id_, sentences, facts))  # type: ignore[arg-type]


ROUTES = [
    Route("GET", "/v1/events", "Events, oldest first; a live stream with Accept: text/event-stream", events, roles=ALL, query=EventQuery,
         answers={200: EventList}, errors=(403, 429)),
    Route("GET", "/v1/explain/{kind}/{id}", "Explain a pool, worker or claim in sentences", explained, roles=ALL, names=Kind, answers={200: Explanation}, errors=(403, 404)),
]  # fmt: skip
