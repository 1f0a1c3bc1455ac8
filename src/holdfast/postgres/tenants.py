"""Delete a tenant in Postgres: its limits, its tokens and its parked workers, unless it still has claims."""

from ..model.event import Actor
from ..ports.records import DeletedTenant
from .database import Database, actor_json

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


async def delete_tenant(db: Database, name: str, actor: Actor | None) -> DeletedTenant:
    row = await db.row(DELETE, name, actor_json(actor))
    assert row is not None
    return DeletedTenant(deleted=row["tokens"] is not None, tokens=row["tokens"] or 0, live=row["live"], waiting=row["waiting"])
