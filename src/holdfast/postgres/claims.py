"""Claims in Postgres: match, hand over, renew, end."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import msgspec

from ..model.claim import Claim
from ..model.effect import Done, Effect, effect_of
from ..model.event import Actor
from ..ports.store import AcknowledgedClaim, Assignment, Batch, ClaimFilters, Due, EndedClaim, FailedActivation, NewClaim, Pair
from .claim_view import SHOWN, SHOWN_WITH_WORKER, WHY_WAITING
from .conditions import Conditions, filter_claims
from .database import Database, actor_json

_encode = msgspec.json.Encoder().encode

MATCH = "SELECT * FROM @fn.match(p_pool => $1, p_new => $2::jsonb, p_limit => $3, p_acting => @acting)"

# Stores that the worker receives the claim, before the claim is sent, because from then on the worker may have this tenant's data.
DELIVER = """
WITH c AS (
    -- Only the first fetch counts as progress. Otherwise a worker that fetches again and again would never be due.
    UPDATE holdfast.claim AS claim SET delivered = true,
        progress_heard = CASE WHEN claim.delivered THEN claim.progress_heard ELSE (SELECT holdfast.heard()) END
    FROM holdfast.worker w
    WHERE w.id = $1 AND w.pod_uid = $2 AND w.claim_id = claim.id AND claim.worker_id = w.id AND claim.state IN @claim.activate
      AND claim.offered AND w.fence = claim.fence
    RETURNING claim.*
), w AS (
    UPDATE holdfast.worker AS worker SET delivered = true FROM c WHERE worker.id = c.worker_id AND NOT worker.delivered
)
SELECT c.id, c.fence, c.tenant, c.request, c.protected, extract(epoch FROM c.max_duration)::float8 AS max_seconds, s.secrets
FROM c LEFT JOIN holdfast.claim_secret s ON s.claim_id = c.id
"""

# A claim that was adopted while its agent still activated it is active already. If its progress were refused, the agent would stop.
PROGRESS = """
UPDATE holdfast.claim SET progress_heard = (SELECT holdfast.heard())
WHERE worker_id = $1 AND fence = $2 AND state IN @claim.live RETURNING id
"""

REQUEUE = """
SELECT CASE WHEN @acting THEN @fn.requeue(p_claim => $1, p_fence => $2, p_keep_worker => $3, p_suspect => $4, p_dead => $5,
                                          p_untouched => $6, p_idle => $7, p_reason => $8) ELSE 'recovering' END
"""

ACTIVATION_FAILED = """
SELECT CASE WHEN @acting THEN @fn.activation_failed(p_claim => $1, p_fence => $2, p_dead => $3, p_idle => $4, p_cause => $5)
       ELSE 'recovering' END AS what,
       (SELECT p.name FROM holdfast.claim c JOIN holdfast.pool p ON p.id = c.pool_id WHERE c.id = $1) AS pool
