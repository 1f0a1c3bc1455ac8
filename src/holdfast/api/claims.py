"""Claims over HTTP: ask, look, renew, release, cancel, read the output."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response, StreamingResponse

from ..engine.crash import crash_point
from ..engine.desk import Poisoned
from ..model.claim import Claim
from ..model.duration import Duration, seconds
from ..model.outcome import Done, Skipped
from ..model.pool import Arg, Name, Pool
from ..model.tenant import TenantName
from ..ports.store import NewClaim, Pair
from .context import Context
from .doors import OPERATORS, PRINTED, Call, Door, Line, answer
from .problems import Problem, not_found, refused, unavailable

EnvName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$(?!\n)")]
LONGEST_WAIT = 60.0
CHUNK = 64 * 1024


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pool: Name
    tenant: TenantName | None = None
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=PRINTED)] | None = None
    command: Annotated[list[Arg], msgspec.Meta(max_length=256)] = []
    payload: Any = None
    env: dict[EnvName, Arg] = {}
    secrets: dict[EnvName, Arg] = {}
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    wait: Duration = "10s"
    deadline: Duration = "1h"
    lease: Duration | None = None
    max_duration: Duration | None = None
    park_ttl: Duration | None = msgspec.field(default=None, name="parkTTL")
    retry: Literal["lost"] | None = None


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds spent waiting for a worker, being handed over, and held."""

    wait: float | None = None
    hand_over: float | None = None
    hold: float | None = None


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: Literal["waiting", "assigned", "active", "ended"]
    reason: str
    pool: str
    tenant: str
    priority: int
    attempts: int
    created_at: datetime
    timings: Timings
    key: str | None = None
    worker: str | None = None
    endpoint: str | None = None
    credential: str | None = None
    fence: int | None = None
    protected: bool | None = None
    outcome: Literal["completed", "failed", "released", "expired", "cancelled", "lost", "refused"] | None = None
    exit_code: int | None = None
    assigned_at: datetime | None = None
    active_at: datetime | None = None
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    lease_until: datetime | None = None
    max_until: datetime | None = None


