-- A worker without an agent is unconfirmed after a recovery also while its claim is only assigned, if a replica of the release before
-- ends the recovery. In the lost commits the claim may have left it unused, and the worker may have been given to another tenant
-- without protection, so that no stamp shows it. Apart from that the function is that of migration 0007, and is dropped with it.
CREATE OR REPLACE FUNCTION holdfast.share_unconfirmed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
    c AS (
        UPDATE holdfast.claim AS claim SET state = 'ended', outcome = 'lost', how = 'forgotten', ended_at = clock.t,
            ended_heard = clock.h, reason = 'its worker took another claim in commits that the database lost, so it may have run'
        FROM clock WHERE claim.state = 'waiting' AND claim.delivered RETURNING claim.*
    ), s AS (DELETE FROM holdfast.claim_secret USING c WHERE claim_secret.claim_id = c.id)
    INSERT INTO holdfast.event (at, kind, pool_id, claim_id, tenant, reason, data)
    SELECT clock.t, 'claim.ended', c.pool_id, c.id, c.tenant, c.reason,
           '{"outcome": "lost", "how": "forgotten", "from": "waiting"}'::jsonb
    FROM c, clock;
    UPDATE holdfast.worker SET unconfirmed_since = NEW.recovered_at
    WHERE suspect_since = NEW.recovered_at AND unconfirmed_since IS NULL;
    UPDATE holdfast.worker w SET unconfirmed_since = NEW.recovered_at, version = version + 1
    FROM holdfast.pool p
    WHERE p.id = w.pool_id AND w.unconfirmed_since IS NULL AND (
        ((p.spec #>> '{worker,agent}')::boolean
         AND (w.state IN ('spawning', 'warm', 'parked', 'held') OR (w.state = 'retiring' AND w.tenant IS NOT NULL))
         AND NOT EXISTS (SELECT FROM holdfast.heartbeat u WHERE u.worker_id = w.id AND u.beat_heard > NEW.recovery_heard))
        OR (NOT (p.spec #>> '{worker,agent}')::boolean
            AND (w.state IN ('spawning', 'warm')
                 OR EXISTS (SELECT FROM holdfast.claim c WHERE c.id = w.claim_id AND c.state = 'assigned'))
            AND NOT (p.spec #>> '{protection,mode}' = 'claim' AND (p.spec #>> '{protection,required}')::boolean)));
    UPDATE holdfast.worker SET suspect_since = NEW.recovered_at
    WHERE unconfirmed_since IS NOT NULL AND state IN ('spawning', 'warm', 'parked', 'held')
      AND suspect_since IS DISTINCT FROM NEW.recovered_at;
    RETURN NULL;
END $$;
