"""Read the database after a statement: the live rows, the rows that just changed, and the events since the last read."""

from typing import Any, NamedTuple

import msgspec

from .server import Postgres


class WorkerRow(NamedTuple):
    id: str
    pool: str
    state: str
    version: int
    claim: str | None
    tenant: str | None
    fence: int | None
    uid: str | None
    reason: str | None
    usable: bool
    delivered: bool


class ClaimRow(NamedTuple):
    id: str
    pool: str
    state: str
    tenant: str
    worker: str | None
    fence: int | None
    protected: bool | None
    offered: bool
    outcome: str | None
    how: str | None
    reason: str
    retry: str | None
    patience: float
    lease: float | None
    longest: float
    exit_code: int | None


class EventRow(NamedTuple):
    id: int
    kind: str
    also: str | None
    worker: str | None
    claim: str | None
    reason: str


class Tables(msgspec.Struct, frozen=True):
    workers: dict[str, WorkerRow]
    claims: dict[str, ClaimRow]
    events: list[EventRow]
    over: list[str]  # tenants with more live claims than their cap
    crowded: list[str]  # pools with more workers than their max, by id
    warm: dict[str, int]  # the `warm` of live pools, by id
    braked: str | None  # set if there were more endings than the brake of the fleet or of a tenant allows
    epoch: int
    recovering: bool


LOOK = """
WITH e AS MATERIALIZED (SELECT id, kind, also, worker_id, claim_id, reason FROM holdfast.event WHERE id > $1),
t AS MATERIALIZED (SELECT holdfast.now() AS now)
SELECT jsonb_build_object(
 'w', (SELECT jsonb_agg(jsonb_build_array(id, pool_id, state, version, claim_id, tenant, fence, pod_uid, reason,
        state = 'warm' AND ready AND NOT terminating AND schedulable AND suspect_since IS NULL
            AND unconfirmed_since IS NULL, delivered) ORDER BY id)
       FROM holdfast.worker WHERE state <> 'gone' OR id IN (SELECT worker_id FROM e)),
 'c', (SELECT jsonb_agg(jsonb_build_array(id, pool_id, state, tenant, worker_id, fence, protected, offered, outcome, how, reason,
        retry, extract(epoch FROM patience),
        extract(epoch FROM lease), extract(epoch FROM max_duration), exit_code) ORDER BY id)
       FROM holdfast.claim WHERE state <> 'ended' OR id IN (SELECT claim_id FROM e)),
 'e', (SELECT jsonb_agg(jsonb_build_array(id, kind, also, worker_id, claim_id, reason) ORDER BY id) FROM e),
 'over', (SELECT jsonb_agg(name ORDER BY name) FROM holdfast.tenant n WHERE max_claims < (
        SELECT count(*) FROM holdfast.claim c WHERE c.tenant = n.name AND state IN ('assigned', 'active'))),
 'crowded', (SELECT jsonb_agg(p.id ORDER BY p.id) FROM holdfast.pool p WHERE state = 'live' AND (spec ->> 'max')::integer < (
        SELECT count(*) FROM holdfast.worker w WHERE w.pool_id = p.id AND w.state <> 'gone')),
 'warm', (SELECT jsonb_object_agg(id, (spec ->> 'warm')::integer) FROM holdfast.pool WHERE state = 'live'),
 'braked', (SELECT max(CASE WHEN own > allowed OR own - late > share
                             THEN format('%s endings of %ss of tenant %s', own, kind, tenant)
                             ELSE format('%s endings of %ss', total, kind) END) FROM (
        SELECT g.*, share, allowed, sum(CASE WHEN tenant IS NULL THEN n ELSE least(n, share) END) OVER (PARTITION BY kind) total
        FROM (
            SELECT e.kind, e.tenant, count(*) AS n,
                   count(*) FILTER (WHERE e.tenant IS NOT NULL AND at > coalesce(b.released_at, '-infinity')) AS own,
                   count(*) FILTER (WHERE e.tenant IS NOT NULL AND at > coalesce(b.released_at, '-infinity')
                                    AND c.ended_heard >= c.max_heard) AS late
            FROM holdfast.ending e LEFT JOIN holdfast.tenant_brake b ON b.tenant = e.tenant
            LEFT JOIN holdfast.claim c ON e.kind = 'claim' AND c.id = e.id, holdfast.installation i, t
            WHERE at > t.now - interval '10 min' AND at > coalesce(i.brake_released_at, '-infinity') GROUP BY 1, 2) g, (
            SELECT allowed, greatest(1, floor(brake_tenant_share * allowed)) AS share FROM (
                SELECT brake_tenant_share, greatest(brake_limit, coalesce(brake_claims, 0),
                       ceil(brake_share * (SELECT count(*) FROM holdfast.worker))) AS allowed FROM holdfast.installation) s) l) h
     WHERE total > allowed OR own > allowed OR own - late > share),
 'epoch', (SELECT epoch FROM holdfast.installation),
 'recovering', (SELECT recovering_since IS NOT NULL FROM holdfast.installation))::text
"""


def look(postgres: Postgres, now: float, after: int) -> Tables:
    found: dict[str, Any] = msgspec.json.decode(postgres.ask(now, LOOK, after)[0][0])
    workers, claims = (WorkerRow(*row) for row in found["w"] or ()), (ClaimRow(*row) for row in found["c"] or ())
    return Tables(
        {row.id: row for row in workers},
        {row.id: row for row in claims},
        [EventRow(*row) for row in found["e"] or ()],
        found["over"] or [],
        found["crowded"] or [],
        found["warm"] or {},
        found["braked"],
        found["epoch"],
        found["recovering"],
    )


def last_event(postgres: Postgres, now: float) -> int:
    return int(postgres.ask(now, "SELECT last_value FROM holdfast.event_id_seq")[0][0])
