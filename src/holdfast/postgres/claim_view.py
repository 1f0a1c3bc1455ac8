"""How claims are shown: the columns that users see, and the reason why a claim waits, which is made when it is read.

A statement puts claims into a CTE named `chosen`, adds the CTEs of WHY_WAITING, and ends with SHOWN. A statement whose claims cannot be
waiting ends with SHOWN_WITH_WORKER and needs no other CTE. With WHY_WAITING an acknowledgement would take nine times as long (3.5 ms
instead of 0.4 ms of the server), because Postgres plans and runs these CTEs even if no claim waits.
"""

# The sentence about a pool is made once for all of its claims.
WHY_WAITING = """
pool_sentence AS MATERIALIZED (
    SELECT p.id, format('pool %L has %s of %s workers free; %s starting, %s held%s%s%s', p.name,
               count(*) FILTER (WHERE x.state = 'warm' AND @free(x)),
               p.spec ->> 'max', count(*) FILTER (WHERE x.state = 'spawning'), count(*) FILTER (WHERE x.state = 'held'),
               -- Tenants read this, so it does not repeat what operators and the cluster wrote about the pool.
               CASE WHEN p.frozen IS NOT NULL THEN '; the pool is frozen' ELSE '' END,
               CASE WHEN p.trouble IS NOT NULL THEN '; the last spawn failed' ELSE '' END,
               -- Without the hook's lines, because they may contain data of another tenant.
               CASE WHEN @failing(p) THEN format('; activation fails, so claims are tried one at a time, the next in %s s',
                   @fn.seconds_until(p.activation_heard)) ELSE '' END) AS sentence
    FROM holdfast.pool p LEFT JOIN holdfast.worker x ON x.pool_id = p.id AND x.state <> 'gone'
    WHERE p.id IN (SELECT pool_id FROM chosen WHERE state = 'waiting') GROUP BY p.id
), full_tenant AS MATERIALIZED (
    SELECT t.name, t.max_claims FROM holdfast.tenant t
    WHERE t.name IN (SELECT tenant FROM chosen WHERE state = 'waiting') AND t.max_claims <= (
        SELECT count(*) FROM holdfast.claim l WHERE l.tenant = t.name AND l.state IN @claim.live)
)
"""
_WAITS = """
            WHEN i.recovering_since IS NOT NULL THEN 'the database lost commits: everything waits until pods have been compared'
            WHEN p.state <> 'live' THEN 'its pool is being deleted'
            WHEN i.stopping THEN 'the installation is being stopped with its workers: nothing is given out'
            WHEN full_tenant.name IS NOT NULL THEN format('tenant %L holds its cap of %s claims', c.tenant, full_tenant.max_claims)
            WHEN c.not_before_heard > holdfast.heard()
                THEN format('activation failed %s of @MAX_ACTIVATIONS times; the next try is in %s s: %s', c.activation_failures,
                            @fn.seconds_until(c.not_before_heard), c.reason)
            ELSE pool_sentence.sentence || CASE WHEN c.reason <> '' THEN '; before: ' || c.reason ELSE '' END"""
_WAITS_FROM = """
LEFT JOIN pool_sentence ON pool_sentence.id = c.pool_id LEFT JOIN full_tenant ON full_tenant.name = c.tenant
CROSS JOIN holdfast.installation i"""


def _shown(waits: str, waits_from: str) -> str:
    """Returns the SELECT. `deaf` is the time in which no beat was stored; adding it turns heard time into the database's time.
    The history is read for a claim only if it has had a worker before its current one."""
    return f"""
SELECT c.id, c.pool_id, p.name AS pool, c.tenant, c.state, c.priority, c.requested_priority, c.attempts, c.key, c.worker_id AS worker, c.fence, c.protected,
       c.outcome, c.exit_code,
       CASE WHEN c.state = 'active' THEN w.endpoint END AS endpoint,
       CASE WHEN c.state = 'assigned' AND NOT @confirmed(w)
                THEN 'its worker has not reported since the database lost commits and may have begun; `holdfast recover` shows what'
                     ' an operator can do'
            WHEN c.state = 'assigned' AND c.activation_failures > 0
                THEN format('activation failed %s of @MAX_ACTIVATIONS times, and is tried on another worker now', c.activation_failures)
            WHEN c.state <> 'waiting' THEN c.reason{waits} END AS reason,
       extract(epoch FROM c.created_at)::float8 AS created_at,
       CASE WHEN c.attempts > (c.state <> 'waiting')::integer THEN extract(epoch FROM @fn.retried_at(c.id)) END::float8 AS retried_at,
       extract(epoch FROM c.assigned_at)::float8 AS assigned_at,
       extract(epoch FROM c.active_at)::float8 AS active_at, extract(epoch FROM c.ended_at)::float8 AS ended_at,
       extract(epoch FROM c.deadline_heard + h.deaf)::float8 AS deadline_at,
       extract(epoch FROM c.lease_heard + h.deaf)::float8 AS lease_until, extract(epoch FROM c.max_heard + h.deaf)::float8 AS max_until,
       c.labels
FROM chosen c JOIN holdfast.pool p ON p.id = c.pool_id LEFT JOIN holdfast.worker w ON w.id = c.worker_id
CROSS JOIN holdfast.hearing h{waits_from}
"""


SHOWN = _shown(_WAITS, _WAITS_FROM)
SHOWN_WITH_WORKER = _shown("", "")
