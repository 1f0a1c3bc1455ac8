"""Workers in Postgres: spawn them, store their agents' reports, condemn and bury them, read the rows that `converge` compares."""

import asyncio
from collections.abc import Sequence
from typing import Unpack

from ..model.effect import Effect, Stale, effect_of
from ..model.event import Actor
from ..model.pod import Heartbeat
from ..model.pool import Pool
from ..model.worker import Worker
from ..ports.store import AgentReport, Directive, Facts, Row, WorkerFilters
from .conditions import Conditions, filter_workers
from .database import Database, actor_json
from .pools import POOL_COLUMNS, pool_of
from .worker_rows import row_of

SPAWN = """
SELECT o_worker, o_epoch
FROM @fn.spawn(p_pool => $1, p_ids => $2, p_free_target => $3, p_limit_starting => $4, p_acting => @acting)
"""

# Frees the slot at once and stores the failure in the pool. The backoff doubles with each consecutive failure.
UNSPAWN = """
WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
w AS (
    UPDATE holdfast.worker AS worker SET state = 'gone', version = version + 1, reason = $3, state_since = clock.t,
        state_heard = clock.h
    FROM clock WHERE worker.id = ANY ($1::text[]) AND worker.state IN @worker.unspawn RETURNING worker.id, worker.pool_id
), p AS (
    UPDATE holdfast.pool AS pool SET failures = failures + 1, trouble = $2 || ': ' || $3,
        backoff_until = clock.t + make_interval(secs => least(300, $4 * power(2, least(pool.failures, 8))))
    FROM w, clock WHERE pool.id = w.pool_id
), e AS (
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, reason, data)
    SELECT clock.t, 'worker.gone', w.pool_id, w.id, $3, jsonb_build_object('refused', $2) FROM w, clock
)
SELECT 'done' FROM w
"""

SPAWNED = """
UPDATE holdfast.worker SET pod_uid = $2, version = version + 1
WHERE id = $1 AND state <> 'gone' AND (pod_uid IS NULL OR pod_uid = $2) RETURNING 'done'
"""

WARM = """
WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
w AS (
    UPDATE holdfast.worker AS worker SET state = 'warm', version = version + 1, ready = true,
        endpoint = coalesce($3, endpoint), state_since = clock.t, state_heard = clock.h
    FROM clock WHERE worker.id = $1 AND worker.version = $2 AND worker.state IN @worker.warm AND @confirmed(worker)
    RETURNING worker.id, worker.pool_id
), p AS (
    UPDATE holdfast.pool AS pool SET failures = 0, trouble = NULL, backoff_until = NULL FROM w WHERE pool.id = w.pool_id
        AND (failures > 0 OR trouble IS NOT NULL)
), e AS (
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id) SELECT clock.t, 'worker.warm', w.pool_id, w.id FROM w, clock
), n AS (SELECT pg_notify('holdfast', 'p ' || w.pool_id) FROM w)
SELECT 'done', (SELECT count(*) FROM n) FROM w
"""

CONDEMN = """
SELECT CASE WHEN @acting THEN @fn.condemn(p_worker => $1, p_version => $2, p_reason => $3, p_counted => $4, p_dead => $5,
                                          p_floor => $6, p_actor => $7::jsonb) ELSE 'recovering' END
"""

BURY = """
WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
w AS (
    UPDATE holdfast.worker AS worker SET state = 'gone', version = version + 1, state_since = clock.t, state_heard = clock.h,
        ready = false
    FROM clock WHERE worker.id = $1 AND worker.state IN @worker.bury RETURNING worker.id, worker.pool_id, worker.tenant
), d AS (DELETE FROM holdfast.heartbeat USING w WHERE heartbeat.worker_id = w.id),
e AS (
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, tenant, reason)
    SELECT clock.t, 'worker.gone', w.pool_id, w.id, w.tenant, $2 FROM w, clock
), n AS (SELECT pg_notify('holdfast', 'p ' || w.pool_id) FROM w)
SELECT 'done', (SELECT count(*) FROM n) FROM w
"""

