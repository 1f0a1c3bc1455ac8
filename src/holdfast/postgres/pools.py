"""Pools in Postgres: their specs, their counts, and the durable drain."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import asyncpg
import msgspec

from ..model.effect import Effect, Stale, effect_of
from ..model.event import Actor
from ..model.pool import Pool, PoolSpec, revision_of
from ..model.tenant import Tenant, TenantSpec
from ..ports.store import DeletedTenant, PoolChange, PoolLoad
from .apply import apply
from .database import Database, actor_json
from .tenants import all_tenants, delete_tenant, limits, put_tenant

POOL_COLUMNS = """
p.id, p.name, p.spec, p.revision, p.state AS pool_state, p.source, p.generation, p.frozen, p.failures, p.trouble,
p.activation_trouble, cardinality(p.activation_failing) AS claims_failing,
extract(epoch FROM p.activation_heard + (SELECT deaf FROM holdfast.hearing))::float8 AS activation_retry_at,
extract(epoch FROM p.created_at)::float8 AS created_at, extract(epoch FROM p.backoff_until)::float8 AS backoff_until
"""

PUT = "SELECT * FROM @fn.put_pool(p_id => $1, p_name => $2, p_spec => $3::jsonb, p_revision => $4, p_source => $5, p_actor => $6::jsonb)"

DELETE = f"""
WITH clock AS (SELECT holdfast.now() AS t),
p AS (UPDATE holdfast.pool AS pool SET state = 'draining', frozen = NULL, updated_at = clock.t FROM clock
      WHERE pool.name = $1 AND pool.state = 'live' AND ($2::text IS NULL OR pool.id = $2) RETURNING pool.*),
e AS (INSERT INTO holdfast.event (at, kind, pool_id, reason, actor)
      SELECT clock.t, 'pool.draining', p.id, 'deleted: free workers go, busy ones finish', $3::jsonb FROM p, clock),
n AS (SELECT pg_notify('holdfast', 'p ' || p.id) FROM p)
SELECT {POOL_COLUMNS}, (SELECT count(*) FROM n) FROM p
"""

FREEZE = f"""
WITH clock AS (SELECT holdfast.now() AS t),
p AS (UPDATE holdfast.pool AS pool SET frozen = $2, updated_at = clock.t FROM clock
      WHERE pool.name = $1 AND pool.state = 'live' RETURNING pool.*),
e AS (INSERT INTO holdfast.event (at, kind, pool_id, reason, actor)
      SELECT clock.t, CASE WHEN $2::text IS NULL THEN 'pool.thawed' ELSE 'pool.frozen' END, p.id, coalesce($2, ''), $3::jsonb
      FROM p, clock)
