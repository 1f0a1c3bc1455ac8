"""The routes for claims: create, list, read, renew, release, cancel."""

import hashlib

import msgspec
from starlette.responses import Response

from ..claimpath.path import Submitted
from ..crash_points import crash_point
from ..model.claim import Claim
from ..model.duration import seconds
from ..model.pool import FieldProblem, Pool
from ..model.tenant import TenantSpec
from ..ports.store import NewClaim
from .claim_checks import check
from .claim_shapes import Cancel, ClaimList, ClaimRequest, ClaimView, GetQuery, ListQuery, Release, Renew, view
from .context import Context
from .encryption import Cipher
from .filters import known_pool, labels, moment
from .problems import Problem, not_found, refused, revoked, unavailable
from .routes import OPERATORS, Call, Route, answer

LONGEST_WAIT = 60.0
ENOUGH = ("active", "ended")  # the states in which a claim is answered


async def ask(context: Context, call: Call) -> Response:
    request: ClaimRequest = call.body
    if request.tenant is not None and not call.caller.sees(request.tenant):
        raise Problem(403, "forbidden", "the tenant comes from your token; only admins and operators may name another")
    tenant = request.tenant or call.caller.tenant or "default"
    try:
        result, claim = await _submit(context, call, tenant)
    except Problem as refusal:
        # A key names its claim also after its pool was deleted or changed, so that a holder finds its worker again (P1).
        hashes = _hashes(context.cipher, request, tenant)
        known = await context.store.claims.by_key(tenant, request.key, *hashes) if request.key else None
        if known is None or any(found.field == "wait" for found in refusal.errors):
            raise refusal from None
        wait = min(_duration("wait", request.wait), LONGEST_WAIT)
        call.only_waits()
        result, claim = Submitted(known, "same"), await context.claim_path.wait(known, ENOUGH, wait)
    if not await context.still_allowed(call.request.headers.get("authorization")):
        if result.what == "new":
            await context.revocation.end(result.claim)  # it is live only if the notice of the revocation was lost
        raise revoked()
    if result.what == "other":
        detail = f"key {request.key!r} already names claim {result.claim}, which is another request"
        raise Problem(409, "key-taken", detail)
    if claim is None:
        lost = "the database lost this claim with its last commits; send the request again"
        raise Problem(503, "unavailable", lost, headers={"Retry-After": "2"})
    status = 200 if result.what == "same" else 201 if claim.state in ("active", "ended") else 202
    return answer(view(context, claim), status)


async def _submit(context: Context, call: Call, tenant: str) -> tuple[Submitted, Claim | None]:
    request: ClaimRequest = call.body
    pool = await context.pool(request.pool)
    new = msgspec.structs.replace(new_claim(context, request, tenant, pool), actor=call.caller.actor)
    wait = min(seconds(request.wait), LONGEST_WAIT)
    with context.revocation.watching(call.caller.id, new.id):
        result, claim = await context.claim_path.submit(pool, new, ENOUGH, wait, on_stored=call.only_waits)
    if result.what == "closed":
        context.forget_pool(request.pool)
        raise not_found("pool", request.pool, "; it is being deleted")
    if result.what == "full":
        raise await _queue_full(context, tenant)
    return result, claim


async def _queue_full(context: Context, tenant: str) -> Problem:
    limits = (await context.store.pools.limits([tenant])).get(tenant, TenantSpec())
    detail = (
        f"tenant {tenant!r} has as many waiting claims as it may have (maxWaiting is {limits.max_waiting}); try again when some of"
        " them have got a worker, or cancel some"
    )
    return Problem(429, "queue-full", detail, headers={"Retry-After": "5"})


