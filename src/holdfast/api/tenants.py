"""The routes for tenants: their limits, how many claims they have, and their deletion."""

import msgspec
from starlette.responses import Response

from ..model.duration import seconds
from ..model.nearest import suggest
from ..model.pool import FieldProblem
from ..model.tenant import Tenant, TenantName, TenantSpec
from .context import Context
from .problems import Problem, field_problems, name_problems, not_found
from .routes import ADMINS, OPERATORS, Call, PageQuery, Route, answer, empty, page


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    spec: TenantSpec
    live: int
    waiting: int


class TenantList(msgspec.Struct, frozen=True):
    items: list[TenantView]
    next: str | None = None


async def tenants(context: Context, call: Call) -> Response:
    views = [_tenant(tenant) for tenant in await context.store.pools.tenants()]
    return answer(TenantList(*page(views, call.query, lambda view: view.name)))


async def tenant(context: Context, call: Call) -> Response:
    name = call.path("name")
    known = {tenant.name: tenant for tenant in await context.store.pools.tenants()}
    found = known.get(name)
    if found is None:
        raise not_found("tenant", name, suggest(name, known))
    return answer(_tenant(found))


async def put_tenant(context: Context, call: Call) -> Response:
    name = call.path("name")
    if found := name_problems(name, TenantName) + tenant_problems(call.body):
        raise field_problems(found)
    return answer(_tenant(await context.store.pools.put_tenant(name, call.body, call.caller.actor)))


async def delete_tenant(context: Context, call: Call) -> Response:
    name = call.path("name")
    result = await context.store.pools.delete_tenant(name, call.caller.actor)
    if result.live or result.waiting:
        detail = (
            f"tenant {name!r} has {result.live} live and {result.waiting} waiting claims; end them first"
            f" (`holdfast get claims --tenant {name}` lists them)"
        )
        raise Problem(409, "in-use", detail)
    if not result.deleted:
        known = [tenant.name for tenant in await context.store.pools.tenants()]
        raise not_found("tenant", name, suggest(name, known))
    context.signals.tenants.changed(name)  # other replicas receive a notice
    return empty()


def tenant_problems(spec: TenantSpec) -> list[FieldProblem]:
    """Returns what is wrong with a tenant's limits that the types cannot express."""
    try:
        seconds(spec.park_ttl or "0s")
    except ValueError as error:
        return [FieldProblem("parkTTL", str(error))]
    return []


def _tenant(found: Tenant) -> TenantView:
    return TenantView(name=found.name, spec=found.spec, live=found.live, waiting=found.waiting)


ROUTES = [
    Route("GET", "/v1/tenants", "All tenants", tenants, roles=OPERATORS, query=PageQuery, answers={200: TenantList}),
    Route("GET", "/v1/tenants/{name}", "One tenant", tenant, roles=OPERATORS, answers={200: TenantView}, errors=(404,)),
    Route("DELETE", "/v1/tenants/{name}", "Delete a tenant that has no live or waiting claims, and its tokens", delete_tenant, roles=ADMINS,
         answers={204: None}, errors=(404, 409)),
    Route("PUT", "/v1/tenants/{name}", "Set a tenant's limits", put_tenant, roles=ADMINS, names=TenantName, body=TenantSpec, answers={200: TenantView}),
]  # fmt: skip
