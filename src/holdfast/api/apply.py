"""The routes that change several settings at once: `apply` stores pools and tenants as a whole, `scale` a pool's size."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response

from ..model.pool import Count, FieldProblem, Name, Pool, PoolSpec
from ..model.tenant import TenantName, TenantSpec
from ..ports.store import PoolChange
from .context import Context
from .pools import NOT_OURS, PoolView, pool_problems, pool_view
from .problems import Problem, field_problems
from .routes import OPERATORS, Call, Route, answer
from .tenants import tenant_problems

Kind = Literal["WorkerPool", "Tenant"]
Result = Literal["created", "configured", "unchanged"]
RESULTS: dict[str, Result] = {"created": "created", "changed": "configured", "same": "unchanged"}
TRIES = 5  # how often a request is checked again because another request has changed one of its pools in the meantime
BODY_LIMIT = 1024 * 1024  # bytes; a folder of manifests is larger than one pool
MOST_OBJECTS = 500  # more would not be stored within the time that a statement may take


class PoolObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="WorkerPool"):
    """A pool as it should be. Fields that are left out get their defaults."""

    name: Annotated[Name, msgspec.Meta(description="The pool's name, a DNS label.")]
    spec: PoolSpec = PoolSpec()


class TenantObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="Tenant"):
    """A tenant's limits as they should be. Fields that are left out get their defaults."""

    name: Annotated[TenantName, msgspec.Meta(description="The tenant's name.")]
    spec: TenantSpec = TenantSpec()


Object = PoolObject | TenantObject


class ApplyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Pools and tenants that are stored as a whole: all of them, or none if one of them is refused."""

    objects: Annotated[
        list[Object], msgspec.Meta(min_length=1, max_length=MOST_OBJECTS, description="Pools and tenants, each of them once.")
    ]
    dry_run: Annotated[bool, msgspec.Meta(description="Only check the objects and answer what would change.")] = False


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one object, or would happen in a dry run."""

    kind: Annotated[Kind, msgspec.Meta(description="The object's kind.")]
    name: Annotated[str, msgspec.Meta(description="The object's name.")]
    result: Annotated[Result, msgspec.Meta(description="What happened to the object.")]
    before: Annotated[
        dict[str, Any] | None, msgspec.Meta(description="The stored spec before this request; null if there was none.")
    ]
    after: Annotated[dict[str, Any], msgspec.Meta(description="The spec with all defaults filled in.")]


class ApplyAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened to each object, in the order of the request."""

    items: Annotated[list[Applied], msgspec.Meta(description="One entry per object of the request, in the same order.")]
    dry_run: Annotated[bool, msgspec.Meta(description="Whether nothing was stored, because the request asked for that.")]


class ScaleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool's new size. What is left out stays as it is."""

    warm: Annotated[Count | None, msgspec.Meta(description="Free workers to keep ready.")] = None
    max: Annotated[Count | None, msgspec.Meta(description="All workers, busy ones included.")] = None


async def apply(context: Context, call: Call) -> Response:
    request: ApplyRequest = call.body
    _refuse_doubles(request.objects)
    if call.caller.role != "admin":
        _refuse_tenants(request.objects)
    tenants = {each.name: each.spec for each in request.objects if isinstance(each, TenantObject)}

    async def once() -> Response | None:
        live = {pool.name: pool for pool in await context.store.pools.all() if pool.state == "live"}
        limits = await context.store.pools.limits(list(tenants))
        changes = [_change(context, each, live) for each in request.objects if isinstance(each, PoolObject)]
        await _check(context, request.objects, {change.name: change for change in changes})
        before: dict[tuple[str, str], PoolSpec | TenantSpec] = {("Tenant", name): spec for name, spec in limits.items()}
        before |= {("WorkerPool", name): pool.spec for name, pool in live.items()}
        did = None if request.dry_run else await context.store.pools.apply(changes, tenants, call.caller.actor)
        if did is None and not request.dry_run:
            return None
        items = [_applied(each, before.get(_key(each)), did[_key(each)] if did else None) for each in request.objects]
        return answer(ApplyAnswer(items=items, dry_run=request.dry_run))

    response = await _until_stored(once)
    for each in request.objects:
        context.forget_pool(each.name)
    return response