SELECT {POOL_COLUMNS} FROM p
"""

GET = f"SELECT {POOL_COLUMNS} FROM holdfast.pool p WHERE p.name = $1 AND p.state = 'live'"
EXISTS = "SELECT EXISTS (SELECT FROM holdfast.pool WHERE name = $1)"
BY_ID = f"SELECT {POOL_COLUMNS} FROM holdfast.pool p WHERE p.id = $1"
ALL = f"SELECT {POOL_COLUMNS} FROM holdfast.pool p WHERE p.state <> 'gone' ORDER BY p.name, p.created_at"

# One consistent view per pool. Lists have at most 50 workers, because no pass acts on more, and 10,000 quiet workers must cost
# nothing. They leave out unconfirmed workers, because these may not be ended, and fifty of them would hide all others.
LOADS = f"""
WITH clock AS MATERIALIZED (SELECT holdfast.now() AS t, holdfast.heard() AS h),
live AS (SELECT tenant, count(*) AS n FROM holdfast.claim WHERE state IN @claim.live GROUP BY tenant),
queue AS (
    SELECT pool_id, tenant, count(*) AS n, min(created_at) AS oldest,
           count(*) FILTER (WHERE coalesce(not_before_heard <= clock.h, true)) AS ready
    FROM holdfast.claim, clock WHERE state = 'waiting' GROUP BY 1, 2
),
waiting AS (
    SELECT q.pool_id, sum(q.n)::bigint AS all_waiting, min(q.oldest) AS oldest,
           sum(CASE WHEN t.max_claims IS NULL THEN q.ready ELSE greatest(0, least(q.ready, t.max_claims - coalesce(l.n, 0))) END)::bigint
               AS servable
    FROM queue q LEFT JOIN holdfast.tenant t ON t.name = q.tenant LEFT JOIN live l ON l.tenant = q.tenant GROUP BY 1
),
counts AS (
    SELECT k.pool_id, count(*) FILTER (WHERE k.state = 'spawning' AND @coming(k)) AS spawning,
           count(*) FILTER (WHERE k.state = 'warm' AND @capacity(k)) AS warm,
           count(*) FILTER (WHERE k.state = 'warm' AND NOT @capacity(k) OR k.state = 'spawning' AND NOT @coming(k)) AS unusable,
           count(*) FILTER (WHERE k.state = 'held') AS held, count(*) FILTER (WHERE k.state = 'parked') AS parked,
           count(*) FILTER (WHERE k.state = 'retiring') AS retiring,
           count(*) FILTER (WHERE k.state = 'warm' AND @free(k)) AS free_ready
    FROM holdfast.worker k WHERE k.state <> 'gone' GROUP BY k.pool_id
)
SELECT {POOL_COLUMNS}, i.stopping, extract(epoch FROM clock.t)::float8 AS now, brake.room, extract(epoch FROM clock.t - p.shrunk_at)::float8 AS shrunk_ago,
       coalesce(c.spawning, 0) AS spawning, coalesce(c.warm, 0) AS warm, coalesce(c.held, 0) AS held, coalesce(c.parked, 0) AS parked,
       coalesce(c.retiring, 0) AS retiring, coalesce(c.unusable, 0) AS unusable, coalesce(c.free_ready, 0) AS free_ready,
       coalesce(w.all_waiting, 0) AS waiting, @fn.activations_allowed(p, coalesce(w.servable, 0)::integer) AS servable,
       coalesce(extract(epoch FROM clock.t - w.oldest), 0)::float8 AS oldest_wait,
       ARRAY(SELECT k.id || ' ' || k.version FROM holdfast.worker k WHERE k.pool_id = p.id AND k.state = 'spawning'
             AND @coming(k) AND k.revision <> p.revision ORDER BY k.state_since LIMIT 50) AS outdated_starting,
       ARRAY(SELECT k.id || ' ' || k.version FROM holdfast.worker k WHERE k.pool_id = p.id AND k.state = 'warm' AND @confirmed(k)
             AND k.revision <> p.revision ORDER BY k.state_since LIMIT 50) AS outdated_warm,
       ARRAY(SELECT k.id || ' ' || k.version FROM holdfast.worker k WHERE k.pool_id = p.id AND k.state = 'warm' AND @confirmed(k)
             AND k.revision = p.revision ORDER BY k.state_since LIMIT 50) AS current_warm,
       ARRAY(SELECT k.id || ' ' || k.version FROM holdfast.worker k WHERE k.pool_id = p.id AND k.state = 'spawning'
             AND @coming(k) AND k.revision = p.revision ORDER BY k.state_since LIMIT 50) AS starting,
       ARRAY(SELECT k.id || ' ' || k.version FROM holdfast.worker k WHERE k.pool_id = p.id AND k.state = 'parked' AND @confirmed(k)
             ORDER BY k.parked_since LIMIT 50) AS parked_free,
       ARRAY(SELECT k.id || ' ' || k.version FROM holdfast.worker k WHERE k.pool_id = p.id AND k.state = 'parked' AND @confirmed(k)
             AND k.parked_heard + k.park_ttl <= clock.h ORDER BY k.parked_since LIMIT 50) AS parked_expired