def new_claim(context: Context, request: ClaimRequest, tenant: str, pool: Pool) -> NewClaim:
    """Returns the claim to store, or raises a Problem with all mistakes of the request."""
    times = check(request, pool, passes_input=context.cluster.passes_input)
    id_ = context.ids.new("c", 16)
    hash_, hash_before = _hashes(context.cipher, request, tenant)
    return NewClaim(
        id=id_,
        tenant=tenant,
        key=request.key,
        hash=hash_,
        hash_before=hash_before,
        request={"command": request.command, "payload": request.payload, "env": request.env}
        | ({"stdin": True} if request.stdin else {}),
        priority=request.priority,
        lease=times.lease,
        max_duration=times.max_duration,
        deadline=times.deadline,
        park_ttl=times.park_ttl,
        retry=request.retry,
        secrets=context.cipher.encrypt(id_, request.secrets) if request.secrets else None,
        labels=request.labels or None,
        lease_chosen=request.lease is not None,
        max_chosen=request.max_duration is not None,
    )


def _hashes(cipher: Cipher, request: ClaimRequest, tenant: str) -> tuple[str, str | None]:
    """Returns the hash that shows whether two requests with one key are the same, and the hash that the release before stored, if
    it was another. `wait` is left out, because it may differ between tries. The hash of a request with secrets depends on the
    installation's key, because everything else that it depends on can be read in the database, so that a short secret could be
    found by trying. Requests without secrets keep the hash of the release before, so that both releases know their keys."""
    same = msgspec.structs.replace(
        request, wait="0s", tenant=tenant, labels=request.labels or msgspec.UNSET, stdin=request.stdin or msgspec.UNSET
    )
    encoded = msgspec.json.encode(same, order="deterministic")
    plain = hashlib.sha256(encoded).hexdigest()[:32]
    if not request.secrets:
        return plain, None
    return cipher.hash(encoded), plain if request.key else None


