"""The routes for tokens. Admins create them, and each token is shown once."""

from datetime import datetime
from typing import Annotated

import msgspec
from starlette.responses import Response

from ..model.duration import Duration, seconds
from ..model.nearest import suggest_id
from ..model.pool import FieldProblem
from ..model.tenant import TenantName
from .auth import Role, hash_token
from .context import Context
from .problems import Problem, field_problems, not_found
from .routes import ADMINS, ONE_LINE, PRINTED, Call, PageQuery, Route, answer, empty, page

NOT_SEPARATED = (
    "this fleet runs commands on its own machine, as its own user. A person with this token can read the fleet's key, its admin"
    " token, its database and the output of all tenants, by a command that does so. Give it only to people that you trust with all"
    " of that (docs/security.md)"
)


class NewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=PRINTED, extra=ONE_LINE)]
    role: Role
    tenant: TenantName | None = None
    expires_in: Duration | None = None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    role: Role
    tenant: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    token: str | None = None  # only in the answer to the request that created it
    warning: str | None = None  # what to know before the token is given away; in the same answer only


class RevokeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cancel: bool = False


class Revoked(msgspec.Struct, frozen=True):
    id: str
    cancelled: list[str]


class TokenList(msgspec.Struct, frozen=True):
    items: list[TokenView]
    next: str | None = None


async def tokens(context: Context, call: Call) -> Response:
    views = [TokenView(**row) for row in await context.store.tokens.all()]
    return answer(TokenList(*page(views, call.query, lambda view: view.id)))


async def make_token(context: Context, call: Call) -> Response:
    body: NewToken = call.body
    found: list[FieldProblem] = []
    expires: float | None = None
    if (body.role == "tenant") != (body.tenant is not None):
        found.append(FieldProblem("tenant", "is required for the role tenant, and only for it"))
    try:
        expires = seconds(body.expires_in) if body.expires_in else None
    except ValueError as error:
        found.append(FieldProblem("expiresIn", str(error)))
    if expires == 0:
        found.append(FieldProblem("expiresIn", "must be longer than 0s"))
    if found:
        raise field_problems(found)
    token, id_ = context.ids.token(), context.ids.new("t")
    await context.store.tokens.make(id_, hash_token(token), body.name, body.role, body.tenant, expires, call.caller.actor)
    warning = NOT_SEPARATED if body.role == "tenant" and not context.cluster.separates_jobs else None
    return answer(TokenView(id=id_, name=body.name, role=body.role, tenant=body.tenant, token=token, warning=warning), 201)


async def revoke(context: Context, call: Call) -> Response:
    id_ = call.path("id")
    if id_ == call.caller.id:
        raise Problem(409, "own-token", "this is the token that you use; revoke it with another token")
    found = await context.store.tokens.revoke(id_, call.caller.actor)
    context.signals.tokens.changed(id_)  # other replicas receive a notice
    # The token is revoked first, so that it makes no further claims. The claims are found also if it was revoked before.
    claims = await context.store.tokens.claims_of(id_) if call.query.cancel else []
    if not found and not claims:
        known = [row["id"] for row in await context.store.tokens.all()]
        raise not_found("token", id_, suggest_id(id_, known))
    cancelled = [claim for claim in claims if await _cancel(context, call, claim)]
    return answer(Revoked(id_, cancelled)) if call.query.cancel else empty()


async def _cancel(context: Context, call: Call, claim: str) -> bool:
    ended = await context.store.claims.end(
        claim,
        outcome="cancelled",
        how="force",
        reason=f"its token {call.path('id')} was revoked",
        states=("waiting", "assigned", "active"),
        actor=call.caller.actor,
    )
    context.claim_path.ended(ended, "force")
    return ended.claim is not None


ROUTES = [
    Route("GET", "/v1/tokens", "All tokens, without their values", tokens, roles=ADMINS, query=PageQuery, answers={200: TokenList}),
    Route("POST", "/v1/tokens", "Create a token; it is shown once", make_token, roles=ADMINS, body=NewToken, answers={201: TokenView}),
    Route("DELETE", "/v1/tokens/{id}", "Revoke a token, and with `cancel` end the claims that it made", revoke, roles=ADMINS, query=RevokeQuery, answers={204: None, 200: Revoked}, errors=(404, 409)),
]  # fmt: skip
