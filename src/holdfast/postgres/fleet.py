"""Replicas, terms, heard time, recovery and the brake in Postgres."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..model.outcome import Outcome, outcome_of
from ..model.pod import Pod
from ..ports.store import Adoption, Beat, DutyReport, Recovery, TermState
from .database import Database

JOIN = """
INSERT INTO holdfast.replica (id, pid, host, url, version, functions, started_at, seen_at)
VALUES ($1, $2, $3, $4, $5, $6, holdfast.now(), holdfast.now())
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at
"""
LEAVE = """
WITH r AS (UPDATE holdfast.replica SET stopped_at = holdfast.now() WHERE id = $1)
UPDATE holdfast.term SET until = 'epoch', holder = NULL WHERE holder = $1
"""
BEAT = "SELECT * FROM @fn.beat($1, $2, $3, $4::jsonb, $5, $6)"
TAKE_TERM = "SELECT @fn.take_term($1, $2, $3, $4)"
STATE = """
SELECT i.install_id, i.epoch, h.mark, i.recovering_since IS NOT NULL, i.recovery_reason,
       coalesce(extract(epoch FROM holdfast.heard() - i.recovery_heard), 0)::float8,
       (i.epoch::bigint << 40) + (SELECT last_value FROM holdfast.fence),
       extract(epoch FROM holdfast.now() - i.recovered_at)::float8, h.mark < $1
FROM holdfast.installation i, holdfast.hearing h
"""
BEGIN_RECOVERY = "SELECT @fn.begin_recovery($1, $2, $3)"
COMPARE_STAMPS = "SELECT @fn.compare_stamps($1::jsonb)"
ADOPT = "SELECT @fn.adopt($1, $2, $3, $4, $5, $6, $7, $8, $9)"
ADOPT_FREE = "SELECT @fn.adopt_free($1, $2, $3, $4, $5, $6)"
END_RECOVERY = "SELECT @fn.end_recovery()"
RELEASE_BRAKE = """
WITH clock AS (SELECT holdfast.now() AS t),
i AS (UPDATE holdfast.installation SET brake_tripped_at = NULL, brake_reason = NULL, brake_released_at = clock.t FROM clock
      WHERE brake_tripped_at IS NOT NULL RETURNING 1),
e AS (INSERT INTO holdfast.event (at, kind, reason) SELECT clock.t, 'brake.released', $1 FROM i, clock)
SELECT 1 FROM i
"""
STOP_WORKERS = "UPDATE holdfast.installation SET stopping = $1 WHERE stopping <> $1"
SET_BRAKE = "UPDATE holdfast.installation SET brake_limit = $1, brake_share = $2 WHERE (brake_limit, brake_share) <> ($1, $2)"
BRAKE = """
SELECT i.brake_tripped_at IS NOT NULL AS tripped, i.brake_tripped_at AS tripped_at, i.brake_reason AS reason,
       i.brake_limit AS limit, i.brake_share AS share,
       (SELECT count(*) FROM holdfast.ending e WHERE e.kind = 'worker' AND e.at > holdfast.now() - interval '10 min') AS workers_ended,
       (SELECT count(*) FROM holdfast.ending e WHERE e.kind = 'claim' AND e.at > holdfast.now() - interval '10 min') AS claims_ended
FROM holdfast.installation i
"""
DUTIES = """
SELECT duty, holder, number, taken_over, success_at, extract(epoch FROM holdfast.now() - success_at)::float8 AS age,
       progress_at, seconds::float8 AS seconds, actions, skips, failure, until > holdfast.now() AS held
FROM holdfast.term ORDER BY duty
"""
# Death is a comparison of timestamps that any reader can make: no pass has to run for it.
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
        mark: int = 0,
        epoch: int = 0,
    ) -> Beat:
        row = await self._db.row(BEAT, replica, elapsed, term, msgspec.json.encode(reports).decode(), mark, epoch)
        assert row is not None
        terms = msgspec.json.decode(row["o_terms"], type=list[TermState])
        return Beat(row["o_mark"], row["o_epoch"], row["o_recovering"], terms)

    async def take_term(self, duty: str, replica: str, term: float, stale: float) -> int | None:
        number: int | None = await self._db.value(TAKE_TERM, duty, replica, term, stale)
        return number

    async def state(self) -> Recovery:
        row = await self._db.row(STATE, self._db.mark.value)
        assert row is not None
        return Recovery(*row)

    async def begin_recovery(self, reason: str, mark: int, epoch: int = 0) -> bool:
        return bool(await self._db.value(BEGIN_RECOVERY, reason, mark, epoch))

    async def compare_stamps(self, pods: Iterable[Pod]) -> bool:
        stamps = [
            {"worker": pod.worker, "uid": pod.uid, "claim": pod.stamp.claim, "fence": pod.stamp.fence}
            for pod in pods
            if pod.stamp is not None
        ]
        return bool(stamps and await self._db.value(COMPARE_STAMPS, msgspec.json.encode(stamps).decode()))

    async def adopt(self, adoption: Adoption) -> Outcome:
        a = adoption
        args = (a.worker, a.uid, a.pool_id, a.pool, a.revision, a.claim, a.tenant, a.fence, a.endpoint)
        return outcome_of(await self._db.value(ADOPT, *args))

    async def adopt_free(self, worker: str, uid: str, pool_id: str, pool: str, revision: str, *, spent: bool) -> Outcome:
        return outcome_of(await self._db.value(ADOPT_FREE, worker, uid, pool_id, pool, revision, spent))

    async def end_recovery(self) -> Outcome:
        return outcome_of(await self._db.value(END_RECOVERY))

    async def release_brake(self, reason: str) -> bool:
        return await self._db.value(RELEASE_BRAKE, reason) is not None

    async def stop_workers(self, stopping: bool) -> None:
        await self._db.rows(STOP_WORKERS, stopping)

    async def set_brake(self, limit: int, share: float) -> None:
        await self._db.rows(SET_BRAKE, limit, share)

    async def brake(self) -> dict[str, Any]:
        row = await self._db.row(BRAKE)
        assert row is not None
        return dict(row)

    async def duties(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._db.rows(DUTIES)]

    async def replicas(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._db.rows(REPLICAS)]