SUSPECT = """
WITH clock AS (SELECT holdfast.now() AS t),
w AS (
    UPDATE holdfast.worker AS worker SET suspect_since = clock.t, version = version + 1
    FROM clock WHERE worker.id = $1 AND worker.version = $2 AND worker.suspect_since IS NULL AND worker.state <> 'gone'
    RETURNING worker.id, worker.pool_id, worker.claim_id, worker.tenant
), e AS (
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant, reason)
    SELECT clock.t, 'worker.suspect', w.pool_id, w.id, w.claim_id, w.tenant, $3 FROM w, clock
)
SELECT 'done' FROM w
"""

# The agent has reported, so its worker is neither suspect nor unconfirmed. The version shows that no recovery has ended since the
# report was read: the end of a recovery raises the version of each worker that it leaves unconfirmed.
HEARD_AGAIN = """
UPDATE holdfast.worker AS w SET suspect_since = NULL, unconfirmed_since = NULL, version = version + 1
WHERE w.id = $1 AND w.version = $2 AND (w.suspect_since IS NOT NULL OR NOT @confirmed(w)) RETURNING 'done'
"""

FACTS = """
WITH known AS MATERIALIZED (SELECT id FROM holdfast.worker WHERE id = ANY ($1::text[]) ORDER BY id FOR UPDATE)
UPDATE holdfast.worker AS w SET node = f.node, terminating = w.terminating OR f.terminating, schedulable = f.schedulable,
    protected = f.protected, endpoint = coalesce(f.endpoint, w.endpoint), version = w.version + 1,
    scheduled_heard = CASE WHEN f.node IS NOT NULL THEN coalesce(w.scheduled_heard, (SELECT holdfast.heard())) END
FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[], $5::boolean[], $6::boolean[], $7::text[])
     AS f(id, uid, node, terminating, schedulable, protected, endpoint) JOIN known USING (id)
WHERE w.id = f.id AND w.pod_uid = f.uid AND w.state <> 'gone' RETURNING w.id
"""

REPORT = """
SELECT * FROM @fn.report(p_worker => $1, p_uid => $2, p_doing => $3, p_claim => $4, p_fence => $5, p_served_fence => $6,
                         p_endpoint => $7, p_fresh => $8, p_incarnation => $9, p_acting => @acting)
"""
DUE = "SELECT * FROM @fn.due_workers(p_no_pod => $1, p_retiring => $2, p_silent => $3)"
ORPHAN = """
SELECT CASE WHEN @acting THEN coalesce(@fn.braked(p_kind => 'worker', p_id => $1, p_tenant => NULL, p_ceiling => false), 'done')
       ELSE 'recovering' END
"""

# Stores nothing if the database is in another epoch than the replica knew when it received the reports.
BEAT = """
INSERT INTO holdfast.heartbeat AS heartbeat (worker_id, beat_heard, doing, claim_id, fence, tenant, reset_fence)
SELECT w.id, (SELECT holdfast.heard()), w.doing, w.claim, w.fence, w.tenant, w.served_fence
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[])
     AS w(id, doing, claim, fence, tenant, served_fence)
WHERE $7::integer IS NULL OR (SELECT @fn.in_epoch($7))
ON CONFLICT (worker_id) DO UPDATE SET beat_heard = greatest(heartbeat.beat_heard, excluded.beat_heard), doing = excluded.doing,
    claim_id = excluded.claim_id, fence = excluded.fence, tenant = excluded.tenant, reset_fence = excluded.reset_fence
"""

HEARTBEATS = """
SELECT u.worker_id AS worker, extract(epoch FROM c.h - u.beat_heard)::float8 AS age, u.doing, u.claim_id AS claim, u.fence, u.tenant,
       u.reset_fence AS served_fence,
       coalesce(u.beat_heard > i.recovery_heard, false) AS reported_since_recovery
FROM holdfast.heartbeat u, (SELECT holdfast.heard() AS h) c, holdfast.installation i WHERE u.worker_id = ANY ($1::text[])
"""

# The row is changed before the pod. Otherwise a removal that was planned from an old view could remove a new claim's protection.
UNPROTECT = """
UPDATE holdfast.worker SET protected = false, version = version + 1
WHERE id = $1 AND version = $2 AND state IN @worker.free AND (SELECT @acting) RETURNING 'done'
"""