FROM holdfast.pool p LEFT JOIN counts c ON c.pool_id = p.id LEFT JOIN waiting w ON w.pool_id = p.id, clock, holdfast.installation i,
LATERAL (SELECT count(*) AS n FROM holdfast.ending e WHERE e.kind = 'worker'
         AND e.at > greatest(clock.t - interval '10 min', coalesce(i.brake_released_at, '-infinity'))) ended,
LATERAL (SELECT greatest(0, greatest(i.brake_limit, floor(i.brake_share * (ended.n + (SELECT sum(x.spawning + x.warm + x.unusable
         + x.held + x.parked + x.retiring) FROM counts x)))) - ended.n)::integer AS room) brake
WHERE p.state <> 'gone'
"""

DEMAND = """
SELECT p.id FROM holdfast.pool p
WHERE p.state = 'live' AND EXISTS (SELECT FROM holdfast.claim c WHERE c.pool_id = p.id AND c.state = 'waiting'
                                    AND coalesce(c.not_before_heard <= (SELECT holdfast.heard()), true))
  AND EXISTS (SELECT FROM holdfast.worker w WHERE w.pool_id = p.id AND w.state IN @worker.hold AND @free(w))
"""

FINISH = """
WITH clock AS (SELECT holdfast.now() AS t),
p AS (UPDATE holdfast.pool AS pool SET state = 'gone', updated_at = clock.t FROM clock
      WHERE pool.id = $1 AND pool.state = 'draining'
        AND NOT EXISTS (SELECT FROM holdfast.worker w WHERE w.pool_id = pool.id AND w.state <> 'gone')
        AND NOT EXISTS (SELECT FROM holdfast.claim c WHERE c.pool_id = pool.id AND c.state <> 'ended') RETURNING pool.id),
e AS (INSERT INTO holdfast.event (at, kind, pool_id) SELECT clock.t, 'pool.gone', p.id FROM p, clock)
SELECT 'done' FROM p
"""

# Stores why a start failed. The backoff doubles with each consecutive failure.
TROUBLE = """
UPDATE holdfast.pool SET failures = failures + 1, trouble = $2,
    backoff_until = holdfast.now() + make_interval(secs => least(300, $3 * power(2, least(failures, 8))))
