"""Recovery after lost commits in Postgres: the statements of functions/recovery.sql and functions/decide.sql."""

import math
from collections.abc import Iterable

import msgspec

from ..model.claim import FENCE_LIMIT
from ..model.effect import Effect, effect_of
from ..model.event import Actor
from ..model.pod import Pod
from ..ports.recovery import Adoption, Recovery, Unconfirmed
from .database import Database, actor_json

STATE = """
SELECT i.install_id, i.epoch, h.mark, i.recovering_since IS NOT NULL, i.recovery_reason,
       coalesce(extract(epoch FROM holdfast.heard() - i.recovery_heard), 0)::float8, @fn.last_fence(),
       extract(epoch FROM holdfast.now() - i.recovered_at)::float8, h.mark < $1,
       extract(epoch FROM i.recovering_since)::float8
FROM holdfast.installation i, holdfast.hearing h
"""
BEGIN = "SELECT @fn.begin_recovery(p_reason => $1, p_mark => $2, p_epoch => $3)"
BEGIN_BY_FENCE = "SELECT @fn.begin_by_fence(p_reason => $1, p_fence => $2)"
COMPARE_STAMPS = "SELECT @fn.compare_stamps($1::jsonb)"
ADOPT = """
SELECT @fn.adopt(p_worker => $1, p_uid => $2, p_pool_id => $3, p_pool => $4, p_revision => $5, p_claim => $6, p_tenant => $7,
                 p_fence => $8, p_endpoint => $9)
"""
ADOPT_FREE = """
SELECT @fn.adopt_free(p_worker => $1, p_uid => $2, p_pool_id => $3, p_pool => $4, p_revision => $5, p_spent => $6)
"""
END = "SELECT @fn.end_recovery()"
UNCONFIRMED = """
SELECT w.id AS worker, p.name AS pool, w.state, extract(epoch FROM w.unconfirmed_since)::float8 AS since,
       (p.spec #>> '{worker,agent}')::boolean AS agent, c.id AS claim, c.state AS claim_state,
       coalesce(c.delivered, false) AS delivered, w.tenant, u.doing, @fn.reported_claim(w.id) AS reported_claim
FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id LEFT JOIN holdfast.claim c ON c.id = w.claim_id
LEFT JOIN holdfast.heartbeat u ON u.worker_id = w.id AND u.beat_heard > (SELECT recovery_heard FROM holdfast.installation)
WHERE w.state <> 'gone' AND NOT @confirmed(w) ORDER BY w.id
"""
CONFIRM = "SELECT CASE WHEN @acting THEN @fn.confirm($1, $2, $3::jsonb) ELSE 'recovering' END"
GIVE_UP = "SELECT CASE WHEN @acting THEN @fn.give_up($1, $2, $3::jsonb) ELSE 'recovering' END"


class PostgresRecovery:
    def __init__(self, db: Database) -> None:
        self._db = db

    def saw(self, mark: int, seconds: float = math.inf) -> None:
        self._db.mark.saw(mark, seconds)

    @property
    def compared(self) -> bool:
        return self._db.mark.compared

    async def state(self) -> Recovery:
        row = await self._db.row(STATE, self._db.mark.value)
        assert row is not None
        return Recovery(*row)

    async def begin(self, reason: str, mark: int, epoch: int = 0) -> bool:
        return bool(await self._db.value(BEGIN, reason, mark, epoch))

    async def begin_by_fence(self, reason: str, fence: int) -> bool:
        return 0 < fence < FENCE_LIMIT and bool(await self._db.value(BEGIN_BY_FENCE, reason, fence))

    async def compare_stamps(self, pods: Iterable[Pod]) -> bool:
        stamps = [
            {"worker": pod.worker, "uid": pod.uid, "claim": pod.stamp.claim, "fence": pod.stamp.fence}
            for pod in pods
            if pod.stamp is not None and 0 < pod.stamp.fence < FENCE_LIMIT
        ]
        return bool(stamps and await self._db.value(COMPARE_STAMPS, msgspec.json.encode(stamps).decode()))

    async def adopt(self, adoption: Adoption) -> Effect:
        a = adoption
        args = (a.worker, a.uid, a.pool_id, a.pool, a.revision, a.claim, a.tenant, a.fence, a.endpoint)
        return effect_of(await self._db.value(ADOPT, *args))

    async def adopt_free(self, worker: str, uid: str, pool_id: str, pool: str, revision: str, *, spent: bool) -> Effect:
        return effect_of(await self._db.value(ADOPT_FREE, worker, uid, pool_id, pool, revision, spent))

    async def end(self) -> Effect:
        return effect_of(await self._db.value(END))

    async def unconfirmed(self) -> list[Unconfirmed]:
        return [Unconfirmed(**dict(row)) for row in await self._db.rows(UNCONFIRMED)]

    async def confirm(self, worker: str, reason: str, actor: Actor | None = None) -> Effect:
        return effect_of(await self._db.act_value(CONFIRM, worker, reason, actor_json(actor)))

    async def give_up(self, worker: str, reason: str, actor: Actor | None = None) -> Effect:
        return effect_of(await self._db.act_value(GIVE_UP, worker, reason, actor_json(actor)))
