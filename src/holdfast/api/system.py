"""The system itself over HTTP: duties, replicas, brake, doctor, tokens, history, health, metrics."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from prometheus_client import generate_latest
from starlette.responses import Response, StreamingResponse

from ..model.duration import Duration, seconds
from ..model.tenant import TenantName
from ..ports.cluster import ClusterUnavailable
from ..ports.store import Event, StoreUnavailable
from .auth import Caller, hash_token
from .claims import when
from .context import Context
from .doors import ADMINS, ALL, OPERATORS, PRINTED, Call, Door, PageQuery, answer, empty, page
from .explain import TOLD, explain
from .observe import refresh
from .pools import Because
from .problems import Problem, not_found, refused


class DutyView(msgspec.Struct, frozen=True, kw_only=True):
    duty: str
    holder: str | None
    number: int
    held: bool
    success_at: datetime | None
    age: float | None
    progress_at: datetime | None
    seconds: float | None
    actions: int
    skips: int
    taken_over: int
    failure: str | None


class DutyList(msgspec.Struct, frozen=True):
    items: list[DutyView]
    next: str | None = None


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    pid: int
    host: str
    url: str
    port: int
    version: str
    state: Literal["live", "silent", "stopped"]
    duties: list[str]
    started_at: datetime
    seen_at: datetime


class ReplicaList(msgspec.Struct, frozen=True):
    items: list[ReplicaView]
    next: str | None = None


class BrakeView(msgspec.Struct, frozen=True, kw_only=True):
    tripped: bool
    tripped_at: datetime | None
    reason: str | None
    limit: int
    share: float
    workers_ended: int
    claims_ended: int


class Check(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    promise: str
    ok: bool
    detail: str
    advice: str


class Doctor(msgspec.Struct, frozen=True):
    checks: list[Check]
    ok: bool


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


class EventList(msgspec.Struct, frozen=True):
    items: list[EventView]
    next: str | None


class EventQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    after: str | None = None
    claim: str | None = None
    worker: str | None = None
    pool: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    newest: bool = False


class NewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=PRINTED)]
    role: Literal["admin", "operator", "tenant"]
    tenant: TenantName | None = None
    expires_in: Duration | None = None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    role: Literal["admin", "operator", "tenant"]
    tenant: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    token: str | None = None  # only in the answer that made it


class TokenList(msgspec.Struct, frozen=True):
    items: list[TokenView]
    next: str | None = None


class Me(msgspec.Struct, frozen=True):
    role: str
    tenant: str | None
    install: str
    version: str


Kind = Literal["pool", "worker", "claim"]


class Explanation(msgspec.Struct, frozen=True):
    kind: Kind
    id: str
    sentences: list[str]
    facts: dict[str, Any]


async def duties(context: Context, call: Call) -> Response:
    views = [DutyView(**row) for row in await context.store.fleet.duties()]
    return answer(DutyList(*page(views, call.query, lambda view: view.duty)))


async def replicas(context: Context, call: Call) -> Response:
    rows = await context.store.fleet.replicas()
    views = [ReplicaView(port=int(row["url"].rpartition(":")[2]), **row) for row in rows]
    return answer(ReplicaList(*page(views, call.query, lambda view: f"{view.started_at.isoformat()} {view.id}")))


async def brake(context: Context, call: Call) -> Response:
    return answer(BrakeView(**await context.store.fleet.brake()))


async def release_brake(context: Context, call: Call) -> Response:
    if not await context.store.fleet.release_brake(call.body.reason):
        raise Problem(409, "not-tripped", "the brake does not hold")
    return await brake(context, call)


async def doctor(context: Context, call: Call) -> Response:
    checks = [Check(**row) for row in await context.store.check()]
    try:
        pods = await context.cluster.pods()
        known = {row.worker.id for row in await context.store.workers.rows(None)}
        now = await context.store.now()
        lost = [p.name for p in pods if p.name not in known and p.phase != "ended" and now - p.created_at > 120]
        detail = f"pods without a row: {', '.join(lost[:20])}" if lost else ""
        advice = "busy ones are quarantined: see events pod.quarantined; end them by hand once nobody needs them"
        checks.append(
            Check(
                promise="P5",
                name="every pod has a row",
                ok=not lost,
                detail=detail,
                advice=advice if lost else "",
            )
        )
    except ClusterUnavailable as error:
        name = "the cluster can be asked"
        checks.append(Check(promise="P7", name=name, ok=False, detail=str(error), advice="nothing is ended meanwhile"))
    return answer(Doctor(checks, all(check.ok for check in checks)))


async def events(context: Context, call: Call) -> Response:
    query: EventQuery = call.query
    after = query.after
    stream = "text/event-stream" in call.request.headers.get("accept", "")
    if stream:
        context.auth.may_stream(call.caller)
        after = call.request.headers.get("last-event-id") or after
    tenant = None if call.caller.trusted else call.caller.tenant
    about: dict[str, Any] = {
        "claim": query.claim,
        "worker": query.worker,
        "pool": query.pool,
        "tenant": tenant,
    }
    try:
        found, cursor = await context.store.history.events(after=after, limit=query.limit, newest=query.newest, **about)
    except ValueError as error:
        raise refused("after", str(error)) from None
    if stream:
        return StreamingResponse(_sse(context, call, found, cursor, about), media_type="text/event-stream")
    return answer(EventList([_event(event, call.caller) for event in found], cursor))


async def _sse(context: Context, call: Call, found: list[Event], cursor: str, about: dict[str, Any]) -> AsyncIterator[bytes]:
    quiet = 0.0
    with context.auth.streaming(call.caller):
        while not context.stopping.is_set():
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
                return  # the reader comes back with its Last-Event-ID


async def _news(context: Context, after: str, about: dict[str, Any]) -> tuple[list[Event], str]:
    """What happened since, and where to look from next time. Who hears of nothing moves on with the head of the whole history:
    otherwise every look would walk through all that others did since. What is at the head was complete when it was read, so
    a look that came later and found nothing skips nothing."""
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
        # P1: a tenant hears of a worker when its claim on it is active, not before.
        worker=event.worker if caller.trusted or event.kind in TOLD else None,
        claim=event.claim,
        tenant=event.tenant,
        data=event.data,
    )


async def explained(context: Context, call: Call) -> Response:
    kind, id_ = call.path("kind"), call.path("id")
    if kind not in ("pool", "worker", "claim"):
        raise not_found("kind", kind, "; pool, worker or claim can be explained")
    if kind != "claim" and not call.caller.trusted:
        raise Problem(403, "forbidden", "tenants explain their own claims")
    sentences, facts = await explain(context, call.caller, kind, id_)
    return answer(Explanation(kind, id_, sentences, facts))  # type: ignore[arg-type]


async def me(context: Context, call: Call) -> Response:
    return answer(Me(call.caller.role, call.caller.tenant, context.install, context.version))


async def tokens(context: Context, call: Call) -> Response:
    views = [TokenView(**row) for row in await context.store.access.tokens()]
    return answer(TokenList(*page(views, call.query, lambda view: view.id)))


async def make_token(context: Context, call: Call) -> Response:
    body: NewToken = call.body
    if (body.role == "tenant") != (body.tenant is not None):
        raise refused("tenant", "is required for the role tenant, and only for it")
    try:
        expires = seconds(body.expires_in) if body.expires_in else None
    except ValueError as error:
        raise refused("expiresIn", str(error)) from None
    if expires == 0:
        raise refused("expiresIn", "must be longer than 0s")
    token, id_ = context.ids.token(), context.ids.new("t")
    await context.store.access.make_token(id_, hash_token(token), body.name, body.role, body.tenant, expires)
    return answer(TokenView(id=id_, name=body.name, role=body.role, tenant=body.tenant, token=token), 201)


async def revoke(context: Context, call: Call) -> Response:
    if call.path("id") == call.caller.id:
        raise Problem(409, "own-token", "this is the token that you use")
    if not await context.store.access.revoke(call.path("id")):
        raise not_found("token", call.path("id"))
    return empty()


async def healthz(context: Context, call: Call) -> Response:
    """Alive: the event loop turns. A replica that lost its store is not restarted for it."""
    return answer({"ok": True})


async def readyz(context: Context, call: Call) -> Response:
    now = asyncio.get_running_loop().time()
    heard = context.replica.beat_at
    if context.stopping.is_set() or heard is None or now - heard > 5:
        raise Problem(
            503,
            "not-ready",
            "no beat of this replica was stored in the last 5 s",
            headers={"Retry-After": "2"},
        )
    return answer({"ok": True})


async def metrics(context: Context, call: Call) -> Response:
    await refresh(context)
    return Response(generate_latest(context.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")


DOORS = [
    Door("GET", "/v1/duties", "Who does what, and when it last succeeded", duties, roles=OPERATORS, query=PageQuery, answers={200: DutyList}),
    Door("GET", "/v1/replicas", "Replicas and their duties", replicas, roles=OPERATORS, query=PageQuery, answers={200: ReplicaList}),
    Door("GET", "/v1/brake", "The brake", brake, roles=OPERATORS, answers={200: BrakeView}),
    Door("POST", "/v1/brake/release", "Release the brake", release_brake, roles=OPERATORS, body=Because,
         answers={200: BrakeView}, errors=(409,)),
    Door("GET", "/v1/doctor", "Check the promises on the running system", doctor, roles=OPERATORS, answers={200: Doctor}),
    Door("GET", "/v1/events", "The history, oldest first; live with Accept: text/event-stream", events, roles=ALL, query=EventQuery,
         answers={200: EventList}, errors=(429,)),
    Door("GET", "/v1/explain/{kind}/{id}", "Why, in sentences", explained, roles=ALL, names=Kind, answers={200: Explanation}, errors=(403, 404)),
    Door("GET", "/v1/me", "Who am I", me, roles=ALL, answers={200: Me}),
    Door("GET", "/v1/tokens", "All tokens, without the tokens", tokens, roles=ADMINS, query=PageQuery, answers={200: TokenList}),
    Door("POST", "/v1/tokens", "Make a token; shown once", make_token, roles=ADMINS, body=NewToken, answers={201: TokenView}),
    Door("DELETE", "/v1/tokens/{id}", "Revoke a token", revoke, roles=ADMINS, answers={204: None}, errors=(404, 409)),
    Door("GET", "/healthz", "Alive", healthz, roles=()),
    Door("GET", "/readyz", "Ready for requests", readyz, roles=(), errors=(503,)),
    Door("GET", "/metrics", "Prometheus", metrics, roles=OPERATORS, raw="text/plain"),
]  # fmt: skip