WORKER_COLUMNS = """
w.id, w.pool_id, p.name AS pool, w.state, w.version, w.revision, w.claim_id AS claim, w.tenant, w.fence, w.reason, w.pod_uid, w.node,
w.ready, w.terminating, w.schedulable, extract(epoch FROM w.created_at)::float8 AS created_at,
extract(epoch FROM w.state_since)::float8 AS state_since, extract(epoch FROM w.parked_since)::float8 AS parked_since,
extract(epoch FROM w.park_ttl)::float8 AS park_ttl, extract(epoch FROM w.suspect_since)::float8 AS suspect_since,
extract(epoch FROM w.unconfirmed_since)::float8 AS unconfirmed_since
"""
GET = f"SELECT {WORKER_COLUMNS} FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id WHERE w.id = $1"
FIND = f"""
SELECT {WORKER_COLUMNS} FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id
WHERE @where ORDER BY w.created_at DESC, w.id DESC LIMIT $1
"""

NEWEST_IDS = "SELECT id FROM holdfast.worker WHERE state <> 'gone' ORDER BY created_at DESC, id DESC LIMIT $1"

ROWS = f"""
WITH clock AS MATERIALIZED (SELECT holdfast.heard() AS h)
SELECT {WORKER_COLUMNS}, w.epoch AS row_epoch, w.protected AS pod_protected,
       extract(epoch FROM clock.h - w.state_heard)::float8 AS age,
       extract(epoch FROM clock.h - w.scheduled_heard)::float8 AS scheduled_age,
       c.state AS claim_state, c.retry AS claim_retry, c.secret AS claim_secret, c.losses AS claim_losses, c.delivered AS claim_delivered,
       u.doing, u.claim_id AS u_claim, u.fence AS u_fence, u.tenant AS u_tenant, u.reset_fence AS u_served_fence,
       EXISTS (SELECT FROM holdfast.claim k WHERE k.id = u.claim_id AND k.state = 'ended') AS u_ended,
       coalesce(u.fence > coalesce(w.fence, 0), false) AND u.tenant IS NOT NULL AND NOT EXISTS (
           SELECT FROM holdfast.claim k WHERE k.id = u.claim_id AND (k.state = 'ended' OR k.fence >= u.fence)) AS u_ahead,
       extract(epoch FROM clock.h - u.beat_heard)::float8 AS u_age,
       coalesce(u.beat_heard > (SELECT recovery_heard FROM holdfast.installation), false) AS u_since
FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id LEFT JOIN holdfast.claim c ON c.id = w.claim_id
LEFT JOIN holdfast.heartbeat u ON u.worker_id = w.id, clock
WHERE w.state <> 'gone' AND ($1::text[] IS NULL OR w.id = ANY ($1))
"""
POOL_TRAITS = """
SELECT id, frozen IS NOT NULL AS frozen, (spec #>> '{worker,agent}')::boolean AS agent,
       spec #>> '{protection,mode}' AS protection, spec ->> 'silence' AS silence, coalesce((spec #>> '{network,seal}')::boolean, false) AS seal,
       extract(epoch FROM @fn.duration(spec ->> 'startTimeout'))::float8 AS start_timeout,
       extract(epoch FROM @fn.duration(spec #>> '{drain,grace}'))::float8 AS grace
FROM holdfast.pool WHERE state <> 'gone'
"""

IDENTITY = f"""
SELECT w.pod_uid, {POOL_COLUMNS} FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id
WHERE w.id = $1 AND w.state <> 'gone'
"""


