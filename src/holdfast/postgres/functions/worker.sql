-- What agents say, and what they should do.

-- A worker that has served somebody of whom we know nothing (any more). Outside freeze and brake: this is P1, and its pod is
-- ended by the ordinary path, which obeys both.
CREATE FUNCTION @fn.retire_spent(p_worker text) RETURNS void LANGUAGE sql AS $$
    WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
    w AS (
        UPDATE holdfast.worker AS worker SET state = 'retiring', version = version + 1, state_since = clock.t, state_heard = clock.h,
            reason = 'its agent has served a claim that the database does not know'
        FROM clock WHERE worker.id = p_worker AND worker.state IN @worker.disown
        RETURNING worker.id, worker.pool_id, worker.reason
    )
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, reason)
    SELECT clock.t, 'worker.retiring', w.pool_id, w.id, w.reason FROM w, clock
$$;

-- Take an agent's word. Quiet words change nothing and are answered by reads alone. Never ends anything by what it does not
-- know: an agent that holds a claim of which we have no row goes on (P7). `p_fresh`: the agent itself has just spoken; a poll
-- that looks again speaks for nobody. If not `p_acting`, only what needs no change is answered.
CREATE FUNCTION @fn.report(p_worker text, p_uid text, p_doing text, p_claim text, p_fence bigint, p_reset_fence bigint,
                         p_endpoint text, p_fresh boolean, p_acting boolean)
RETURNS TABLE (o_do text, o_fence bigint, o_reason text, o_park boolean, o_pool text) LANGUAGE plpgsql AS $$
DECLARE
    w holdfast.worker;
    c holdfast.claim;
    v_frozen boolean;
    t timestamptz := holdfast.now();
BEGIN
    -- The caller has verified that this fence was really given to this claim: so it was given by a database that we are not.
    IF p_fence > @fn.last_fence() THEN
        RETURN QUERY SELECT 'ahead', p_fence, 'an agent holds a fence that this database never gave', false, NULL::text;
        RETURN;
    END IF;
    SELECT * INTO w FROM holdfast.worker WHERE id = p_worker AND state <> 'gone';
    IF NOT FOUND OR w.pod_uid IS DISTINCT FROM p_uid THEN
        RETURN QUERY SELECT 'unknown', NULL::bigint, 'no such worker', false, NULL::text;
        RETURN;
    END IF;
    IF NOT p_acting THEN
        RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, NULL::text;
        RETURN;
    END IF;
    IF p_claim IS NOT NULL THEN
        SELECT * INTO c FROM holdfast.claim WHERE id = p_claim;
        IF (w.state = 'held' AND w.fence = p_fence) OR c.id IS NULL OR (c.state <> 'ended' AND c.fence = p_fence) THEN
            RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, NULL::text;
        ELSE
            RETURN QUERY SELECT 'end', p_fence, CASE WHEN c.state = 'ended' THEN c.reason ELSE 'it was given to another' END,
                                w.state = 'parked' AND w.fence = p_fence, NULL::text;
        END IF;
        RETURN;
    END IF;
    IF w.state = 'retiring' THEN
        SELECT frozen IS NOT NULL INTO v_frozen FROM holdfast.pool WHERE id = w.pool_id;
        RETURN QUERY SELECT CASE WHEN v_frozen THEN 'nothing' ELSE 'exit' END, NULL::bigint, coalesce(w.reason, ''), false,
                            NULL::text;
        RETURN;
    END IF;
    IF w.state = 'held' THEN
        SELECT * INTO c FROM holdfast.claim WHERE id = w.claim_id;
        IF p_reset_fence IS NOT NULL AND w.held_from = 'warm' AND c.state = 'assigned' THEN
            -- Found too late: it has served somebody else before. Nothing was delivered: the claim goes on to another worker.
            PERFORM @fn.requeue(p_claim => c.id, p_fence => c.fence, p_keep_worker => false, p_suspect => false, p_dead => false,
                                p_untouched => false, p_idle => NULL,
                                p_reason => 'its worker has served a claim that the database does not know');
        ELSIF p_doing = 'idle' AND c.state = 'assigned' AND c.offered THEN
            RETURN QUERY SELECT 'hold', c.fence, '', false, NULL::text;
            RETURN;
        END IF;
    ELSIF NOT p_fresh THEN
        NULL;
    ELSIF p_reset_fence IS NOT NULL AND w.state IN @worker.disown THEN
        -- It has served somebody of whom we know nothing (any more): it must not serve anybody else.
        PERFORM @fn.retire_spent(p_worker);
    ELSIF p_doing = 'draining' AND NOT w.terminating THEN
        UPDATE holdfast.worker SET terminating = true, version = version + 1 WHERE id = p_worker AND state <> 'held';
    ELSIF p_doing = 'idle' AND w.state = 'spawning' THEN
        UPDATE holdfast.worker SET state = 'warm', version = version + 1, ready = true, endpoint = p_endpoint,
            state_since = t, state_heard = holdfast.heard() WHERE id = p_worker AND state IN @worker.warm;
        IF FOUND THEN
            UPDATE holdfast.pool SET failures = 0, trouble = NULL, backoff_until = NULL
            WHERE id = w.pool_id AND (failures > 0 OR trouble IS NOT NULL);
            INSERT INTO holdfast.event (at, kind, pool_id, worker_id) VALUES (t, 'worker.warm', w.pool_id, p_worker);
            PERFORM pg_notify('holdfast', 'p ' || w.pool_id);
            RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, w.pool_id;
            RETURN;
        END IF;
    ELSIF p_doing = 'idle' AND (w.suspect_since IS NOT NULL OR NOT @confirmed(w) OR w.endpoint IS DISTINCT FROM p_endpoint
          OR (NOT w.ready AND (w.state = 'warm' OR p_reset_fence = w.fence))) THEN
        UPDATE holdfast.worker SET suspect_since = NULL, unconfirmed_since = NULL, version = version + 1, endpoint = p_endpoint,
            ready = ready OR state = 'warm' OR coalesce(fence = p_reset_fence, false)
        WHERE id = p_worker AND state IN @worker.free;
        IF FOUND AND (w.suspect_since IS NOT NULL OR NOT @confirmed(w)) THEN
            -- Beats are stored a moment later, together: until then it would be taken for silent once more.
            INSERT INTO holdfast.pulse AS pulse (worker_id, beat_heard, doing, reset_fence)
            VALUES (p_worker, holdfast.heard(), p_doing, p_reset_fence)
            ON CONFLICT (worker_id) DO UPDATE SET beat_heard = greatest(pulse.beat_heard, excluded.beat_heard),
                doing = excluded.doing, claim_id = NULL, fence = NULL, tenant = NULL, reset_fence = excluded.reset_fence;
        END IF;
        PERFORM pg_notify('holdfast', 'p ' || w.pool_id);
        RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, w.pool_id;
        RETURN;
    END IF;
    RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, NULL::text;
