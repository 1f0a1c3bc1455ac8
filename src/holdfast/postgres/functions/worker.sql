-- What agents say, and what they should do.

-- A worker that has served somebody of whom we know nothing (any more). Outside freeze and brake: this is P1, and its pod is
-- ended by the ordinary path, which obeys both.
CREATE FUNCTION @fn.retire_spent(p_worker text) RETURNS void LANGUAGE sql AS $$
    WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
    w AS (
        UPDATE holdfast.worker AS worker SET state = 'retiring', version = version + 1, state_since = clock.t, state_heard = clock.h,
            reason = 'its agent has served a claim that the database does not know'
        FROM clock WHERE worker.id = p_worker AND worker.state IN ('spawning', 'warm')
        RETURNING worker.id, worker.pool_id, worker.reason
    )
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, reason)
    SELECT clock.t, 'worker.retiring', w.pool_id, w.id, w.reason FROM w, clock
$$;

-- Take an agent's word. Quiet words change nothing and are answered by reads alone. Never ends anything by what it does not
-- know: an agent that holds a claim of which we have no row goes on (P7). `p_fresh`: the agent itself has just spoken; a poll
-- that looks again speaks for nobody.
CREATE FUNCTION @fn.report(p_worker text, p_uid text, p_doing text, p_claim text, p_fence bigint, p_reset_fence bigint,
                         p_endpoint text, p_fresh boolean, p_mark bigint)
RETURNS TABLE (o_do text, o_fence bigint, o_reason text, o_park boolean, o_pool text) LANGUAGE plpgsql AS $$
DECLARE
    w holdfast.worker;
    c holdfast.claim;
    v_epoch integer;
    v_halted boolean := @fn.halted(p_mark);
    v_frozen boolean;
    t timestamptz := holdfast.now();
BEGIN
    SELECT epoch INTO v_epoch FROM holdfast.installation;
    -- The caller has verified that this fence was really given to this claim: so it was given by a database that we are not.
    IF p_fence > (v_epoch::bigint << 40) + (SELECT last_value FROM holdfast.fence) THEN
        RETURN QUERY SELECT 'ahead', p_fence, 'an agent holds a fence that this database never gave', false, NULL::text;
        RETURN;
    END IF;
    SELECT * INTO w FROM holdfast.worker WHERE id = p_worker AND state <> 'gone';
    IF NOT FOUND OR w.pod_uid IS DISTINCT FROM p_uid THEN
        RETURN QUERY SELECT 'unknown', NULL::bigint, 'no such worker', false, NULL::text;
        RETURN;
    END IF;
    IF v_halted THEN
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
            PERFORM @fn.requeue(c.id, c.fence, false, false, false, false, NULL,
                                'its worker has served a claim that the database does not know', p_mark);
        ELSIF p_doing = 'idle' AND c.state = 'assigned' AND c.offered THEN
            RETURN QUERY SELECT 'hold', c.fence, '', false, NULL::text;
            RETURN;
        END IF;
    ELSIF NOT p_fresh THEN
        NULL;
    ELSIF p_reset_fence IS NOT NULL AND w.state IN ('spawning', 'warm') THEN
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
    ELSIF p_doing = 'idle' AND (w.suspect_since IS NOT NULL OR w.endpoint IS DISTINCT FROM p_endpoint
          OR (NOT w.ready AND (w.state = 'warm' OR p_reset_fence = w.fence))) THEN
        UPDATE holdfast.worker SET suspect_since = NULL, version = version + 1, endpoint = p_endpoint,
            ready = ready OR state = 'warm' OR coalesce(fence = p_reset_fence, false)
        WHERE id = p_worker AND state IN ('warm', 'parked');
        IF FOUND AND w.suspect_since IS NOT NULL THEN
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
    SELECT * INTO c FROM holdfast.claim WHERE worker_id = p_worker AND fence = p_fence AND state IN ('assigned', 'active') FOR UPDATE;
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