class PostgresWorkers:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def spawn(self, pool_id: str, ids: Sequence[str], free_target: int, starting_limit: int) -> list[tuple[str, int]]:
        return [(row[0], row[1]) for row in await self._db.act(SPAWN, pool_id, list(ids), free_target, starting_limit)]

    async def unspawn(self, workers: Sequence[str], kind: str, reason: str, backoff: float) -> Effect:
        return _guarded(await self._db.value(UNSPAWN, list(workers), kind, reason[:500], backoff))

    async def spawned(self, worker: str, uid: str) -> Effect:
        return _guarded(await self._db.value(SPAWNED, worker, uid))

    async def warm(self, worker: str, version: int, endpoint: str | None) -> Effect:
        return _guarded(await self._db.value(WARM, worker, version, endpoint))

    async def condemn(
        self,
        worker: str,
        version: int | None,
        reason: str,
        *,
        counted: bool,
        dead: bool = False,
        floor: int | None = None,
        actor: Actor | None = None,
    ) -> Effect:
        args = (worker, version, reason, counted, dead, floor, actor_json(actor))
        return effect_of(await self._db.act_value(CONDEMN, *args))

    async def bury(self, worker: str, reason: str) -> Effect:
        return _guarded(await self._db.value(BURY, worker, reason))

    async def suspect(self, worker: str, version: int, reason: str) -> Effect:
        return _guarded(await self._db.value(SUSPECT, worker, version, reason))

    async def heard_again(self, worker: str, version: int) -> Effect:
        return _guarded(await self._db.value(HEARD_AGAIN, worker, version))

    async def unprotect(self, worker: str, version: int) -> Effect:
        return _guarded(await self._db.act_value(UNPROTECT, worker, version))

    async def heartbeats(self, workers: Sequence[str]) -> list[Heartbeat]:
        return [Heartbeat(**dict(row)) for row in await self._db.rows(HEARTBEATS, list(workers))]

    async def facts(self, facts: Sequence[Facts]) -> int:
        columns = [
            [getattr(fact, name) for fact in facts]
            for name in ("worker", "uid", "node", "terminating", "schedulable", "protected", "endpoint")
        ]
        return len(await self._db.rows(FACTS, *columns))

    async def report(self, report: AgentReport, *, fresh: bool = True) -> Directive:
        about = (report.worker, report.uid, report.doing, report.claim, report.fence, report.served_fence, report.endpoint)
        [row] = await self._db.act(REPORT, *about, fresh, report.incarnation)
        return Directive(*row)

    async def due(self, *, no_pod: float, retiring: float, silent: float) -> list[str]:
        return [row[0] for row in await self._db.rows(DUE, no_pod, retiring, silent)]

    async def may_end_orphan(self, name: str) -> Effect:
        return effect_of(await self._db.act_value(ORPHAN, name))

    async def beat(self, reports: Sequence[AgentReport], epoch: int | None = None) -> None:
        last = {report.worker: report for report in reports}  # a statement may upsert a row only once
        columns = [
            [getattr(w, name) for w in last.values()] for name in ("worker", "doing", "claim", "fence", "tenant", "served_fence")
        ]
        await self._db.rows(BEAT, *columns, epoch)

    async def rows(self, workers: Sequence[str] | None) -> list[Row]:
        traits = {row["id"]: row for row in await self._db.rows(POOL_TRAITS)}
        found = await self._db.rows(ROWS, None if workers is None else list(workers))
        rows: list[Row] = []
        for n, row in enumerate(found):
            if row["pool_id"] in traits:
                rows.append(row_of(row, traits[row["pool_id"]]))
            if n % 500 == 499:
                await asyncio.sleep(0)  # lets requests run, because ten thousand rows take long
        return rows

    async def identity(self, worker: str) -> tuple[str | None, Pool] | None:
        row = await self._db.row(IDENTITY, worker)
        return (row["pod_uid"], pool_of(row)) if row else None

    async def newest_ids(self, limit: int) -> list[str]:
        return [row["id"] for row in await self._db.rows(NEWEST_IDS, limit)]

    async def get(self, worker: str) -> Worker | None:
        row = await self._db.row(GET, worker)
        return Worker(**dict(row)) if row else None

    async def find(
        self, *, limit: int, cursor: str | None = None, **about: Unpack[WorkerFilters]
    ) -> tuple[list[Worker], str | None]:
        conditions = Conditions(limit + 1)
        filter_workers(conditions, about)
        conditions.given("(w.created_at, w.id) < (SELECT k.created_at, k.id FROM holdfast.worker k WHERE k.id = {})", cursor)
        rows = await self._db.rows(FIND.replace("@where", conditions.where), *conditions.args)
        workers = [Worker(**dict(row)) for row in rows[:limit]]
        return workers, workers[-1].id if len(rows) > limit else None


def _guarded(result: str | None) -> Effect:
    """Returns the effect of a guarded UPDATE: Stale if it matched no row."""
    return Stale() if result is None else effect_of(result)
