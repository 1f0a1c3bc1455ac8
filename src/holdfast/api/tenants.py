"""The routes for tenants: their limits, and how many claims they have."""

import msgspec
from starlette.responses import Response

from ..model.duration import seconds
from ..model.pool import FieldProblem
from ..model.tenant import Tenant, TenantName, TenantSpec
from .context import Context
from .problems import field_problems, not_found, refused
from .routes import ADMINS, OPERATORS, Call, PageQuery, Route, answer, page


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
    found = next((t for t in await context.store.pools.tenants() if t.name == name), None)
    if found is None:
        raise not_found("tenant", name)
    return answer(_tenant(found))


async def put_tenant(context: Context, call: Call) -> Response:
    name = call.path("name")
    try:
        msgspec.convert(name, TenantName)
    except msgspec.ValidationError:
        raise refused("name", "must fit a label value: letters, digits, '-', '_' and '.', at most 63 characters") from None
    if found := tenant_problems(call.body):
        raise field_problems(found)
    return answer(_tenant(await context.store.pools.put_tenant(name, call.body)))


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
    Route("PUT", "/v1/tenants/{name}", "Set a tenant's limits", put_tenant, roles=ADMINS, names=TenantName, body=TenantSpec, answers={200: TenantView}),
]  # fmt: skip
