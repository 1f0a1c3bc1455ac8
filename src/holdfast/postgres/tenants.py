"""Tenants in Postgres: their limits, how many claims they have, and their deletion."""

from collections.abc import Sequence

import asyncpg

from ..model.duration import exact
from ..model.event import Actor
from ..model.tenant import Tenant, TenantSpec
from ..ports.records import DeletedTenant
from .apply import limits_of
from .database import Database, actor_json

# A tenant without limits of its own has the defaults.
ALL = """
WITH n AS (SELECT tenant, count(*) FILTER (WHERE state = 'waiting') AS waiting, count(*) FILTER (WHERE state <> 'waiting') AS live
           FROM holdfast.claim WHERE state <> 'ended' GROUP BY tenant)
SELECT coalesce(t.name, n.tenant) AS name, coalesce(t.weight, 1) AS weight, t.max_claims, coalesce(t.max_priority, 0) AS max_priority,
       coalesce(t.max_waiting, @MAX_WAITING) AS max_waiting, coalesce(t.max_output_bytes, @MAX_OUTPUT_BYTES) AS max_output_bytes,
       extract(epoch FROM t.park_ttl)::float8 AS park_ttl, coalesce(n.live, 0) AS live, coalesce(n.waiting, 0) AS waiting
FROM holdfast.tenant t FULL JOIN n ON n.tenant = t.name ORDER BY 1
"""
LIMITS = """
SELECT name, weight, max_claims, max_priority, max_waiting, max_output_bytes, extract(epoch FROM park_ttl)::float8 AS park_ttl
FROM holdfast.tenant WHERE name = ANY ($1::text[])
"""
PUT = """
SELECT @fn.put_tenant(p_name => $1, p_weight => $2, p_max_claims => $3, p_max_priority => $4, p_park_ttl => make_interval(secs => $5),
                      p_max_waiting => $6, p_max_output_bytes => $7, p_actor => $8::jsonb)
"""

# Nothing is deleted while the tenant has a claim that has not ended, because its holder would lose its token. A request that
# another replica stores in the same moment is served with the default limits.
#
# Workers that are parked for the tenant retire in the same statement, also in a frozen pool and below `park.min`. Otherwise a
# tenant that is created later under the same name would get them (P1). Only the rows change here. Their pods are ended by the
# ordinary path, which ends none in a frozen pool and none of an unconfirmed worker. A worker whose agent reports a claim that is
# not known to have ended becomes unconfirmed, so that its pod is kept until its agent is idle and exits. The rows are locked in the
# order of their ids, as everywhere.
DELETE = """
WITH clock AS (SELECT holdfast.now() AS t),
used AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE state = 'waiting') AS waiting, count(*) FILTER (WHERE state <> 'waiting') AS live
    FROM holdfast.claim WHERE tenant = $1::text AND state <> 'ended'
), free AS MATERIALIZED (SELECT FROM used WHERE waiting = 0 AND live = 0),
limits AS (DELETE FROM holdfast.tenant WHERE name = $1 AND EXISTS (SELECT FROM free) RETURNING name),
token AS (DELETE FROM holdfast.token WHERE tenant = $1 AND EXISTS (SELECT FROM free) RETURNING id),
brake AS (DELETE FROM holdfast.tenant_brake WHERE tenant = $1 AND EXISTS (SELECT FROM free)),
deleted AS MATERIALIZED (
    SELECT (SELECT count(*) FROM token) AS tokens WHERE EXISTS (SELECT FROM limits) OR EXISTS (SELECT FROM token)
), parked AS MATERIALIZED (
    SELECT w AS worker FROM holdfast.worker w
    WHERE state = 'parked' AND tenant = $1 AND EXISTS (SELECT FROM deleted) ORDER BY id FOR UPDATE
), retired AS MATERIALIZED (
    SELECT @fn.retire_free(w => worker, p_reason => 'its tenant was deleted', p_actor => $2::jsonb, p_unconfirmed =>
        coalesce((worker).unconfirmed_since, (
            SELECT clock.t FROM clock, holdfast.heartbeat u WHERE u.worker_id = (worker).id AND u.claim_id IS NOT NULL
            AND NOT EXISTS (SELECT FROM holdfast.claim c WHERE c.id = u.claim_id AND c.state = 'ended'))))
    FROM parked
), event AS (
    INSERT INTO holdfast.event (at, kind, tenant, reason, actor)
    SELECT clock.t, 'tenant.deleted', $1::text, format('tokens deleted with it: %s', deleted.tokens), $2::jsonb
    FROM deleted, clock
), notice AS (
    SELECT pg_notify('holdfast', 't ' || $1::text) FROM deleted
)
SELECT used.live, used.waiting, deleted.tokens, (SELECT count(*) FROM notice), (SELECT count(*) FROM retired)
FROM used LEFT JOIN deleted ON true
"""


async def all_tenants(db: Database) -> list[Tenant]:
    return [Tenant(name=row["name"], spec=_spec(row), live=row["live"], waiting=row["waiting"]) for row in await db.rows(ALL)]


async def limits(db: Database, names: Sequence[str]) -> dict[str, TenantSpec]:
    return {row["name"]: _spec(row) for row in await db.rows(LIMITS, list(names))}


async def put_tenant(db: Database, name: str, spec: TenantSpec, actor: Actor | None) -> None:
    await db.rows(PUT, name, *limits_of(spec).values(), actor_json(actor))


async def delete_tenant(db: Database, name: str, actor: Actor | None) -> DeletedTenant:
    row = await db.row(DELETE, name, actor_json(actor))
    assert row is not None
    return DeletedTenant(deleted=row["tokens"] is not None, tokens=row["tokens"] or 0, live=row["live"], waiting=row["waiting"])


def _spec(row: asyncpg.Record) -> TenantSpec:
    return TenantSpec(
        weight=row["weight"],
        max_claims=row["max_claims"],
        max_priority=row["max_priority"],
        park_ttl=None if row["park_ttl"] is None else exact(row["park_ttl"]),
        max_waiting=row["max_waiting"],
        max_output_bytes=row["max_output_bytes"],
    )
