"""Replicas, terms, heard time and the brake in Postgres."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ..model.brake import BrakeLimits
from ..model.event import Actor
from ..ports.installation import NOTHING_SEEN
from ..ports.recovery import Seen
from ..ports.store import Beat, DutyReport, TermState
from .database import Database, actor_json

JOIN = """
INSERT INTO holdfast.replica (id, pid, host, url, version, functions, started_at, seen_at)
VALUES ($1, $2, $3, $4, $5, $6, holdfast.now(), holdfast.now())
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at
"""
LEAVE = """
WITH r AS (UPDATE holdfast.replica SET stopped_at = holdfast.now() WHERE id = $1)
UPDATE holdfast.term SET until = 'epoch', holder = NULL WHERE holder = $1
"""
# What the replica has seen is compared first, because the beat itself raises the mark.
BEAT = """
SELECT * FROM @fn.compared_beat(p_mark => $5, p_epoch => $6, p_replica => $1, p_elapsed => $2, p_term => $3, p_duties => $4::jsonb)
"""
TAKE_TERM = "SELECT @fn.take_term(p_duty => $1, p_replica => $2, p_term => $3, p_stale => $4)"
RELEASE_BRAKE = "SELECT @fn.release_brake($1, $2, $3::jsonb)"
SET_BRAKE = """
SELECT @fn.set_brake(p_workers => $1, p_claims => $2, p_share => $3, p_tenant_share => $4, p_actor => $5::jsonb)
"""
STOP_WORKERS = "UPDATE holdfast.installation SET stopping = $1 WHERE stopping <> $1"
# The shares are stored with single precision. As numeric they are what was written, 0.1 and not 0.10000000149.
BRAKE = """
SELECT i.brake_tripped_at IS NOT NULL AS tripped, i.brake_tripped_at AS tripped_at, i.brake_reason AS reason,
       i.brake_limit AS workers, coalesce(i.brake_claims, i.brake_limit) AS claims, i.brake_share::numeric::float8 AS share,
       i.brake_tenant_share::numeric::float8 AS tenant_share,
       (SELECT count(*) FROM holdfast.ending e WHERE e.kind = 'worker' AND e.at > holdfast.now() - interval '10 min') AS workers_ended,
       (SELECT count(*) FROM holdfast.ending e WHERE e.kind = 'claim' AND e.at > holdfast.now() - interval '10 min') AS claims_ended
FROM holdfast.installation i
"""
BRAKED_TENANTS = "SELECT tenant, tripped_at, reason FROM holdfast.tenant_brake WHERE tripped_at IS NOT NULL ORDER BY tenant"
DUTIES = """
SELECT duty, holder, number, taken_over, success_at, extract(epoch FROM holdfast.now() - success_at)::float8 AS age,
       progress_at, seconds::float8 AS seconds, actions, skips, failure, until > holdfast.now() AS held
FROM holdfast.term ORDER BY duty
"""
# Every reader decides by timestamps whether a replica is silent, so no duty has to run for it.
REPLICAS = """
SELECT r.id, r.pid, r.host, r.url, r.version, r.started_at, r.seen_at,
       CASE WHEN r.stopped_at IS NOT NULL THEN 'stopped' WHEN r.seen_at < holdfast.now() - interval '5 s' THEN 'silent'
            ELSE 'live' END AS state,
       ARRAY(SELECT duty FROM holdfast.term t WHERE t.holder = r.id AND t.until > holdfast.now() ORDER BY duty) AS duties
FROM holdfast.replica r
WHERE coalesce(r.stopped_at, r.seen_at) > holdfast.now() - interval '10 min' ORDER BY r.started_at DESC, r.id
"""


class PostgresFleet:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def join(self, replica: str, pid: int, host: str, url: str, version: str) -> None:
        await self._db.rows(JOIN, replica, pid, host, url, version, self._db.functions)

    async def leave(self, replica: str) -> None:
        await self._db.rows(LEAVE, replica)

    async def beat(
        self,
        replica: str,
        elapsed: float | None,
        term: float,
        reports: Sequence[DutyReport],
        seen: Seen = NOTHING_SEEN,
    ) -> Beat:
        row = await self._db.row(BEAT, replica, elapsed, term, msgspec.json.encode(reports).decode(), seen.mark, seen.epoch)
        assert row is not None
        terms = msgspec.json.decode(row["o_terms"], type=list[TermState])
        return Beat(Seen(row["o_mark"], row["o_epoch"]), row["o_recovering"], terms)

    async def take_term(self, duty: str, replica: str, term: float, stale: float) -> int | None:
        number: int | None = await self._db.value(TAKE_TERM, duty, replica, term, stale)
        return number

    async def release_brake(self, reason: str, actor: Actor | None = None, tenant: str | None = None) -> bool:
        return bool(await self._db.value(RELEASE_BRAKE, tenant, reason, actor_json(actor)))

    async def set_brake(self, limits: BrakeLimits, actor: Actor | None = None) -> None:
        args = (limits.workers, limits.claims, limits.share, limits.tenant_share, actor_json(actor))
        await self._db.rows(SET_BRAKE, *args)

    async def stop_workers(self, stopping: bool) -> None:
        await self._db.rows(STOP_WORKERS, stopping)

    async def brake(self) -> dict[str, Any]:
        row = await self._db.row(BRAKE)
        assert row is not None
        return {**row, "tenants": [dict(each) for each in await self._db.rows(BRAKED_TENANTS)]}

    async def duties(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._db.rows(DUTIES)]

    async def replicas(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._db.rows(REPLICAS)]