async def scale(context: Context, call: Call) -> Response:
    request: ScaleRequest = call.body
    name = call.path("name")
    if request.warm is None and request.max is None:
        raise field_problems([FieldProblem("warm", "give warm, max or both")])

    async def once() -> Response | None:
        context.forget_pool(name)
        pool = await context.pool(name)
        size = {"warm": request.warm, "max": request.max}
        spec = msgspec.structs.replace(pool.spec, **{field: count for field, count in size.items() if count is not None})
        if pool.source == "cr":
            raise Problem(409, "not-ours", NOT_OURS.format(name=name))
        if found := await pool_problems(context, pool.id, name, spec, pool):
            raise field_problems(found)
        change = PoolChange(id=pool.id, name=name, spec=spec, seen=pool)
        if await context.store.pools.apply([change], {}, call.caller.actor) is None:
            return None
        context.forget_pool(name)
        return answer(pool_view(await context.pool(name), None))

    return await _until_stored(once)


async def _until_stored(once: Callable[[], Awaitable[Response | None]]) -> Response:
    """Repeats `once` while it returns None, which means that another request changed a pool between the check and the change."""
    for _ in range(TRIES):
        if (response := await once()) is not None:
            return response
    raise Problem(409, "changing", "other requests change the same pools all the time; nothing was stored, try again")


def _key(each: Object) -> tuple[Kind, str]:
    return "WorkerPool" if isinstance(each, PoolObject) else "Tenant", each.name


def _refuse_doubles(objects: list[Object]) -> None:
    first: dict[tuple[Kind, str], int] = {}
    for number, each in enumerate(objects):
        if first.setdefault(_key(each), number) != number:
            reason = f"{_key(each)[0]} {each.name!r} appears twice; it is also objects[{first[_key(each)]}]"
            raise field_problems([FieldProblem(f"objects[{number}].name", reason)])


def _refuse_tenants(objects: list[Object]) -> None:
    found = [
        FieldProblem(f"objects[{number}].kind", "only an admin may set tenants")
        for number, each in enumerate(objects)
        if isinstance(each, TenantObject)
    ]
    if found:
        raise Problem(403, "forbidden", "; ".join(_named(problem, objects) for problem in found), found)


def _change(context: Context, wanted: PoolObject, live: dict[str, Pool]) -> PoolChange:
    seen = live.get(wanted.name)
    return PoolChange(id=seen.id if seen else context.ids.new("p"), name=wanted.name, spec=wanted.spec, seen=seen)


async def _check(context: Context, objects: list[Object], changes: dict[str, PoolChange]) -> None:
    """Refuses the request with everything that is wrong in all of its objects."""
    wrong: list[FieldProblem] = []
    taken: list[FieldProblem] = []
    for number, each in enumerate(objects):
        if isinstance(each, TenantObject):
            found = tenant_problems(each.spec)
        else:
            change = changes[each.name]
            if change.seen is not None and change.seen.source == "cr":
                taken.append(FieldProblem(f"objects[{number}].name", NOT_OURS.format(name=each.name)))
                continue
            found = await pool_problems(context, change.id, each.name, each.spec, change.seen)
        wrong += [FieldProblem(f"objects[{number}].spec.{problem.field}", problem.reason) for problem in found]
    if found := wrong + taken:
        status, code = (422, "invalid") if wrong else (409, "not-ours")
        raise Problem(status, code, "; ".join(_named(problem, objects) for problem in found) + "; nothing was stored", found)


def _named(problem: FieldProblem, objects: list[Object]) -> str:
    """Returns the problem as a sentence with the object's kind and name, because a position in a list says little to a person."""
    position, _, field = problem.field.removeprefix("objects[").partition("].")
    kind, name = _key(objects[int(position)])
    return f"{kind} {name!r}: {field}: {problem.reason}"


def _applied(wanted: Object, before: PoolSpec | TenantSpec | None, did: str | None) -> Applied:
    """Returns the answer about one object. Without `did`, in a dry run, the result follows from the comparison."""
    kind, name = _key(wanted)
    if did is None:
        did = "created" if before is None else "same" if before == wanted.spec else "changed"
    return Applied(
        kind=kind,
        name=name,
        result=RESULTS[did],
        before=None if before is None else msgspec.to_builtins(before),
        after=msgspec.to_builtins(wanted.spec),
    )


ROUTES = [
    Route("POST", "/v1/apply", "Create or change several pools and tenants: all of them or none", apply, roles=OPERATORS, body=ApplyRequest,
         answers={200: ApplyAnswer}, errors=(409,), body_limit=BODY_LIMIT),
    Route("POST", "/v1/pools/{name}/scale", "Change how many workers a pool keeps", scale, roles=OPERATORS, names=Name, body=ScaleRequest,
         answers={200: PoolView}, errors=(404, 409)),
]  # fmt: skip