class ClaimList(msgspec.Struct, frozen=True):
    items: list[ClaimView]
    next: str | None


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pool: str | None = None
    tenant: str | None = None
    state: Literal["waiting", "assigned", "active", "ended"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class GetQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    wait: Duration = "0s"
    until: Literal["active", "ended"] = "active"


class OutputQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    follow: bool = False


class Renew(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fence: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fence: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] | None = None
    force: bool = False
    reason: Line = ""


class Cancel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Line = ""


def when(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def view(context: Context, claim: Claim) -> ClaimView:
    active = claim.state == "active"
    told = claim.active_at is not None  # P1, P3: a holder hears of its worker when it is active, not before
    shows = active and claim.endpoint is not None and claim.fence is not None
    return ClaimView(
        id=claim.id,
        state=claim.state,
        reason=claim.reason,
        pool=claim.pool,
        tenant=claim.tenant,
        priority=claim.priority,
        attempts=claim.attempts,
        key=claim.key,
        worker=claim.worker if told else None,
        endpoint=claim.endpoint if active else None,
        credential=context.auth.credential(claim.id, claim.fence) if shows and claim.fence is not None else None,
        fence=claim.fence if told else None,
        protected=claim.protected if told else None,
        outcome=claim.outcome,
        exit_code=claim.exit_code,
        created_at=datetime.fromtimestamp(claim.created_at, UTC),
        assigned_at=when(claim.assigned_at),
        active_at=when(claim.active_at),
        ended_at=when(claim.ended_at),
        deadline_at=when(claim.deadline_at) if claim.state == "waiting" else None,
        lease_until=when(claim.lease_until) if active else None,
        max_until=when(claim.max_until) if active else None,
        timings=Timings(
            wait=_between(claim.created_at, claim.assigned_at),
            hand_over=_between(claim.assigned_at, claim.active_at),
            hold=_between(claim.active_at, claim.ended_at),
        ),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(0.0, end - start), 6)


async def ask(context: Context, call: Call) -> Response:
    asked: ClaimRequest = call.body
    wait = min(_duration("wait", asked.wait), LONGEST_WAIT)
    pool = await context.pool(asked.pool)
    new = new_claim(context, call, asked, pool)
    try:
        result = await context.desk.ask(pool, new)
    except Poisoned:
        raise refused("body", "the store cannot keep this request") from None
    if result.what == "closed":
        context.forget_pool(asked.pool)
        raise not_found("pool", asked.pool, "; it is being deleted")
    if result.what == "other":
        detail = f"key {asked.key!r} already names claim {result.claim}, which is another request"
        raise Problem(409, "key-taken", detail)
    if result.active is not None:
        context.counting.granted(pool.name)
        return answer(_granted(pool, new, result.active), 201)
    claim = await context.desk.wait(result.claim, ("active", "ended"), wait)
    assert claim is not None
    status = 200 if result.what == "same" else 201 if claim.state in ("active", "ended") else 202
    return answer(view(context, claim), status)


def new_claim(context: Context, call: Call, asked: ClaimRequest, pool: Pool) -> NewClaim:
    """Validate what the types cannot; every refusal names its field."""
    if asked.tenant is not None and not call.caller.sees(asked.tenant):
        raise Problem(403, "forbidden", "the tenant comes from your token; only admins and operators name another")
    tenant = asked.tenant or call.caller.tenant or "default"
    longest = _duration("maxDuration", asked.max_duration) if asked.max_duration else pool.spec.max_duration
    if longest > pool.spec.max_duration or longest <= 0:
        raise refused("maxDuration", f"must be more than 0s and at most the pool's {pool.spec.max_duration:.0f}s")
    lease = _duration("lease", asked.lease) if asked.lease else pool.spec.lease
    if lease is not None and not 1 <= lease <= longest:
        raise refused("lease", "must be at least 1s and at most maxDuration")
    if pool.spec.mode == "job" and not asked.command and not pool.spec.worker.run and pool.spec.worker.agent:
        raise refused("command", f"pool {pool.name!r} runs the claim's own command, and none is given")
    if asked.command and (pool.spec.mode == "session" or pool.spec.worker.run):
        raise refused("command", f"pool {pool.name!r} decides itself what runs")
    if asked.secrets and asked.retry:
        raise refused("secrets", "are erased at hand-over, so a retry could not have them; leave out retry or secrets")
    if asked.retry and pool.spec.mode == "session":
        raise refused("retry", "only jobs can be run again")
    deadline = _duration("deadline", asked.deadline)
    if deadline <= 0:
        raise refused("deadline", "must be longer than 0s")
    # The hash says whether a key names the same request; how long a call waits does not make it another.
    same = msgspec.structs.replace(asked, wait="0s", tenant=tenant)
    return NewClaim(
        id=context.ids.new("c", 16),
        tenant=tenant,
        key=asked.key,
        hash=hashlib.sha256(msgspec.json.encode(same, order="deterministic")).hexdigest()[:32],
        request={"command": asked.command, "payload": asked.payload, "env": asked.env},
        priority=asked.priority,
        lease=lease,
        max_duration=longest,
        deadline=deadline,
        park_ttl=_duration("parkTTL", asked.park_ttl) if asked.park_ttl else None,
        retry=asked.retry,
        secrets=asked.secrets or None,
    )


def _granted(pool: Pool, new: NewClaim, pair: Pair) -> ClaimView:
    """The answer of a claim that was served by its own batch: known without asking again."""
    at = datetime.fromtimestamp(pair.at, UTC)
    return ClaimView(
        id=pair.claim,
        state="active",
        reason="",
        pool=pool.name,
        tenant=new.tenant,
        priority=new.priority,
        attempts=1,
        key=new.key,
        worker=pair.worker,
        fence=pair.fence,
        protected=pool.spec.protection.mode == "always",
        created_at=at,
        assigned_at=at,
        active_at=at,
        lease_until=when(pair.at + new.lease) if new.lease else None,
        max_until=when(pair.at + new.max_duration),
        timings=Timings(wait=0.0, hand_over=0.0),
    )


def _duration(field: str, text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise refused(field, str(error)) from None


async def find(context: Context, call: Call) -> Response:
    query: ListQuery = call.query
    if query.tenant is not None and not call.caller.sees(query.tenant):
        raise Problem(403, "forbidden", "a tenant lists its own claims only")
    tenant = query.tenant if call.caller.trusted else call.caller.tenant
    if query.cursor is not None:
        found = await context.store.claims.get([query.cursor])
        if not found or not call.caller.sees(found[0].tenant):
            raise refused("cursor", "is not one of this list, or its claim was pruned: begin again")
    claims, after = await context.store.claims.find(
        pool=query.pool, tenant=tenant, state=query.state, limit=query.limit, cursor=query.cursor
    )
    return answer(ClaimList([view(context, claim) for claim in claims], after))


async def own(context: Context, call: Call) -> Claim:
    """The claim of the path, if the caller may see it: another tenant's does not exist."""
    id_ = call.path("id")
    found = await context.store.claims.get([id_])
    if not found and (await context.store.fleet.state()).recovering:
        # It may be one of those that are being adopted: a holder that heard 404 would give it up.
        raise unavailable("the database lost commits, and claims are being found again")
    if not found or not call.caller.sees(found[0].tenant):
        raise not_found("claim", id_)
    return found[0]


async def get(context: Context, call: Call) -> Response:
    claim = await own(context, call)
    until = ("ended",) if call.query.until == "ended" else ("active", "ended")
    wait = min(_duration("wait", call.query.wait), LONGEST_WAIT)
    if wait > 0 and claim.state not in until:
        claim = await context.desk.wait(claim.id, until, wait) or claim
    return answer(view(context, claim))


async def renew(context: Context, call: Call) -> Response:
    claim = await own(context, call)
    if not await context.store.claims.renew(claim.id, call.body.fence):
        raise stale(await own(context, call))
    return answer(view(context, await own(context, call)))


async def release(context: Context, call: Call) -> Response:
    claim = await own(context, call)
    body: Release = call.body
    if body.force:
        if call.caller.role not in OPERATORS:
            raise Problem(403, "forbidden", "only operators and admins release by force")
        if not body.reason.strip():
            raise refused("reason", "is required with force: it is written into the claim's history")
        await end(context, claim, "released", "force", f"forced by an operator: {body.reason}", None)
    else:
        await end(context, claim, "released", "release", body.reason or "released by its holder", body.fence)
    return answer(view(context, await own(context, call)))


async def cancel(context: Context, call: Call) -> Response:
    claim = await own(context, call)
    await end(context, claim, "cancelled", "cancel", call.body.reason or "cancelled by its holder", None)
    return answer(view(context, await own(context, call)))


async def end(context: Context, claim: Claim, outcome: str, how: str, reason: str, fence: int | None) -> None:
    """End a claim by its holder or an operator. Ended already, the same way: success, so that a retry is safe."""
    states = ("assigned", "active") if outcome == "released" else ("waiting", "assigned", "active")
    result = await context.store.claims.end(claim.id, outcome=outcome, how=how, reason=reason, states=states, fence=fence)
    crash_point("release.stored")
    if isinstance(result, Done):
        await context.counting.ended(claim.id, how)
        context.wakes.wake_claim(claim.id)
        if claim.worker is not None:
            context.wakes.wake_worker(claim.worker)
            context.replica.hint({claim.worker})
        return
    if isinstance(result, Skipped):
        raise Problem(503, result.by, f"not now: {result.by}", headers={"Retry-After": "5"})
    now = (await context.store.claims.get([claim.id]))[0]
    if now.state == "ended" and now.outcome == outcome and (fence is None or now.fence == fence):
        return
    raise stale(now)


def stale(claim: Claim) -> Problem:
    if claim.state == "ended":
        return Problem(409, "ended", f"claim {claim.id} has ended: {claim.outcome} ({claim.reason})")
    if claim.state != "active":
        return Problem(409, "stale", f"claim {claim.id} is {claim.state}")
    return Problem(409, "stale", "the fence is not the claim's: it was served again, or the fence is another's")


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
    with context.wakes.claim(claim.id) as woken:
        while not context.stopping.is_set():
            piece = await context.cluster.output(claim.id, claim.worker or "", offset, CHUNK)
            if piece.data:
                offset += len(piece.data)
                yield piece.data
                continue
            if ended or not await context.auth.still(call.request.headers.get("authorization")):
                return
            # Ended first, then once more to the end of the file: the last bytes are written before the result.
            found = await context.store.claims.get([claim.id])
            ended = not found or found[0].state == "ended"
            if found:
                claim = found[0]
            if not ended:
                try:
                    await asyncio.wait_for(woken.wait(), 0.25)
                except TimeoutError:
                    continue
                woken.clear()


DOORS = [
    Door("POST", "/v1/claims", "Ask for a worker", ask, body=ClaimRequest,
         answers={201: ClaimView, 202: ClaimView, 200: ClaimView}, errors=(403, 404, 409)),
    Door("GET", "/v1/claims", "List claims, newest first", find, query=ListQuery, answers={200: ClaimList}, errors=(403,)),
    Door("GET", "/v1/claims/{id}", "One claim; may wait for it", get, query=GetQuery, answers={200: ClaimView}, errors=(404,)),
    Door("POST", "/v1/claims/{id}/renew", "Renew the lease", renew, body=Renew, answers={200: ClaimView}, errors=(404, 409)),
    Door("POST", "/v1/claims/{id}/release", "Give the worker back", release, body=Release, answers={200: ClaimView},
         errors=(403, 404, 409)),
    Door("POST", "/v1/claims/{id}/cancel", "Cancel, waiting or not", cancel, body=Cancel, answers={200: ClaimView}, errors=(404, 409)),
    Door("GET", "/v1/claims/{id}/output", "What its command printed", output, query=OutputQuery, errors=(404,),
         raw="application/octet-stream"),
]  # fmt: skip