"""

# Each branch reads its own partial index. The time is a subquery and not a join, because only then does the index find the claims
# that are due. With a join, every pass would read all active claims and check their workers (10,000 claims: 0.5 s instead of 2 ms).
# A hand-over is due if it has made no progress for `$2` seconds. A claim whose worker may hold another one is never due, because
# nothing may be done about it, and many of them would hide all other claims behind the limit. For the same reason the claims of a
# tenant whose brake is tripped are read apart: those past their longest duration, which wait for room in the brake's ten minutes.
# Its other claims are due only if the brake does not count their end.
DUE = """
WITH clock AS MATERIALIZED (SELECT holdfast.heard() AS h),
braked AS MATERIALIZED (SELECT tenant FROM holdfast.tenant_brake WHERE tripped_at IS NOT NULL),
due AS (
    (SELECT c.* FROM holdfast.claim c WHERE c.state = 'waiting' AND c.deadline_heard <= (SELECT h FROM clock)
     ORDER BY c.deadline_heard LIMIT $1)
    UNION ALL
    (SELECT c.* FROM holdfast.claim c WHERE c.state = 'assigned' AND c.progress_heard <= (SELECT h FROM clock) - make_interval(secs => $2)
       AND NOT @fn.may_hold_another(c) ORDER BY c.progress_heard LIMIT $1)
    UNION ALL
    (SELECT c.* FROM holdfast.claim c WHERE c.state = 'active' AND c.lease_heard IS NOT NULL AND c.lease_heard <= (SELECT h FROM clock)
       AND NOT @fn.may_hold_another(c) AND (c.tenant <> ALL (ARRAY(SELECT tenant FROM braked))
            OR c.max_heard > (SELECT h FROM clock) AND @fn.chosen_end(c, 'lease')) ORDER BY c.lease_heard LIMIT $1)
    UNION ALL
    (SELECT c.* FROM holdfast.claim c WHERE c.state = 'active' AND c.max_heard <= (SELECT h FROM clock)
       AND (c.lease_heard IS NULL OR c.lease_heard > (SELECT h FROM clock)) AND NOT @fn.may_hold_another(c)
       AND c.tenant <> ALL (ARRAY(SELECT tenant FROM braked)) ORDER BY c.max_heard LIMIT $1)
    UNION ALL
    (SELECT late.* FROM braked, LATERAL (SELECT c.* FROM holdfast.claim c WHERE c.state = 'active' AND c.tenant = braked.tenant
       AND c.max_heard <= (SELECT h FROM clock) AND NOT @fn.may_hold_another(c) ORDER BY c.max_heard LIMIT $1) AS late)
    UNION ALL
    (SELECT c.* FROM holdfast.claim c, holdfast.pool p WHERE p.state <> 'live' AND c.pool_id = p.id
       AND c.state = 'waiting' AND c.deadline_heard > (SELECT h FROM clock) LIMIT $1)
)
SELECT d.id AS claim, d.fence, d.state, p.state = 'live' AS pool_live,
       d.state = 'waiting' AND d.deadline_heard <= clock.h AS past_deadline,
       d.state = 'active' AND coalesce(d.lease_heard <= clock.h, false) AS past_lease,
       d.state = 'active' AND d.max_heard <= clock.h AS past_max,
       coalesce(extract(epoch FROM clock.h - d.progress_heard), 0)::float8 AS idle, d.offered, d.delivered