def _duration(field: str, text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise refused(field, str(error)) from None


async def find(context: Context, call: Call) -> Response:
    query: ListQuery = call.query
    if query.tenant is not None and not call.caller.sees(query.tenant):
        raise Problem(403, "forbidden", "a tenant may list only its own claims")
    tenant = query.tenant if call.caller.trusted else call.caller.tenant
    if query.cursor is not None:
        found = await context.store.claims.get([query.cursor])
        if not found or not call.caller.sees(found[0].tenant):
            raise refused("cursor", "is not a cursor of this list, or its claim was pruned; start again without a cursor")
    claims, after = await context.store.claims.find(
        limit=query.limit,
        cursor=query.cursor,
        pool=await known_pool(context, query.pool),
        tenant=tenant,
        state=query.state,
        outcome=query.outcome,
        key=query.key,
        worker=query.worker,
        since=await moment(context, "since", query.since),
        labels=labels(query.label),
    )
    return answer(ClaimList([view(context, claim, listed=True) for claim in claims], after))


async def own(context: Context, call: Call) -> Claim:
    """Returns the claim of the path. Another tenant's claim is answered with 404, as if it did not exist."""
    id_ = call.path("id")
    found = await context.store.claims.get([id_])
    if not found and (await context.store.recovery.state()).uncertain:
        # The claim may be adopted soon. A holder that received 404 would give it up.
        raise unavailable("the database lost commits, and claims are being found again")
    if not found or not call.caller.sees(found[0].tenant):
        raise await context.unknown_claim(id_, call.caller)
    return found[0]


async def get(context: Context, call: Call) -> Response:
    claim = await own(context, call)
    until = ("ended",) if call.query.until == "ended" else ("active", "ended")
    wait = min(_duration("wait", call.query.wait), LONGEST_WAIT)
    if wait > 0 and claim.state not in until:
        call.only_waits()
        claim = await context.claim_path.wait(claim.id, until, wait) or claim
        if not await context.still_allowed(call.request.headers.get("authorization")):
            raise revoked()
    return answer(view(context, claim))


async def renew(context: Context, call: Call) -> Response:
    tenant = None if call.caller.trusted else call.caller.tenant
    claim = await context.store.claims.renew(call.path("id"), call.body.fence, tenant)
    if claim is None:
        raise stale(await own(context, call))
    return answer(view(context, claim))


async def release(context: Context, call: Call) -> Response:
    body: Release = call.body
    if body.force:
        if call.caller.role not in OPERATORS:
            raise Problem(403, "forbidden", "only operators and admins may release by force")
        if not body.reason.strip():
            raise refused("reason", "is required with force: it is written into the claim's history")
        return await end(context, call, "released", "force", f"forced by an operator: {body.reason}")
    # The fence proves that the caller acts for the holder, so an operator or admin who sends it may release the claim.
    holder = None if call.caller.trusted and body.fence is not None else _tenant(call)
    return await end(context, call, "released", "release", body.reason or "released by its holder", holder, body.fence)


async def cancel(context: Context, call: Call) -> Response:
    reason: str = call.body.reason
    if call.caller.trusted and (await own(context, call)).tenant != _tenant(call):
        if not reason.strip():
            raise refused("reason", "is required for another tenant's claim: it is written into the claim's history")
        return await end(context, call, "cancelled", "force", f"cancelled by an operator: {reason}")
    return await end(context, call, "cancelled", "cancel", reason or "cancelled by its holder", _tenant(call))


def _tenant(call: Call) -> str:
    """Returns the tenant for which the caller holds claims. It is `default` for admins and operators without a tenant."""
    return call.caller.tenant or "default"


async def end(
    context: Context, call: Call, outcome: str, how: str, reason: str, tenant: str | None = None, fence: int | None = None
) -> Response:
    """Ends a claim by its holder (`tenant`) or by an operator, in one statement. A claim that has already ended the same way is a
    success, so that a caller can safely try again after a lost answer."""
    states = ("assigned", "active") if outcome == "released" else ("waiting", "assigned", "active")
    ended = await context.store.claims.end(
        call.path("id"),
        outcome=outcome,
        how=how,
        reason=reason,
        states=states,
        fence=fence,
        tenant=tenant,
        actor=call.caller.actor,
    )
    context.claim_path.ended(ended, how)
    crash_point("release.stored")
    if ended.claim is not None:
        return answer(view(context, ended.claim))
    claim = await own(context, call)
    if tenant is not None and claim.tenant != tenant:
        detail = (
            f"claim {claim.id} belongs to tenant {claim.tenant!r}; send its fence (`holdfast release {claim.id} --fence N`),"
            " or use force with a reason (`--force --reason …`)"
        )
        raise Problem(403, "forbidden", detail, [FieldProblem("fence", "is required for another tenant's claim")])
    if claim.state == "ended" and claim.outcome == outcome and (fence is None or claim.fence == fence):
        return answer(view(context, claim))
    raise stale(claim)


def stale(claim: Claim) -> Problem:
    if claim.state == "ended":
        return Problem(409, "ended", f"claim {claim.id} has ended: {claim.outcome} ({claim.reason})")
    if claim.state != "active":
        return Problem(409, "stale", f"claim {claim.id} is {claim.state} and not active yet; wait for it, or cancel it")
    return Problem(
        409,
        "stale",
        f"the fence is not the current one of claim {claim.id}: the claim got another worker since, or the fence is another"
        f" claim's; `holdfast get claims {claim.id} -o json` shows the current one",
    )


ROUTES = [
    Route("POST", "/v1/claims", "Claim a worker", ask, body=ClaimRequest,
         answers={201: ClaimView, 202: ClaimView, 200: ClaimView}, errors=(403, 404, 409, 429)),
    Route("GET", "/v1/claims", "List claims, newest first", find, query=ListQuery, answers={200: ClaimList}, errors=(403,)),
    Route("GET", "/v1/claims/{id}", "One claim; may wait until it is active or has ended", get, query=GetQuery, answers={200: ClaimView}, errors=(404,)),
    Route("POST", "/v1/claims/{id}/renew", "Renew the lease", renew, body=Renew, answers={200: ClaimView}, errors=(404, 409), urgent=True),
    Route("POST", "/v1/claims/{id}/release", "Give the worker back", release, body=Release, answers={200: ClaimView},
         errors=(403, 404, 409), urgent=True),
    Route("POST", "/v1/claims/{id}/cancel", "Cancel a claim in any state", cancel, body=Cancel, answers={200: ClaimView}, errors=(404, 409),
         urgent=True),
]  # fmt: skip