END $$;

-- A command starts only after this was accepted. Repeated after a lost answer it is accepted again, also when the first is
-- still on its way: the row is locked before it is judged.
CREATE FUNCTION @fn.acknowledge(p_worker text, p_fence bigint, p_endpoint text)
RETURNS TABLE (o_first boolean, o_claim holdfast.claim) LANGUAGE plpgsql AS $$
DECLARE
    c holdfast.claim;
    t timestamptz := holdfast.now();
    h timestamptz := holdfast.heard();
BEGIN
    SELECT * INTO c FROM holdfast.claim WHERE worker_id = p_worker AND fence = p_fence AND state IN @claim.live FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF c.state = 'active' THEN
        RETURN QUERY SELECT false, c;
        RETURN;
    END IF;
    IF NOT c.delivered OR c.state NOT IN @claim.activate THEN
        RETURN;
    END IF;
    UPDATE holdfast.claim SET state = 'active', active_at = t, lease_heard = h + lease, max_heard = h + max_duration,
        protected = coalesce(protected, false) -- unknown after lost commits: `converge` looks at the pod
    WHERE id = c.id RETURNING * INTO c;
    UPDATE holdfast.worker SET endpoint = coalesce(p_endpoint, endpoint), version = version + 1 WHERE id = p_worker;
    DELETE FROM holdfast.claim_secret WHERE claim_id = c.id;
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant)
    VALUES (t, 'claim.active', c.pool_id, p_worker, c.id, c.tenant);
    PERFORM pg_notify('holdfast', 'c ' || c.id);
    RETURN QUERY SELECT true, c;
END $$;

-- Workers for whom time alone may have made something due: looked at every few seconds, between two full passes. The seconds are
-- those of the cases that the pass would find (duties/cases.py).
CREATE FUNCTION @fn.due_workers(p_no_pod float, p_retiring float, p_silent float) RETURNS SETOF text LANGUAGE sql AS $$
    WITH clock AS MATERIALIZED (SELECT holdfast.heard() AS h)
    SELECT w.id FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id
    LEFT JOIN holdfast.pulse u ON u.worker_id = w.id LEFT JOIN holdfast.claim c ON c.id = w.claim_id, clock
    WHERE w.state <> 'gone' AND p.frozen IS NULL AND (
        (w.state = 'spawning' AND (
            (w.pod_uid IS NULL AND w.state_heard < clock.h - make_interval(secs => p_no_pod))
            OR coalesce(w.scheduled_heard, w.state_heard) < clock.h - @fn.duration(p.spec ->> 'startTimeout')))
        OR (w.state = 'retiring' AND w.state_heard < clock.h - make_interval(secs => p_retiring))
        OR ((p.spec #>> '{worker,agent}')::boolean AND w.state IN @worker.started AND w.suspect_since IS NULL
            AND coalesce(u.beat_heard, w.state_heard) < clock.h - make_interval(secs => p_silent))
        OR (w.state = 'held' AND c.state = 'active' AND NOT w.protected AND NOT w.terminating
            AND p.spec #>> '{protection,mode}' <> 'off')
        OR (w.state IN @worker.free AND w.protected AND p.spec #>> '{protection,mode}' <> 'always'))
    -- Held ones that are due for silence alone come last: the agents of running jobs have left, and there may be thousands.
    ORDER BY w.state = 'held' AND c.state = 'active' AND (w.protected OR p.spec #>> '{protection,mode}' = 'off'),
             w.state = 'retiring', w.state_heard LIMIT 500
$$;
