"""The routes for claims: create, list, read, renew, release, cancel."""

import hashlib

import msgspec
from starlette.responses import Response

from ..claimpath.path import Submitted
from ..crash_points import crash_point
from ..model.claim import Claim
from ..model.duration import seconds
from ..model.pool import FieldProblem, Pool
from ..ports.store import NewClaim
from .claim_shapes import Cancel, ClaimList, ClaimRequest, ClaimView, GetQuery, ListQuery, Release, Renew, view
from .context import Context
from .problems import Problem, not_found, refused, unavailable
from .routes import OPERATORS, Call, Route, answer

LONGEST_WAIT = 60.0
ENOUGH = ("active", "ended")  # the states in which a claim is answered


async def ask(context: Context, call: Call) -> Response:
    request: ClaimRequest = call.body
    wait = min(_duration("wait", request.wait), LONGEST_WAIT)
    if request.tenant is not None and not call.caller.sees(request.tenant):
        raise Problem(403, "forbidden", "the tenant comes from your token; only admins and operators may name another")
    tenant = request.tenant or call.caller.tenant or "default"
    try:
        result, claim = await _submit(context, request, tenant, wait)
    except Problem as refusal:
        # A key names its claim also after its pool was deleted or changed, so that a holder finds its worker again (P1).
        known = await context.store.claims.by_key(tenant, request.key, _hash(request, tenant)) if request.key else None
        if known is None:
            raise refusal from None
        result, claim = Submitted(known, "same"), await context.claim_path.wait(known, ENOUGH, wait)
    if result.what == "other":
        detail = f"key {request.key!r} already names claim {result.claim}, which is another request"
        raise Problem(409, "key-taken", detail)
    if claim is None:
        lost = "the database lost this claim with its last commits; send the request again"
        raise Problem(503, "unavailable", lost, headers={"Retry-After": "2"})
    status = 200 if result.what == "same" else 201 if claim.state in ("active", "ended") else 202
    return answer(view(context, claim), status)


async def _submit(context: Context, request: ClaimRequest, tenant: str, wait: float) -> tuple[Submitted, Claim | None]:
    pool = await context.pool(request.pool)
    new = new_claim(context, request, tenant, pool)
    result, claim = await context.claim_path.submit(pool, new, ENOUGH, wait)
    if result.what == "closed":
        context.forget_pool(request.pool)
        raise not_found("pool", request.pool, "; it is being deleted")
    return result, claim


def new_claim(context: Context, request: ClaimRequest, tenant: str, pool: Pool) -> NewClaim:
    """Returns the claim to store. Checks what the types cannot express; every refusal names its field."""
    longest = _duration("maxDuration", request.max_duration) if request.max_duration else pool.spec.max_duration
    if longest > pool.spec.max_duration or longest <= 0:
        raise refused("maxDuration", f"must be more than 0s and at most the pool's {pool.spec.max_duration:.0f}s")
    lease = _duration("lease", request.lease) if request.lease else pool.spec.lease
    if lease is not None and not 1 <= lease <= longest:
        raise refused("lease", "must be at least 1s and at most maxDuration")
    if pool.spec.mode == "job" and not request.command and not pool.spec.has_command:
        hint = f"give one, as in `holdfast run --pool {pool.name} -- make test`"
        raise refused("command", f"pool {pool.name!r} runs the claim's own command, and none is given; {hint}")
    if request.command and pool.spec.mode == "session":
        hint = f"leave it out and hold a worker, as in `holdfast claim --pool {pool.name}`"
        raise refused("command", f"pool {pool.name!r} is for sessions, which run no command; {hint}")
    if request.command and pool.spec.worker.run:
        raise refused("command", f"pool {pool.name!r} runs its own command (worker.run); leave it out to run that")
    if request.secrets and not pool.spec.worker.agent:
        raise refused("secrets", f"pool {pool.name!r} has no agent that could receive them")
    if request.secrets and request.retry:
        raise refused("secrets", "are erased at hand-over, so a retry could not have them; leave out retry or secrets")
    if request.stdin:
        _check_takes_input(context, request, pool)
    if request.retry and pool.spec.mode == "session":
        raise refused("retry", "only jobs can be run again")
    deadline = _duration("deadline", request.deadline)
    if deadline <= 0:
        raise refused("deadline", "must be longer than 0s")
    return NewClaim(
        id=context.ids.new("c", 16),
        tenant=tenant,
        key=request.key,
        hash=_hash(request, tenant),
        request={"command": request.command, "payload": request.payload, "env": request.env}
        | ({"stdin": True} if request.stdin else {}),
        priority=request.priority,
        lease=lease,
        max_duration=longest,
        deadline=deadline,
        park_ttl=_duration("parkTTL", request.park_ttl) if request.park_ttl else None,
        retry=request.retry,
        secrets=request.secrets or None,
    )