WHERE id = $1
"""

# Stores why a start does not make progress. It may still succeed, so there is no backoff.
START_BLOCKED = """
WITH p AS (UPDATE holdfast.pool SET trouble = $2 WHERE id = $1 AND state = 'live' AND trouble IS DISTINCT FROM $2 RETURNING id)
INSERT INTO holdfast.event (at, kind, pool_id, reason) SELECT holdfast.now(), 'pool.troubled', id, $2 FROM p
"""

SHRUNK = "UPDATE holdfast.pool SET shrunk_at = holdfast.now() WHERE id = $1"

_strict = msgspec.json.Decoder(PoolSpec).decode


def _spec(raw: str) -> PoolSpec:
    """Returns a stored spec. Ignores fields that only a newer release knows, because otherwise every duty that reads pools would
    fail during an upgrade."""
    try:
        return _strict(raw)
    except msgspec.ValidationError:
        return msgspec.convert(_known(msgspec.json.decode(raw), PoolSpec), PoolSpec)


def _known(value: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    return {
        name: _known(item, fields[name]) if isinstance(fields[name], type) and issubclass(fields[name], msgspec.Struct) else item
        for name, item in value.items()
        if name in fields
    }


def pool_of(row: asyncpg.Record) -> Pool:
    return Pool(
        id=row["id"],
        name=row["name"],
        spec=_spec(row["spec"]),
        revision=row["revision"],
        state=row["pool_state"],
        source=row["source"],
        created_at=row["created_at"],
        frozen=row["frozen"],
        backoff_until=row["backoff_until"],
        failures=row["failures"],
        trouble=row["trouble"],
        generation=row["generation"],
        activation_trouble=row["activation_trouble"],
        claims_failing=row["claims_failing"],
        activation_retry_at=row["activation_retry_at"],
    )


class PostgresPools:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def put(
        self, pool_id: str, name: str, spec: PoolSpec, source: str, actor: Actor | None = None
    ) -> tuple[Pool, Literal["created", "changed", "same", "taken"]]:
        written = msgspec.json.encode(spec).decode()
        row = await self._db.row(PUT, pool_id, name, written, revision_of(spec), source, actor_json(actor))
        assert row is not None
        pool = await self._db.row(BY_ID, row["o_id"])
        assert pool is not None
        return pool_of(pool), row["o_what"]

    async def apply(
        self, pools: Sequence[PoolChange], tenants: Mapping[str, TenantSpec], actor: Actor | None = None
    ) -> dict[tuple[str, str], Literal["created", "changed", "same"]] | None:
        return await apply(self._db, pools, tenants, actor)

    async def delete(self, name: str, pool_id: str | None = None, actor: Actor | None = None) -> Pool | None:
        row = await self._db.row(DELETE, name, pool_id, actor_json(actor))
        return pool_of(row) if row else None

    async def freeze(self, name: str, reason: str | None, actor: Actor | None = None) -> Pool | None:
        row = await self._db.row(FREEZE, name, reason, actor_json(actor))
        return pool_of(row) if row else None

    async def get(self, name: str) -> Pool | None:
        row = await self._db.row(GET, name)
        return pool_of(row) if row else None

    async def exists(self, name: str) -> bool:
        return bool(await self._db.value(EXISTS, name))

    async def by_id(self, pool_id: str) -> Pool | None:
        row = await self._db.row(BY_ID, pool_id)
        return pool_of(row) if row and row["pool_state"] != "gone" else None

    async def all(self) -> list[Pool]:
        return [pool_of(row) for row in await self._db.rows(ALL)]

    async def loads(self) -> list[PoolLoad]:
        counts = (
            "spawning",
            "warm",
            "unusable",
            "held",
            "parked",
            "retiring",
            "waiting",
            "servable",
            "oldest_wait",
            "free_ready",
        )
        return [
            PoolLoad(
                pool=pool_of(row),
                now=row["now"],
                stopping=row["stopping"],
                brake_room=row["room"] or 0,
                outdated_starting=_versions(row["outdated_starting"]),
                shrunk_ago=row["shrunk_ago"],
                outdated_warm=_versions(row["outdated_warm"]),
                current_warm=_versions(row["current_warm"]),
                starting=_versions(row["starting"]),
                parked_free=_versions(row["parked_free"]),
                parked_expired=_versions(row["parked_expired"]),
                **{name: row[name] for name in counts},
            )
            for row in await self._db.rows(LOADS)
        ]

    async def demand(self) -> list[str]:
        return [row["id"] for row in await self._db.rows(DEMAND)]

    async def finish(self, pool_id: str) -> Effect:
        result = await self._db.value(FINISH, pool_id)
        return Stale() if result is None else effect_of(result)

    async def shrunk(self, pool_id: str) -> None:
        await self._db.rows(SHRUNK, pool_id)

    async def trouble(self, pool_id: str, reason: str, backoff: float) -> None:
        await self._db.rows(TROUBLE, pool_id, reason[:500], backoff)

    async def start_blocked(self, pool_id: str, reason: str) -> None:
        await self._db.rows(START_BLOCKED, pool_id, reason[:500])

    async def tenants(self) -> list[Tenant]:
        return await all_tenants(self._db)

    async def limits(self, names: Sequence[str]) -> dict[str, TenantSpec]:
        return await limits(self._db, names)

    async def put_tenant(self, name: str, spec: TenantSpec, actor: Actor | None = None) -> Tenant:
        await put_tenant(self._db, name, spec, actor)
        return next(tenant for tenant in await self.tenants() if tenant.name == name)

    async def delete_tenant(self, name: str, actor: Actor | None = None) -> DeletedTenant:
        return await delete_tenant(self._db, name, actor)


def _versions(items: list[str]) -> list[tuple[str, int]]:
    return [(name, int(version)) for name, _, version in (item.partition(" ") for item in items)]
