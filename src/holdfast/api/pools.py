"""The routes for pools."""

from datetime import datetime
from typing import Literal

import msgspec
from starlette.responses import Response

from ..model.pool import ClaimSpec, FieldProblem, Name, Pool, PoolSpec, problems
from ..ports.store import PoolLoad
from .claim_shapes import when
from .context import Context
from .problems import Problem, field_problems, name_problems
from .routes import OPERATORS, Because, Call, PageQuery, Route, answer, page

NOT_OURS = "pool {name!r} belongs to its WorkerPool object; change that object"


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


class ParkLimits(msgspec.Struct, frozen=True, rename="camel"):
    ttl: str
    max_ttl: str = msgspec.field(name="maxTTL")


class TenantPoolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant needs to know before it makes a claim. The template, the network and the hooks belong to operators."""

    mode: Literal["job", "session"]
    warm: int
    max: int
    claim: ClaimSpec
    park: ParkLimits
    labels: list[str]


class TenantPoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    spawning: int = 0
    warm: int = 0
    free: int = 0
    waiting: int = 0
    oldest_wait: float = 0.0


class TenantPoolView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: Literal["live", "draining", "gone"]
    frozen: bool  # without the reason, which an operator wrote for operators
    spec: TenantPoolSpec
    status: TenantPoolStatus


class TenantPoolList(msgspec.Struct, frozen=True):
    items: list[TenantPoolView]
    next: str | None = None


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def tenant_view(pool: Pool, load: PoolLoad | None) -> TenantPoolView:
    spec, status = pool.spec, TenantPoolStatus()
    if load is not None:
        status = TenantPoolStatus(
            spawning=load.spawning,
            warm=load.warm,
            free=load.free_ready,
            waiting=load.waiting,
            oldest_wait=round(load.oldest_wait, 3),
        )
    return TenantPoolView(
        name=pool.name,
        state=pool.state,
        frozen=pool.frozen is not None,
        spec=TenantPoolSpec(
            mode=spec.mode,
            warm=spec.warm,
            max=spec.max,
            claim=spec.claim,
            park=ParkLimits(spec.park.ttl, spec.park.max_ttl),
            labels=spec.labels,
        ),
        status=status,
    )


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
            trouble=pool.troubles,
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


async def pools(context: Context, call: Call) -> Response:
    loads = await context.store.pools.loads()
    shown, cursor = page(loads, call.query, lambda load: f"{load.pool.name} {load.pool.id}")
    if not call.caller.trusted:
        return answer(TenantPoolList([tenant_view(load.pool, load) for load in shown], cursor))
    return answer(PoolList([pool_view(load.pool, load) for load in shown], cursor))


async def pool(context: Context, call: Call) -> Response:
    found = await context.store.pools.get(call.path("name"))
    if found is None:
        raise await context.unknown_pool(call.path("name"))
    loads = {load.pool.id: load for load in await context.store.pools.loads()}
    view = pool_view if call.caller.trusted else tenant_view
    return answer(view(found, loads.get(found.id)))


async def put_pool(context: Context, call: Call) -> Response:
    name, spec = call.path("name"), call.body
    if found := name_problems(name, Name):
        raise field_problems(found + problems(spec))
    existing = await context.store.pools.get(name)
    if existing is not None and existing.source == "cr":
        raise _not_ours(name)
    pool_id = context.ids.new("p") if existing is None else existing.id
    if found := await pool_problems(context, pool_id, name, spec, existing):
        raise field_problems(found)
    stored, what = await context.store.pools.put(pool_id, name, spec, "api", call.caller.actor)
    context.forget_pool(name)
    if what == "taken":
        raise _not_ours(name)
    return answer(pool_view(stored, None), 201 if what == "created" else 200, {"Holdfast-Result": what})


def _not_ours(name: str) -> Problem:
    return Problem(409, "not-ours", NOT_OURS.format(name=name))


async def pool_problems(context: Context, pool_id: str, name: str, spec: PoolSpec, existing: Pool | None) -> list[FieldProblem]:
    """Returns what is wrong with a pool's new spec: in itself, compared with the existing pool, or for the cluster."""
    if found := problems(spec):
        return found
    if existing is not None and existing.spec.mode != spec.mode:
        reason = f"pool {name!r} is a {existing.spec.mode} pool; delete it first, the name is free at once"
        found.append(FieldProblem("mode", reason))
    if existing is not None and existing.spec.worker.agent != spec.worker.agent:
        reason = f"cannot change on pool {name!r}; delete it first, the name is free at once"
        found.append(FieldProblem("worker.agent", reason))
    if found:
        return found
    draft = existing or Pool(id=pool_id, name=name, spec=spec, revision="", state="live", source="api", created_at=0.0)
    return await context.cluster.check(msgspec.structs.replace(draft, spec=spec))


async def delete_pool(context: Context, call: Call) -> Response:
    name = call.path("name")
    existing = await context.store.pools.get(name)
    if existing is not None and existing.source == "cr":
        raise Problem(409, "not-ours", f"pool {name!r} belongs to its WorkerPool object; delete that object")
    drained = await context.store.pools.delete(name, actor=call.caller.actor)
    context.forget_pool(name)
    if drained is None:
        raise await context.unknown_pool(name)
    return answer(pool_view(drained, None))


async def freeze(context: Context, call: Call) -> Response:
    return await _freeze(context, call, call.body.reason)


async def thaw(context: Context, call: Call) -> Response:
    return await _freeze(context, call, None)


async def _freeze(context: Context, call: Call, reason: str | None) -> Response:
    name = call.path("name")
    found = await context.store.pools.freeze(name, reason, call.caller.actor)
    context.forget_pool(name)
    if found is None:
        raise await context.unknown_pool(name)
    return answer(pool_view(found, None))


ROUTES = [
    Route("GET", "/v1/pools", "All pools with their counts", pools, query=PageQuery, answers={200: (PoolList, TenantPoolList)}),
    Route("GET", "/v1/pools/{name}", "One pool", pool, answers={200: (PoolView, TenantPoolView)}, errors=(404,)),
    Route("PUT", "/v1/pools/{name}", "Create or change a pool", put_pool, roles=OPERATORS, names=Name, body=PoolSpec,
         answers={200: PoolView, 201: PoolView}, errors=(409,)),
    Route("DELETE", "/v1/pools/{name}", "Drain and delete a pool: free workers end, busy ones finish", delete_pool, roles=OPERATORS,
         answers={200: PoolView}, errors=(404, 409)),
    Route("POST", "/v1/pools/{name}/freeze", "Freeze a pool: nothing in it is spawned or ended", freeze, roles=OPERATORS, body=Because,
         answers={200: PoolView}, errors=(404,)),
    Route("POST", "/v1/pools/{name}/thaw", "Thaw a pool: end its freeze", thaw, roles=OPERATORS, body=Nothing, answers={200: PoolView}, errors=(404,)),
]  # fmt: skip