-- After lost commits: a claim that only its pod and agent still know, or know more of. All checks come before any write.
CREATE FUNCTION @fn.adopt(p_worker text, p_uid text, p_pool_id text, p_pool text, p_revision text, p_claim text,
                          p_tenant text, p_fence bigint, p_endpoint text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_pool holdfast.pool;
    w holdfast.worker;
    c holdfast.claim;
    other holdfast.claim;
    t timestamptz := holdfast.now();
    h timestamptz := holdfast.heard();
    v_max interval;
    v_lease interval;
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.installation WHERE recovering_since IS NOT NULL) THEN
        RETURN 'stale';
    END IF;
    SELECT * INTO v_pool FROM holdfast.pool WHERE id = p_pool_id OR (name = p_pool AND state = 'live')
        ORDER BY (id = p_pool_id) DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    SELECT * INTO c FROM holdfast.claim WHERE id = p_claim FOR UPDATE;
    SELECT * INTO w FROM holdfast.worker WHERE id = p_worker FOR UPDATE;
    -- An ended claim stays ended; one that was assigned later, to whomever, knows better than this worker.
    IF c.state = 'ended' OR c.fence > p_fence OR (c.state = 'waiting' AND c.fence = p_fence)
       OR (c.state = 'active' AND c.fence = p_fence AND c.worker_id = p_worker)
       OR w.fence > p_fence THEN
        RETURN 'stale';
    END IF;
    -- What the row still believes of this worker is older than the pod's word.
    IF w.claim_id IS NOT NULL AND w.claim_id <> p_claim THEN
        SELECT * INTO other FROM holdfast.claim WHERE id = w.claim_id FOR UPDATE;
        IF other.state = 'assigned' THEN
            UPDATE holdfast.claim SET state = 'waiting', worker_id = NULL, offered = false, delivered = false, protected = NULL,
                progress_heard = NULL, assigned_at = NULL, reason = 'its worker was found to hold another claim'
            WHERE id = other.id;
            INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant, reason)
            VALUES (t, 'claim.requeued', other.pool_id, p_worker, other.id, other.tenant, 'its worker was found to hold another claim');
        ELSIF other.state = 'active' THEN
            -- Its worker took another assignment since, so it had ended, in one of P2's ways: which one, nobody knows any more.
            UPDATE holdfast.claim SET state = 'ended', outcome = 'lost', how = 'forgotten', ended_at = t,
                reason = 'its end was in commits that the database lost' WHERE id = other.id;
            INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant, reason, data)
            VALUES (t, 'claim.ended', other.pool_id, p_worker, other.id, other.tenant,
                    'its end was in commits that the database lost', '{"outcome": "lost", "how": "forgotten"}');
        END IF;
    END IF;
    -- Another worker's row may still believe that it has this claim.
    WITH left_behind AS (
        UPDATE holdfast.worker SET state = 'retiring', claim_id = NULL, held_from = NULL, version = version + 1, state_since = t,
            state_heard = h, reason = 'its claim was found on another worker'
        WHERE claim_id = p_claim AND id <> p_worker RETURNING id, pool_id, reason
    )
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, reason)
    SELECT t, 'worker.retiring', l.pool_id, l.id, p_claim, l.reason FROM left_behind l;
    v_max := @fn.duration(coalesce(v_pool.spec #>> '{claim,maxDuration}',
                                   CASE v_pool.spec ->> 'mode' WHEN 'job' THEN '6h' ELSE '24h' END));
    v_lease := CASE WHEN v_pool.spec ->> 'mode' = 'session' THEN @fn.duration(v_pool.spec #>> '{claim,lease}') END;
    IF c.id IS NULL THEN
        INSERT INTO holdfast.claim (id, pool_id, tenant, request_hash, request, state, reason, tag, worker_id, fence, attempts,
            offered, delivered, protected, lease, max_duration, created_at, assigned_at, active_at, deadline_heard, max_heard,
            lease_heard)
        VALUES (p_claim, v_pool.id, p_tenant, 'adopted', '{}', 'active', 'adopted after lost commits', 0, p_worker, p_fence, 1,
            true, true, false,  -- what its holder was told is lost, so it is told what is sure; `converge` looks at the pod
            v_lease, v_max, t, t, t, h, h + v_max, h + v_lease);
    ELSE
        UPDATE holdfast.claim SET state = 'active', worker_id = p_worker, fence = p_fence, active_at = coalesce(active_at, t),
            assigned_at = coalesce(assigned_at, t), max_heard = coalesce(max_heard, h + max_duration), offered = true,
            delivered = true, lease_heard = h + lease, reason = 'adopted after lost commits',
            protected = coalesce(protected, false)
        WHERE id = p_claim;
        DELETE FROM holdfast.claim_secret WHERE claim_id = p_claim;
    END IF;
    INSERT INTO holdfast.worker (id, pool_id, state, revision, epoch, claim_id, held_from, tenant, fence, delivered, created_at,
        state_since, state_heard, pod_uid, endpoint, ready)
    VALUES (p_worker, v_pool.id, 'held', p_revision, (SELECT epoch FROM holdfast.installation), p_claim, 'warm', p_tenant,
        p_fence, true, t, t, h, p_uid, p_endpoint, true)
    ON CONFLICT (id) DO UPDATE SET state = 'held', version = worker.version + 1, claim_id = p_claim, held_from = 'warm',
        tenant = p_tenant, fence = p_fence, delivered = true, state_since = t, state_heard = h, pod_uid = p_uid, ready = true,
        parked_since = NULL, parked_heard = NULL, park_ttl = NULL, reason = NULL, endpoint = coalesce(p_endpoint, worker.endpoint);
    INSERT INTO holdfast.event (at, kind, also, pool_id, worker_id, claim_id, tenant, reason)
    VALUES (t, 'claim.adopted', 'worker.adopted', v_pool.id, p_worker, p_claim, p_tenant, 'its pod or agent still holds it');
    RETURN 'done';
END $$;

-- A free pod without a row, after lost commits. `p_spent`: its agent has served somebody, so it can only go.
CREATE FUNCTION @fn.adopt_free(p_worker text, p_uid text, p_pool_id text, p_pool text, p_revision text, p_spent boolean)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_pool holdfast.pool;
    t timestamptz := holdfast.now();
BEGIN
    SELECT * INTO v_pool FROM holdfast.pool WHERE (id = p_pool_id OR name = p_pool) AND state = 'live'
        ORDER BY (id = p_pool_id) DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    INSERT INTO holdfast.worker (id, pool_id, state, revision, epoch, created_at, state_since, state_heard, pod_uid, reason)
    VALUES (p_worker, v_pool.id, CASE WHEN p_spent THEN 'retiring' ELSE 'spawning' END, p_revision,
            (SELECT epoch FROM holdfast.installation), t, t, holdfast.heard(), p_uid,
            CASE WHEN p_spent THEN 'it has served a tenant that the database no longer knows' END)
    ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, reason)
    VALUES (t, 'worker.adopted', v_pool.id, p_worker, 'a pod without a row, after lost commits');
    RETURN 'done';