def _check_takes_input(context: Context, request: ClaimRequest, pool: Pool) -> None:
    if pool.spec.mode == "session":
        raise refused("stdin", f"pool {pool.name!r} is for sessions, which run no command")
    if not pool.spec.worker.agent:
        raise refused("stdin", f"pool {pool.name!r} has no agent that could pass it on")
    if not context.cluster.passes_input:
        raise refused("stdin", "workers on Kubernetes cannot pass input to a command; send it as payload, env or a file instead")
    if request.retry:
        raise refused("stdin", "is sent once, so a retry could not have it; leave out retry or stdin")


def _hash(request: ClaimRequest, tenant: str) -> str:
    """Shows whether two requests with one key are the same. `wait` is left out, because it may differ between tries."""
    same = msgspec.structs.replace(request, wait="0s", tenant=tenant)
    return hashlib.sha256(msgspec.json.encode(same, order="deterministic")).hexdigest()[:32]


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
        pool=query.pool, tenant=tenant, state=query.state, limit=query.limit, cursor=query.cursor
    )
    return answer(ClaimList([view(context, claim) for claim in claims], after))


async def own(context: Context, call: Call) -> Claim:
    """Returns the claim of the path. Another tenant's claim is answered with 404, as if it did not exist."""
    id_ = call.path("id")
    found = await context.store.claims.get([id_])
    if not found and (await context.store.recovery.state()).uncertain:
        # The claim may be adopted soon. A holder that received 404 would give it up.
        raise unavailable("the database lost commits, and claims are being found again")
    if not found or not call.caller.sees(found[0].tenant):
        raise not_found("claim", id_)
    return found[0]


async def get(context: Context, call: Call) -> Response:
    claim = await own(context, call)
    until = ("ended",) if call.query.until == "ended" else ("active", "ended")
    wait = min(_duration("wait", call.query.wait), LONGEST_WAIT)
    if wait > 0 and claim.state not in until:
        claim = await context.claim_path.wait(claim.id, until, wait) or claim
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
        call.path("id"), outcome=outcome, how=how, reason=reason, states=states, fence=fence, tenant=tenant
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
         answers={201: ClaimView, 202: ClaimView, 200: ClaimView}, errors=(403, 404, 409)),
    Route("GET", "/v1/claims", "List claims, newest first", find, query=ListQuery, answers={200: ClaimList}, errors=(403,)),
    Route("GET", "/v1/claims/{id}", "One claim; may wait until it is active or has ended", get, query=GetQuery, answers={200: ClaimView}, errors=(404,)),
    Route("POST", "/v1/claims/{id}/renew", "Renew the lease", renew, body=Renew, answers={200: ClaimView}, errors=(404, 409)),
    Route("POST", "/v1/claims/{id}/release", "Give the worker back", release, body=Release, answers={200: ClaimView},
         errors=(403, 404, 409)),
    Route("POST", "/v1/claims/{id}/cancel", "Cancel a claim in any state", cancel, body=Cancel, answers={200: ClaimView}, errors=(404, 409)),
]  # fmt: skip
