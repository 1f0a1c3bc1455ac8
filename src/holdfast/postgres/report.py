"""Read figures for /metrics and violations for `doctor` from the tables, so that every replica shows the same."""

from typing import Any

from .database import Database

WORKERS = """
SELECT p.name AS pool, w.state, count(*) AS n, count(*) FILTER (WHERE w.suspect_since IS NOT NULL) AS suspects,
       count(*) FILTER (WHERE NOT @confirmed(w)) AS unconfirmed
FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id WHERE w.state <> 'gone' GROUP BY 1, 2
"""
CLAIMS = """
SELECT p.name AS pool, c.state, count(*) AS n,
       coalesce(max(extract(epoch FROM holdfast.now() - c.created_at)) FILTER (WHERE c.state = 'waiting'), 0)::float8 AS oldest
FROM holdfast.claim c JOIN holdfast.pool p ON p.id = c.pool_id WHERE c.state <> 'ended' GROUP BY 1, 2
"""
INSTALLATION = """
SELECT epoch, recoveries, recovering_since IS NOT NULL AS recovering, brake_tripped_at IS NOT NULL AS braked FROM holdfast.installation
"""
BRAKED_TENANTS = "SELECT tenant FROM holdfast.tenant_brake WHERE tripped_at IS NOT NULL ORDER BY tenant"
# Each check has a promise, a name, advice, and a query that returns one sentence per violation.
CHECKS: tuple[tuple[str, str, str, str], ...] = (
    (
        "P1",
        "one holder: a live claim and its worker point at each other",
        "freeze the pool, so that none of its workers ends, and see `holdfast explain` of the claim and of the worker",
        """SELECT format('claim %s is %s on worker %s, which is %s for claim %s', c.id, c.state, c.worker_id,
                         coalesce(w.state, 'absent'), coalesce(w.claim_id, 'none'))
           FROM holdfast.claim c LEFT JOIN holdfast.worker w ON w.id = c.worker_id
           WHERE c.state IN @claim.live AND (w.claim_id IS DISTINCT FROM c.id OR w.fence IS DISTINCT FROM c.fence)""",
    ),
    (
        "P1",
        "a worker serves one tenant only",
        "retire the worker; its tenants may have seen each other's data",
        """SELECT format('worker %s was active for %s tenants', worker_id, count(DISTINCT tenant)) FROM holdfast.event
           WHERE kind = 'claim.active' AND worker_id IS NOT NULL GROUP BY worker_id HAVING count(DISTINCT tenant) > 1""",
    ),
    (
        "P2",
        "no worker is ending under a live claim",
        "see the worker's events (`holdfast explain worker …`): something ended it outside the ordinary path",
        """SELECT format('worker %s is %s under claim %s', w.id, w.state, c.id) FROM holdfast.worker w
           JOIN holdfast.claim c ON c.worker_id = w.id AND c.state IN @claim.live WHERE w.state IN ('retiring', 'gone')""",
    ),
    (
        "P3",
        "busy workers carry their protection",
        "`converge` restores it within 5 s; if not, see /v1/duties and Holdfast's rights in the cluster",
        """SELECT format('worker %s is active for claim %s without protection', w.id, c.id) FROM holdfast.worker w
           JOIN holdfast.claim c ON c.id = w.claim_id JOIN holdfast.pool p ON p.id = w.pool_id
           WHERE c.state = 'active' AND p.spec #>> '{protection,mode}' <> 'off' AND NOT w.protected AND NOT w.terminating
             AND c.active_at < holdfast.now() - interval '20 s'""",
    ),
    (
        "P4",
        "no claim is past its longest duration",
        "the duty `deadlines` should have ended it: see /v1/duties, `holdfast brake` and `holdfast recover`",
        """SELECT format('claim %s is past its longest duration', c.id) FROM holdfast.claim c, holdfast.hearing h
           WHERE c.state = 'active' AND c.max_heard < h.last_heard - h.deaf - interval '30 s'""",
    ),
    (
        "P5",
        "no worker is stuck while it starts or ends",
        "see `holdfast explain worker …`; if the pod does not end, someone has to look at its node",
        """SELECT format('worker %s is %s for %s', w.id, w.state, date_trunc('second', holdfast.now() - w.state_since))
           FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id
           WHERE (w.state = 'retiring' AND w.state_since < holdfast.now() - interval '10 min' AND p.frozen IS NULL)
              OR (w.state = 'spawning' AND w.state_since < holdfast.now() - interval '1 hour')""",
    ),
    (
        "P5",
        "no parked worker outlives its TTL",
        "`scale` condemns it within 10 s; if not, see /v1/duties",
        """SELECT format('worker %s is parked past its TTL', w.id) FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id,
             holdfast.hearing h
           WHERE w.state = 'parked' AND p.frozen IS NULL AND (p.spec #>> '{park,min}')::integer = 0 AND w.parked_heard + w.park_ttl < h.last_heard - h.deaf - interval '20 s'""",
    ),
    (
        "P6",
        "every duty succeeded lately",
        "see the failure in /v1/duties; another replica takes the duty over if its own reads work",
        """SELECT format('duty %s has not succeeded for %s: %s', duty,
                         coalesce(date_trunc('second', holdfast.now() - success_at)::text, 'ever'), coalesce(failure, 'no error reported'))
           FROM holdfast.term
           WHERE coalesce(success_at, (SELECT min(started_at) FROM holdfast.replica WHERE stopped_at IS NULL
                  AND seen_at > holdfast.now() - interval '5 s')) < holdfast.now() - CASE duty WHEN 'prune' THEN interval '40 min'
                WHEN 'converge' THEN interval '50 s' ELSE interval '20 s' END
             AND (SELECT min(started_at) FROM holdfast.replica WHERE stopped_at IS NULL
                  AND seen_at > holdfast.now() - interval '5 s') < holdfast.now() - interval '60 s'""",
    ),
    (
        "P6",
        "every statement has a time limit",
        "behind PgBouncer the role needs these settings: ALTER ROLE … IN DATABASE … SET …, see docs/operations.md",
        """SELECT format('%s is not set', name) FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout') AND setting = '0'""",
    ),
    (
        "P7",
        "the brake is released",
        "check what was ended (`holdfast get events`), then `holdfast brake release --reason …`",
        """SELECT format('the brake tripped at %s: %s', brake_tripped_at, brake_reason) FROM holdfast.installation
           WHERE brake_tripped_at IS NOT NULL""",
    ),
    (
        "P7",
        "no tenant's brake is tripped",
        "check what was ended (`holdfast get events --tenant NAME`), then `holdfast brake release --tenant NAME --reason …`",
        """SELECT format('the brake of tenant %s tripped at %s: %s', tenant, tripped_at, reason) FROM holdfast.tenant_brake
           WHERE tripped_at IS NOT NULL ORDER BY tripped_at""",
    ),
    (
        "P7",
        "no recovery is under way",
        "it ends by itself once pods and agents have been compared; see the events recovery.*",
        """SELECT format('recovering since %s: %s', recovering_since, recovery_reason) FROM holdfast.installation
           WHERE recovering_since IS NOT NULL""",
    ),
    (
        "P7",
        "no worker is unconfirmed",
        "`holdfast recover` lists these workers with their claims, and what an operator can decide",
        # One minute, because the passes after a recovery confirm the workers whose agents have exited.
        """SELECT format('worker %s of pool %s has not reported since the database lost commits%s', w.id, p.name,
                         CASE WHEN w.claim_id IS NULL THEN '' ELSE format(' and has claim %s of tenant %s', w.claim_id, w.tenant) END)
           FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id
           WHERE w.state <> 'gone' AND w.unconfirmed_since < holdfast.now() - interval '1 min'""",
    ),
    (
        "P7",
        "an acknowledged commit survives",
        "set fsync and synchronous_commit to on, name standbys in synchronous_standby_names, and run the GRANT if one is shown",
        """SELECT 'fsync is off: a crash loses commits' WHERE current_setting('fsync') = 'off'
           UNION ALL SELECT 'synchronous_commit is off: a crash loses commits' WHERE current_setting('synchronous_commit') = 'off'
           -- NULL means that Postgres hides the value from our role, so the check must fail.
           UNION ALL SELECT CASE WHEN sync_state IS NULL
             THEN format('whether standby %s is asynchronous cannot be seen: GRANT pg_read_all_stats TO %I', application_name, current_user)
             ELSE format('standby %s is asynchronous: a failover to it loses commits', application_name) END
           FROM pg_stat_replication WHERE coalesce(sync_state, 'async') = 'async' AND application_name NOT IN ('pg_basebackup')""",
    ),
    (
        "P8",
        "activations succeed",
        "see the hook's last lines in `holdfast explain pool NAME`; correct the hook or what it needs, and apply the pool again",
        """SELECT format('pool %s: activation failed for %s since the last success: %s', p.name,
                         CASE WHEN @failing(p) THEN 'all claims' ELSE format('%s claims', cardinality(p.activation_failing)) END,
                         p.activation_trouble)
           FROM holdfast.pool p WHERE p.state = 'live' AND p.activation_trouble IS NOT NULL AND (@failing(p) OR EXISTS (
               SELECT FROM holdfast.claim c WHERE c.pool_id = p.id AND c.state IN ('waiting', 'assigned') AND c.activation_failures > 0))""",
    ),
    (
        "P8",
        "no claim waits past its deadline",
        "the duty `deadlines` refuses it within seconds; see /v1/duties",
        """SELECT format('claim %s waits past its deadline', c.id) FROM holdfast.claim c, holdfast.hearing h
           WHERE c.state = 'waiting' AND c.deadline_heard < h.last_heard - h.deaf - interval '30 s'""",
    ),
)


async def metrics(db: Database) -> dict[str, Any]:
    row = await db.row(INSTALLATION)
    assert row is not None
    return {
        "workers": [dict(r) for r in await db.rows(WORKERS)],
        "claims": [dict(r) for r in await db.rows(CLAIMS)],
        "installation": dict(row),
        "braked_tenants": [r["tenant"] for r in await db.rows(BRAKED_TENANTS)],
    }


async def check(db: Database) -> list[dict[str, Any]]:
    checks = []
    for promise, name, advice, sql in CHECKS:
        wrong = [row[0] for row in await db.rows(f"{sql} LIMIT 20")]
        checks.append(
            {
                "promise": promise,
                "name": name,
                "ok": not wrong,
                "detail": "; ".join(wrong),
                "advice": advice if wrong else "",
            }
        )
    return checks
