"""The routes for the system itself: duties, replicas, brake, doctor, health, metrics."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from typing import Literal

import msgspec
from prometheus_client import generate_latest
from starlette.responses import Response

from ..model.brake import BrakeLimits
from ..model.nearest import suggest
from ..model.tenant import TenantName
from ..ports.cluster import ClusterUnavailable
from .context import READY_SECONDS, Context
from .metrics import refresh
from .problems import Problem
from .routes import ADMINS, ALL, ANYONE, OPERATORS, SCRAPERS, Because, Call, PageQuery, Route, answer, page


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


class BrakedTenant(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    tripped_at: datetime
    reason: str


class ReleaseBrake(Because, frozen=True, forbid_unknown_fields=True):
    tenant: TenantName | None = None


class BrakeView(msgspec.Struct, frozen=True, kw_only=True):
    tripped: bool
    tripped_at: datetime | None
    reason: str | None
    workers: int
    claims: int
    share: float
    tenant_share: float
    workers_ended: int
    claims_ended: int
    tenants: list[BrakedTenant]
    limit: int  # the same as `workers`, under the name that earlier releases gave it


class Check(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    promise: str
    ok: bool
    detail: str
    advice: str
    warning: bool = False


class Doctor(msgspec.Struct, frozen=True):
    checks: list[Check]
    ok: bool


class Me(msgspec.Struct, frozen=True):
    role: str
    tenant: str | None
    install: str
    version: str


async def duties(context: Context, call: Call) -> Response:
    views = [DutyView(**row) for row in await context.store.fleet.duties()]
    return answer(DutyList(*page(views, call.query, lambda view: view.duty)))


async def replicas(context: Context, call: Call) -> Response:
    rows = await context.store.fleet.replicas()
    views = [ReplicaView(port=int(row["url"].rpartition(":")[2]), **row) for row in rows]
    return answer(ReplicaList(*page(views, call.query, lambda view: f"{view.started_at.isoformat()} {view.id}")))


async def brake(context: Context, call: Call) -> Response:
    found = await context.store.fleet.brake()
    return answer(BrakeView(**found | {"tenants": [BrakedTenant(**each) for each in found["tenants"]]}, limit=found["workers"]))


async def set_brake(context: Context, call: Call) -> Response:
    await context.store.fleet.set_brake(call.body, call.caller.actor)
    return await brake(context, call)


async def release_brake(context: Context, call: Call) -> Response:
    body: ReleaseBrake = call.body
    if not await context.store.fleet.release_brake(body.reason, call.caller.actor, body.tenant):
        raise Problem(409, "not-tripped", await _nothing_to_release(context, body.tenant))
    return await brake(context, call)


async def _nothing_to_release(context: Context, tenant: str | None) -> str:
    """Returns why no brake was released, and which brake could be."""
    found = await context.store.fleet.brake()
    names = [each["tenant"] for each in found["tenants"]]
    if tenant is not None:
        also = "; the brake of the whole fleet is" if found["tripped"] else suggest(tenant, names)
        return f"the brake of tenant {tenant!r} is not tripped, so there is nothing to release{also}"
    also = f"; those of these tenants are, name one of them: {', '.join(names[:20])}" if names else ""
    return f"the brake is not tripped, so there is nothing to release{also}"


async def doctor(context: Context, call: Call) -> Response:
    checks = [Check(**row) for row in await context.store.check()]
    # The two are separate, so that the second still reports missing rights when the first fails because of them.
    both = (
        _checks_or_failure("the cluster can be asked", _orphan_check(context)),
        _checks_or_failure("the cluster can be examined", _cluster_checks(context)),
    )
    for found in await asyncio.gather(*both):
        checks += found
    return answer(Doctor(checks, all(check.ok for check in checks)))


async def _checks_or_failure(name: str, look: Awaitable[list[Check]]) -> list[Check]:
    try:
        return await look
    except ClusterUnavailable as error:
        return [Check(promise="P7", name=name, ok=False, detail=str(error), advice="nothing is ended until it answers")]


async def _orphan_check(context: Context) -> list[Check]:
    pods = await context.cluster.pods()
    known = {row.worker.id for row in await context.store.workers.rows(None)}
    now = await context.store.now()
    lost = [p.name for p in pods if p.name not in known and p.phase != "ended" and now - p.created_at > 120]
    detail = f"pods without a row: {', '.join(lost[:20])}" if lost else ""
    advice = "busy ones are quarantined: see events pod.quarantined; end them by hand once they are no longer needed"
    return [Check(promise="P5", name="every pod has a row", ok=not lost, detail=detail, advice=advice if lost else "")]


async def _cluster_checks(context: Context) -> list[Check]:
    found = await context.cluster.diagnose(await context.store.pools.all())
    return [Check(**msgspec.structs.asdict(each)) for each in found]


async def me(context: Context, call: Call) -> Response:
    return answer(Me(call.caller.role, call.caller.tenant, context.install, context.version))


async def healthz(context: Context, call: Call) -> Response:
    """Answers 200 as long as the event loop runs, also without the store, because a restart would not bring the store back."""
    return answer({"ok": True})


async def readyz(context: Context, call: Call) -> Response:
    if not context.ready():
        reason = f": {context.replica.waits_for}" if context.replica.waits_for else ""
        raise Problem(
            503,
            "not-ready",
            f"no beat of this replica was stored in the last {READY_SECONDS:.0f} s{reason}",
            headers={"Retry-After": "2"},
        )
    return answer({"ok": True})


async def metrics(context: Context, call: Call) -> Response:
    await refresh(context)
    return Response(generate_latest(context.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = [
    Route("GET", "/v1/duties", "Duties, their replicas and their last success", duties, roles=OPERATORS, query=PageQuery,
         answers={200: DutyList}),
    Route("GET", "/v1/replicas", "Replicas and their duties", replicas, roles=OPERATORS, query=PageQuery, answers={200: ReplicaList}),
    Route("GET", "/v1/brake", "The state of the brake", brake, roles=OPERATORS, answers={200: BrakeView}),
    Route("PUT", "/v1/brake", "Set the brake's limits", set_brake, roles=ADMINS, body=BrakeLimits, answers={200: BrakeView}),
    Route("POST", "/v1/brake/release", "Release the brake of the fleet or of a tenant", release_brake, roles=OPERATORS, body=ReleaseBrake,
         answers={200: BrakeView}, errors=(409,)),
    Route("GET", "/v1/doctor", "Check whether the running system keeps its promises", doctor, roles=OPERATORS, answers={200: Doctor}),
    Route("GET", "/v1/me", "The role and tenant of the caller's token", me, roles=ALL, answers={200: Me}),
    Route("GET", "/healthz", "Whether the replica is alive", healthz, roles=ANYONE),
    Route("GET", "/readyz", "Whether the replica can serve requests", readyz, roles=ANYONE),
    Route("GET", "/metrics", "Metrics for Prometheus", metrics, roles=SCRAPERS, raw="text/plain"),
]  # fmt: skip
