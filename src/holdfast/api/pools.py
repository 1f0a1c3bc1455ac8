"""Pools, workers and tenants over HTTP."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from ..model.duration import seconds
from ..model.outcome import Done, Skipped
from ..model.pool import Name, Pool, PoolSpec, problems
from ..model.tenant import Tenant, TenantName, TenantSpec
from ..model.worker import Worker
from ..ports.store import PoolLoad
from .claim_shapes import when
from .context import Context, suggest
from .doors import ADMINS, OPERATORS, PRINTED, Call, Door, PageQuery, answer, page
from .problems import Problem, field_problems, not_found, refused

POOL_NAME = r"^[a-z]([-a-z0-9]{0,51}[a-z0-9])?$(?!\n)"


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    spawning: int = 0
    warm: int = 0
    held: int = 0
    parked: int = 0
    retiring: int = 0
    waiting: int = 0
    servable: int = 0
    free: int = 0
    oldest_wait: float = 0.0
    trouble: str | None = None
    backoff_until: datetime | None = None


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    id: str
    revision: str
    generation: int
    state: Literal["live", "draining", "gone"]
    source: Literal["api", "cr"]
    frozen: str | None
    created_at: datetime
    spec: PoolSpec
    status: PoolStatus


class PoolList(msgspec.Struct, frozen=True):
    items: list[PoolView]
    next: str | None = None


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    pool: str
    state: Literal["spawning", "warm", "held", "parked", "retiring", "gone"]
    revision: str
    created_at: datetime
    state_since: datetime
    claim: str | None
    tenant: str | None
    reason: str | None
    node: str | None
    uid: str | None
    ready: bool
    terminating: bool
    suspect: bool
    parked_since: datetime | None


class WorkerList(msgspec.Struct, frozen=True):
    items: list[WorkerView]
    next: str | None


class WorkerQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pool: str | None = None
    state: Literal["spawning", "warm", "held", "parked", "retiring", "gone"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    spec: TenantSpec
    live: int
    waiting: int


class TenantList(msgspec.Struct, frozen=True):
    items: list[TenantView]
    next: str | None = None


class Because(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=PRINTED)]


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def pool_view(pool: Pool, load: PoolLoad | None) -> PoolView:
    status = PoolStatus()
    if load is not None:
        status = PoolStatus(
            spawning=load.spawning,
            warm=load.warm,
            held=load.held,
            parked=load.parked,
            retiring=load.retiring,
            waiting=load.waiting,
            servable=load.servable,
            free=load.free_ready,
            oldest_wait=round(load.oldest_wait, 3),
            trouble=pool.trouble,
            backoff_until=when(pool.backoff_until),
        )
    created = when(pool.created_at)
    assert created is not None
    return PoolView(
        name=pool.name,
        id=pool.id,
        revision=pool.revision,
        generation=pool.generation,
        state=pool.state,
        source=pool.source,
        frozen=pool.frozen,
        created_at=created,
        spec=pool.spec,
        status=status,
    )


def worker_view(worker: Worker) -> WorkerView:
    created, since = when(worker.created_at), when(worker.state_since)
    assert created is not None
    assert since is not None
    return WorkerView(
        id=worker.id,
        pool=worker.pool,
        state=worker.state,
        revision=worker.revision,
        created_at=created,
        state_since=since,
        claim=worker.claim,
        tenant=worker.tenant,
        reason=worker.reason,
        node=worker.node,
        uid=worker.pod_uid,
        ready=worker.ready,
        terminating=worker.terminating,
        suspect=worker.suspect_since is not None,
        parked_since=when(worker.parked_since),
    )


async def pools(context: Context, call: Call) -> Response:
    views = [pool_view(load.pool, load) for load in await context.store.pools.loads()]
    return answer(PoolList(*page(views, call.query, lambda view: f"{view.name} {view.id}")))


async def pool(context: Context, call: Call) -> Response:
    found = await context.store.pools.get(call.path("name"))
    if found is None:
        names = [p.name for p in await context.store.pools.all() if p.state == "live"]
        raise not_found("pool", call.path("name"), suggest(call.path("name"), names))
    loads = {load.pool.id: load for load in await context.store.pools.loads()}
    return answer(pool_view(found, loads.get(found.id)))


async def put_pool(context: Context, call: Call) -> Response:
    name, spec = call.path("name"), call.body
    try:
        msgspec.convert(name, Annotated[str, msgspec.Meta(pattern=POOL_NAME)])
    except msgspec.ValidationError:
        raise refused("name", "must be a DNS label: a-z, 0-9 and '-', at most 53 characters") from None
    if found := problems(spec):
        raise field_problems(found)
    existing = await context.store.pools.get(name)
    if existing is not None and existing.source == "cr":
        raise Problem(409, "not-ours", f"pool {name!r} belongs to its WorkerPool object; change that")
    if existing is not None and existing.spec.mode != spec.mode:
        raise refused("mode", f"pool {name!r} is a {existing.spec.mode} pool; delete it first, the name is free at once")
    if existing is not None and existing.spec.worker.agent != spec.worker.agent:
        raise refused("worker.agent", f"cannot change on pool {name!r}; delete it first, the name is free at once")
    draft = existing or Pool(
        id=context.ids.new("p"), name=name, spec=spec, revision="", state="live", source="api", created_at=0.0
    )
    if found := await context.cluster.check(msgspec.structs.replace(draft, spec=spec)):
        raise field_problems(found)
    stored, what = await context.store.pools.put(draft.id, name, spec, "api")
    context.forget_pool(name)
    return answer(pool_view(stored, None), 201 if what == "created" else 200, {"Holdfast-Result": what})


async def delete_pool(context: Context, call: Call) -> Response:
    name = call.path("name")
    existing = await context.store.pools.get(name)
    if existing is not None and existing.source == "cr":
        raise Problem(409, "not-ours", f"pool {name!r} belongs to its WorkerPool object; delete that")
    drained = await context.store.pools.delete(name)
    context.forget_pool(name)
    if drained is None:
        raise not_found("pool", name)
    return answer(pool_view(drained, None))


async def freeze(context: Context, call: Call) -> Response:
    return await _freeze(context, call.path("name"), call.body.reason)


async def thaw(context: Context, call: Call) -> Response:
    return await _freeze(context, call.path("name"), None)


async def _freeze(context: Context, name: str, reason: str | None) -> Response:
    found = await context.store.pools.freeze(name, reason)
    context.forget_pool(name)
    if found is None:
        raise not_found("pool", name)
    return answer(pool_view(found, None))


async def workers(context: Context, call: Call) -> Response:
    query: WorkerQuery = call.query
    if query.cursor is not None and await context.store.workers.get(query.cursor) is None:
        raise refused("cursor", "is not one of this list, or its worker was pruned: begin again")
    found, after = await context.store.workers.find(pool=query.pool, state=query.state, limit=query.limit, cursor=query.cursor)
    return answer(WorkerList([worker_view(worker) for worker in found], after))


async def worker(context: Context, call: Call) -> Response:
    found = await context.store.workers.get(call.path("id"))
    if found is None:
        raise not_found("worker", call.path("id"))
    return answer(worker_view(found))


async def retire(context: Context, call: Call) -> Response:
    found = await context.store.workers.get(call.path("id"))
    if found is None:
        raise not_found("worker", call.path("id"))
    result = await context.store.workers.condemn(found.id, None, f"retired by an operator: {call.body.reason}", counted=False)
    if isinstance(result, Skipped):
        raise Problem(409, result.by, f"not now: {result.by}")
    if not isinstance(result, Done):
        detail = f"worker {found.id} is {found.state}: only a free worker can be retired; end its claim first"
        raise Problem(409, "busy", detail)
    context.replica.hint({found.id})
    return answer(worker_view(await context.store.workers.get(found.id) or found))


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
        raise refused("name", "must fit a label value: letters, digits, '-', '_' and '.', at most 63") from None
    try:
        seconds(call.body.park_ttl or "0s")
    except ValueError as error:
        raise refused("parkTTL", str(error)) from None
    return answer(_tenant(await context.store.pools.put_tenant(name, call.body)))


def _tenant(found: Tenant) -> TenantView:
    return TenantView(name=found.name, spec=found.spec, live=found.live, waiting=found.waiting)


DOORS = [
    Door("GET", "/v1/pools", "All pools with their counts", pools, query=PageQuery, answers={200: PoolList}),
    Door("GET", "/v1/pools/{name}", "One pool", pool, answers={200: PoolView}, errors=(404,)),
    Door("PUT", "/v1/pools/{name}", "Create or change a pool", put_pool, roles=OPERATORS, names=Name, body=PoolSpec,
         answers={200: PoolView, 201: PoolView}, errors=(409,)),
    Door("DELETE", "/v1/pools/{name}", "Drain a pool: free workers go, busy ones finish", delete_pool, roles=OPERATORS,
         answers={200: PoolView}, errors=(404, 409)),
    Door("POST", "/v1/pools/{name}/freeze", "Nothing in it is ended or spawned", freeze, roles=OPERATORS, body=Because,
         answers={200: PoolView}, errors=(404,)),
    Door("POST", "/v1/pools/{name}/thaw", "End the freeze", thaw, roles=OPERATORS, body=Nothing, answers={200: PoolView}, errors=(404,)),
    Door("GET", "/v1/workers", "Workers, newest first", workers, roles=OPERATORS, query=WorkerQuery, answers={200: WorkerList}),
    Door("GET", "/v1/workers/{id}", "One worker", worker, roles=OPERATORS, answers={200: WorkerView}, errors=(404,)),
    Door("POST", "/v1/workers/{id}/retire", "End a free worker", retire, roles=OPERATORS, body=Because,
         answers={200: WorkerView}, errors=(404, 409)),
    Door("GET", "/v1/tenants", "All tenants", tenants, roles=OPERATORS, query=PageQuery, answers={200: TenantList}),
    Door("GET", "/v1/tenants/{name}", "One tenant", tenant, roles=OPERATORS, answers={200: TenantView}, errors=(404,)),
    Door("PUT", "/v1/tenants/{name}", "Set a tenant's limits", put_tenant, roles=ADMINS, names=TenantName, body=TenantSpec, answers={200: TenantView}),
]  # fmt: skip