END $$;

-- Workers for whom time alone may have made something due: looked at every few seconds, between two full passes.
CREATE FUNCTION @fn.due_workers() RETURNS SETOF text LANGUAGE sql AS $$
    WITH clock AS MATERIALIZED (SELECT holdfast.heard() AS h)
    SELECT w.id FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id
    LEFT JOIN holdfast.pulse u ON u.worker_id = w.id LEFT JOIN holdfast.claim c ON c.id = w.claim_id, clock
    WHERE w.state <> 'gone' AND p.frozen IS NULL AND (
        (w.state = 'spawning' AND (
            (w.pod_uid IS NULL AND w.state_heard < clock.h - interval '5 s')
            OR coalesce(w.scheduled_heard, w.state_heard) < clock.h - @fn.duration(p.spec ->> 'startTimeout')))
        OR (w.state = 'retiring' AND w.state_heard < clock.h - interval '2 s')
        OR ((p.spec #>> '{worker,agent}')::boolean AND w.state IN ('warm', 'parked', 'held') AND w.suspect_since IS NULL
            AND coalesce(u.beat_heard, w.state_heard) < clock.h - interval '60 s')
        OR (w.state = 'held' AND c.state = 'active' AND NOT w.protected AND NOT w.terminating
            AND p.spec #>> '{protection,mode}' <> 'off')
        OR (w.state IN ('warm', 'parked') AND w.protected AND p.spec #>> '{protection,mode}' <> 'always'))
    -- Held ones that are due for silence alone come last: the agents of running jobs have left, and there may be thousands.
    ORDER BY w.state = 'held' AND c.state = 'active' AND (w.protected OR p.spec #>> '{protection,mode}' = 'off'),
             w.state = 'retiring', w.state_heard LIMIT 500
$$;