FROM due d JOIN holdfast.pool p ON p.id = d.pool_id, clock
"""

ENDED_BY = """
SELECT id FROM holdfast.claim WHERE worker_id = $1 AND fence = $2 AND state = 'ended' AND how IN ('result', 'death')
"""

# One claim per statement, because Postgres plans a search for an array again each time (1.4 of 1.65 ms of CPU).
GET = f"WITH chosen AS MATERIALIZED (SELECT * FROM holdfast.claim WHERE id = $1), {WHY_WAITING} {SHOWN}"
FIND = f"""
WITH chosen AS MATERIALIZED (
    SELECT * FROM holdfast.claim c WHERE @where ORDER BY c.created_at DESC, c.id DESC LIMIT $1
), {WHY_WAITING} {SHOWN} ORDER BY c.created_at DESC, c.id DESC
"""
# Offers claims to their agents, because their workers are protected now (or cannot be). A claim of a worker without an agent
# becomes active. A statement that writes several claims or workers first locks them in the order of their ids, claims before
# workers. Otherwise two such statements could deadlock.
OFFER = f"""
WITH offered AS MATERIALIZED (
    SELECT o.* FROM unnest($1::text[], $2::bigint[], $3::boolean[]) AS o(id, fence, protected)
), locked_claim AS MATERIALIZED (
    SELECT id FROM holdfast.claim WHERE id = ANY ($1::text[]) ORDER BY id FOR UPDATE
), clock AS MATERIALIZED (SELECT holdfast.now() AS t, holdfast.heard() AS h),
chosen AS (
    UPDATE holdfast.claim AS claim SET
        offered = true, protected = o.protected, progress_heard = clock.h,
        state = CASE WHEN agent.yes THEN claim.state ELSE 'active' END,
        delivered = claim.delivered OR NOT agent.yes,
        active_at = CASE WHEN agent.yes THEN NULL ELSE clock.t END,
        lease_heard = CASE WHEN agent.yes THEN NULL ELSE clock.h + claim.lease END,
        max_heard = CASE WHEN agent.yes THEN NULL ELSE clock.h + claim.max_duration END
    FROM offered o JOIN locked_claim USING (id), clock, holdfast.pool p,
         LATERAL (SELECT (p.spec #>> '{{worker,agent}}')::boolean AS yes) agent
    WHERE claim.id = o.id AND claim.fence = o.fence AND claim.state IN @claim.activate AND NOT claim.offered
      AND p.id = claim.pool_id
    RETURNING claim.*, p.spec #>> '{{protection,mode}}' = 'off' AS unprotected_pool,
              claim.protected AND p.spec #>> '{{protection,mode}}' = 'claim' AS protection_written,
              pg_notify('holdfast', CASE WHEN agent.yes THEN 'w ' || claim.worker_id ELSE 'c ' || claim.id END)
), locked_worker AS MATERIALIZED (
    SELECT id FROM holdfast.worker WHERE id IN (SELECT worker_id FROM chosen) ORDER BY id FOR UPDATE
), worker_noted AS (
    -- Stores the protection that the patched pod showed. Otherwise the next pass of `converge` would write it again.
    UPDATE holdfast.worker AS worker SET delivered = worker.delivered OR c.state = 'active',
        protected = worker.protected OR c.protection_written, version = worker.version + 1
    FROM chosen c JOIN locked_worker ON locked_worker.id = c.worker_id
    WHERE worker.id = c.worker_id AND (c.state = 'active' OR c.protection_written AND NOT worker.protected)
), event AS (
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant, reason)
    SELECT clock.t, CASE WHEN c.state = 'active' THEN 'claim.active' ELSE 'claim.unprotected' END, c.pool_id, c.worker_id, c.id,
           c.tenant, CASE WHEN c.protected OR c.unprotected_pool THEN '' ELSE 'the cluster did not accept the protection' END
    FROM chosen c, clock WHERE c.state = 'active' OR NOT (c.protected OR c.unprotected_pool)
) {SHOWN_WITH_WORKER}
"""

# The functions return the claim after their change, because the rest of the statement still reads the row from before it.
ACKNOWLEDGE = f"""
WITH chosen AS MATERIALIZED (
    SELECT (a.o_claim).*, a.o_first
    FROM @fn.acknowledge(p_worker => $1, p_fence => $2, p_endpoint => $3, p_incarnation => $4) a
)
SELECT shown.*, chosen.o_first FROM ({SHOWN_WITH_WORKER}) shown, chosen
"""
# The lease of an adopted claim starts again with its holder's first renewal.
RENEW = f"""
WITH chosen AS (
    UPDATE holdfast.claim SET lease_heard = (SELECT holdfast.heard()) + lease
    WHERE id = $1 AND fence = $2 AND state = 'active' AND ($3::text IS NULL OR tenant = $3) RETURNING *
) {SHOWN_WITH_WORKER}
"""
END = f"""
WITH result AS MATERIALIZED (
    SELECT * FROM @fn.end_claim(p_claim => $1, p_fence => $2, p_tenant => $3, p_states => $4, p_outcome => $5, p_how => $6,
                                p_reason => $7, p_exit => $8, p_actor => $9::jsonb, p_acting => @acting)
), chosen AS MATERIALIZED (SELECT (r.o_claim).* FROM result r)
SELECT result.o_what, shown.* FROM result LEFT JOIN ({SHOWN_WITH_WORKER}) shown ON true
"""
BY_KEY = "SELECT id FROM holdfast.claim WHERE tenant = $1 AND key = $2 AND key_live AND request_hash IN ($3, $4::text)"
# Two statements, so that each reads only as many rows of its index as it returns.
NEWEST_IDS = "SELECT id FROM holdfast.claim ORDER BY created_at DESC, id DESC LIMIT $1"
NEWEST_IDS_OF_TENANT = "SELECT id FROM holdfast.claim WHERE tenant = $2 ORDER BY created_at DESC, id DESC LIMIT $1"
STATE = "SELECT state FROM holdfast.claim WHERE id = $1"


def claim_of(row: Mapping[str, Any]) -> Claim:
    labels = row["labels"]
    return Claim(**{**row, "labels": msgspec.json.decode(labels) if labels else {}})


class PostgresClaims:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def match(self, pool_id: str, new: Sequence[NewClaim], limit: int) -> Batch:
        requests = [{"ord": n, **msgspec.structs.asdict(claim)} for n, claim in enumerate(new)]
        rows = await self._db.act(MATCH, pool_id, _encode(requests).decode(), limit)
        batch = Batch({}, [])
        for what, claim, worker, fence, uid, tenant in rows:
            if what == "assigned":
                batch.pairs.append(Pair(claim, worker, fence, uid, tenant))
            else:
                batch.answers[claim] = (what, worker or claim)
        return batch

    async def offer(self, offers: Sequence[tuple[str, int, bool]]) -> list[Claim]:
        ids, fences, flags = zip(*offers, strict=True)
        return [claim_of(row) for row in await self._db.rows(OFFER, list(ids), list(fences), list(flags))]

    async def deliver(self, worker: str, uid: str) -> Assignment | None:
        row = await self._db.row(DELIVER, worker, uid)
        if row is None:
            return None
        return Assignment(
            claim=row["id"],
            fence=row["fence"],
            tenant=row["tenant"],
            request=msgspec.json.decode(row["request"]),
            secrets=msgspec.json.decode(row["secrets"]) if row["secrets"] else None,
            protected=bool(row["protected"]),
            max_seconds=row["max_seconds"],
        )

    async def acknowledge(
        self, worker: str, fence: int, endpoint: str | None, incarnation: int | None = None
    ) -> AcknowledgedClaim | None:
        row = await self._db.row(ACKNOWLEDGE, worker, fence, endpoint, incarnation)
        if row is None:
            return None
        fields = dict(row)
        first = fields.pop("o_first")
        # The statement reads the worker's row from before its own change, so the new endpoint is not in it.
        return AcknowledgedClaim(claim_of({**fields, "endpoint": endpoint or fields["endpoint"]}), first)

    async def progress(self, worker: str, fence: int) -> bool:
        return await self._db.value(PROGRESS, worker, fence) is not None

    async def renew(self, claim: str, fence: int, tenant: str | None = None) -> Claim | None:
        row = await self._db.row(RENEW, claim, fence, tenant)
        return claim_of(row) if row else None

    async def end(
        self,
        claim: str,
        *,
        outcome: str,
        how: str,
        reason: str,
        states: Sequence[str],
        fence: int | None = None,
        tenant: str | None = None,
        exit_code: int | None = None,
        actor: Actor | None = None,
    ) -> EndedClaim:
        args = (claim, fence, tenant, list(states), outcome, how, reason, exit_code, actor_json(actor))
        (row,) = await self._db.act(END, *args)
        fields = dict(row)
        what = effect_of(fields.pop("o_what"))
        return EndedClaim(what, claim_of(fields) if isinstance(what, Done) else None)

    async def requeue(
        self,
        claim: str,
        fence: int,
        *,
        reason: str,
        keep_worker: bool = False,
        suspect: bool = False,
        dead: bool = False,
        untouched: bool = False,
        idle: float | None = None,
    ) -> Effect:
        args = (claim, fence, keep_worker, suspect, dead, untouched, idle, reason)
        return effect_of(await self._db.act_value(REQUEUE, *args))

    async def activation_failed(
        self, claim: str, fence: int, cause: str, *, dead: bool = False, idle: float | None = None
    ) -> FailedActivation:
        [row] = await self._db.act(ACTIVATION_FAILED, claim, fence, dead, idle, cause)
        if row["what"] != "refused":
            return FailedActivation(effect_of(row["what"]), row["pool"])
        return FailedActivation(Done(), row["pool"], next(iter(await self.get([claim])), None))

    async def due(self, limit: int, stalled: float) -> list[Due]:
        return [Due(**dict(row)) for row in await self._db.rows(DUE, limit, stalled)]

    async def ended_by(self, worker: str, fence: int) -> str | None:
        claim: str | None = await self._db.value(ENDED_BY, worker, fence)
        return claim

    async def by_key(self, tenant: str, key: str, hash_: str, hash_before: str | None = None) -> str | None:
        claim: str | None = await self._db.value(BY_KEY, tenant, key, hash_, hash_before)
        return claim

    async def state(self, claim: str) -> str | None:
        state: str | None = await self._db.value(STATE, claim)
        return state

    async def newest_ids(self, tenant: str | None, limit: int) -> list[str]:
        found = self._db.rows(NEWEST_IDS, limit) if tenant is None else self._db.rows(NEWEST_IDS_OF_TENANT, limit, tenant)
        return [row["id"] for row in await found]

    async def get(self, ids: Sequence[str]) -> list[Claim]:
        return [claim_of(row) for id_ in ids for row in await self._db.rows(GET, id_)]

    async def find(
        self, *, limit: int, cursor: str | None = None, **about: Unpack[ClaimFilters]
    ) -> tuple[list[Claim], str | None]:
        conditions = Conditions(limit + 1)
        filter_claims(conditions, about)
        conditions.given("(c.created_at, c.id) < (SELECT k.created_at, k.id FROM holdfast.claim k WHERE k.id = {})", cursor)
        rows = await self._db.rows(FIND.replace("@where", conditions.where), *conditions.args)
        claims = [claim_of(row) for row in rows[:limit]]
        return claims, claims[-1].id if len(rows) > limit else None
