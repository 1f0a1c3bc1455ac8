-- What agents say, and what they should do.

-- Take an agent's word. Quiet words change nothing and are answered by reads alone. Never ends anything by what it does not
-- know: an agent that holds a claim of which we have no row goes on (P7).
CREATE FUNCTION @fn.hear(p_worker text, p_uid text, p_doing text, p_claim text, p_fence bigint, p_reset_fence bigint,
                         p_endpoint text)
RETURNS TABLE (o_do text, o_fence bigint, o_reason text, o_park boolean) LANGUAGE plpgsql AS $$
DECLARE
    w holdfast.worker;
    c holdfast.claim;
    i holdfast.installation;
    v_frozen boolean;
    t timestamptz := holdfast.now();
BEGIN
    SELECT * INTO i FROM holdfast.installation;
    IF greatest(coalesce(p_fence, 0), coalesce(p_reset_fence, 0)) > (i.epoch::bigint << 40) + (SELECT last_value FROM holdfast.fence)
    THEN
        RETURN QUERY SELECT 'ahead', p_fence, 'the agent knows a fence that this database never gave', false;
        RETURN;
    END IF;
    SELECT * INTO w FROM holdfast.worker WHERE id = p_worker AND state <> 'gone';
    IF NOT FOUND OR w.pod_uid IS DISTINCT FROM p_uid THEN
        RETURN QUERY SELECT 'unknown', NULL::bigint, 'no such worker', false;
        RETURN;
    END IF;
    IF p_claim IS NOT NULL THEN
        IF (w.state = 'held' AND w.fence = p_fence) OR i.recovering_since IS NOT NULL THEN
            RETURN QUERY SELECT 'nothing', NULL::bigint, '', false;
            RETURN;
        END IF;
        SELECT * INTO c FROM holdfast.claim WHERE id = p_claim;
        IF FOUND AND (c.state = 'ended' OR c.fence IS DISTINCT FROM p_fence) THEN
            RETURN QUERY SELECT 'end', p_fence, CASE WHEN c.state = 'ended' THEN c.reason ELSE 'it was given to another' END,
                                w.state = 'parked' AND w.fence = p_fence;
        ELSE
            RETURN QUERY SELECT 'nothing', NULL::bigint, '', false;
        END IF;
        RETURN;
    END IF;
    IF w.state = 'retiring' AND i.recovering_since IS NULL THEN
        SELECT frozen IS NOT NULL INTO v_frozen FROM holdfast.pool WHERE id = w.pool_id;
        RETURN QUERY SELECT CASE WHEN v_frozen THEN 'nothing' ELSE 'exit' END, NULL::bigint, coalesce(w.reason, ''), false;
        RETURN;
    END IF;
    IF p_doing = 'draining' AND w.state IN ('warm', 'parked', 'spawning') AND NOT w.terminating THEN
        UPDATE holdfast.worker SET terminating = true, version = version + 1 WHERE id = p_worker AND state <> 'held';
    ELSIF p_doing = 'idle' AND w.state = 'spawning' AND i.recovering_since IS NULL THEN
        UPDATE holdfast.worker SET state = 'warm', version = version + 1, ready = true, endpoint = p_endpoint,
            state_since = t, state_heard = holdfast.heard() WHERE id = p_worker AND state IN @worker.warm;
        IF FOUND THEN
            UPDATE holdfast.pool SET failures = 0, trouble = NULL, backoff_until = NULL WHERE id = w.pool_id AND failures > 0;
            INSERT INTO holdfast.event (at, kind, pool_id, worker_id) VALUES (t, 'worker.warm', w.pool_id, p_worker);
            PERFORM pg_notify('holdfast', 'p ' || w.pool_id);
        END IF;
    ELSIF p_doing = 'idle' AND w.state IN ('warm', 'parked') AND (w.suspect_since IS NOT NULL
          OR (NOT w.ready AND (w.state = 'warm' OR p_reset_fence = w.fence)) OR w.endpoint IS DISTINCT FROM p_endpoint) THEN
        UPDATE holdfast.worker SET suspect_since = NULL, version = version + 1, endpoint = p_endpoint,
            ready = ready OR state = 'warm' OR fence = p_reset_fence
        WHERE id = p_worker AND state IN ('warm', 'parked');
        PERFORM pg_notify('holdfast', 'p ' || w.pool_id);
    ELSIF w.state = 'held' AND p_doing = 'idle' THEN
        SELECT * INTO c FROM holdfast.claim WHERE id = w.claim_id;
        IF c.state = 'assigned' AND c.offered AND i.recovering_since IS NULL THEN
            RETURN QUERY SELECT 'hold', c.fence, '', false;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT 'nothing', NULL::bigint, '', false;
END $$;

-- After lost commits: a claim that only its pod and agent still know. Row or no row, the pod's word is believed.
CREATE FUNCTION @fn.adopt(p_worker text, p_uid text, p_pool_id text, p_pool text, p_revision text, p_claim text,
                          p_tenant text, p_fence bigint, p_endpoint text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_pool holdfast.pool;
    w holdfast.worker;
    c holdfast.claim;
    t timestamptz := holdfast.now();
    h timestamptz := holdfast.heard();
    v_max interval;
BEGIN
    SELECT * INTO v_pool FROM holdfast.pool WHERE id = p_pool_id OR (name = p_pool AND state = 'live')
        ORDER BY (id = p_pool_id) DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    v_max := @fn.duration(coalesce(v_pool.spec #>> '{claim,maxDuration}',
                                   CASE v_pool.spec ->> 'mode' WHEN 'job' THEN '6h' ELSE '24h' END));
    SELECT * INTO w FROM holdfast.worker WHERE id = p_worker FOR UPDATE;
    IF FOUND AND w.state = 'held' AND w.claim_id = p_claim AND w.fence = p_fence THEN
        RETURN 'stale';
    END IF;
    IF FOUND AND coalesce(w.fence, 0) > p_fence AND w.state = 'held' THEN
        RETURN 'stale';
    END IF;
    SELECT * INTO c FROM holdfast.claim WHERE id = p_claim FOR UPDATE;
    -- What the row still believes of this worker is older than the pod's word: that claim's true end was lost.
    IF w.id IS NOT NULL AND w.claim_id IS NOT NULL AND w.claim_id <> p_claim THEN
        UPDATE holdfast.claim SET state = 'ended', outcome = 'lost', how = 'death', ended_at = t,
            reason = 'its end was in commits that the database lost' WHERE id = w.claim_id AND state <> 'ended';
        INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant, reason, data)
        VALUES (t, 'claim.ended', w.pool_id, w.id, w.claim_id, w.tenant, 'its end was in commits that the database lost',
                '{"outcome": "lost", "how": "death"}');
    END IF;
    IF c.id IS NULL THEN
        INSERT INTO holdfast.claim (id, pool_id, tenant, request_hash, request, state, reason, tag, worker_id, fence, attempts,
            offered, delivered, protected, lease, max_duration, created_at, assigned_at, active_at, deadline_heard, max_heard,
            lease_heard)
        VALUES (p_claim, v_pool.id, p_tenant, 'adopted', '{}', 'active', 'adopted after lost commits', 0, p_worker, p_fence, 1,
            true, true, true, CASE WHEN v_pool.spec ->> 'mode' = 'session' THEN @fn.duration(v_pool.spec #>> '{claim,lease}') END,
            v_max, t, t, t, h, h + v_max,
            CASE WHEN v_pool.spec ->> 'mode' = 'session' THEN h + @fn.duration(v_pool.spec #>> '{claim,lease}') END);
    ELSIF c.state = 'ended' THEN
        RETURN 'stale';
    ELSE
        UPDATE holdfast.worker SET state = 'retiring', claim_id = NULL, version = version + 1
        WHERE id = c.worker_id AND claim_id = p_claim AND id <> p_worker;
        UPDATE holdfast.claim SET state = 'active', worker_id = p_worker, fence = p_fence, active_at = coalesce(active_at, t),
            assigned_at = coalesce(assigned_at, t), max_heard = coalesce(max_heard, h + max_duration), offered = true,
            delivered = true, lease_heard = h + lease, reason = 'adopted after lost commits'
        WHERE id = p_claim;
    END IF;
    INSERT INTO holdfast.worker (id, pool_id, state, revision, epoch, claim_id, held_from, tenant, fence, delivered, created_at,
        state_since, state_heard, pod_uid, endpoint, ready)
    VALUES (p_worker, v_pool.id, 'held', p_revision, (SELECT epoch FROM holdfast.installation), p_claim, 'warm', p_tenant,
        p_fence, true, t, t, h, p_uid, p_endpoint, true)
    ON CONFLICT (id) DO UPDATE SET state = 'held', version = worker.version + 1, claim_id = p_claim, held_from = 'warm',
        tenant = p_tenant, fence = p_fence, delivered = true, state_since = t, state_heard = h, pod_uid = p_uid, ready = true,
        parked_since = NULL, parked_heard = NULL, endpoint = coalesce(p_endpoint, worker.endpoint);
    INSERT INTO holdfast.event (at, kind, also, pool_id, worker_id, claim_id, tenant, reason)
    VALUES (t, 'claim.adopted', 'worker.adopted', v_pool.id, p_worker, p_claim, p_tenant, 'its pod and agent still hold it');
    RETURN 'done';
END $$;

-- A free pod without a row, after lost commits: it has served nobody (no stamp, agent idle), so it may be warm.
CREATE FUNCTION @fn.adopt_free(p_worker text, p_uid text, p_pool_id text, p_pool text, p_revision text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_pool holdfast.pool;
    t timestamptz := holdfast.now();
BEGIN
    SELECT * INTO v_pool FROM holdfast.pool WHERE (id = p_pool_id OR name = p_pool) AND state = 'live'
        ORDER BY (id = p_pool_id) DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    INSERT INTO holdfast.worker (id, pool_id, state, revision, epoch, created_at, state_since, state_heard, pod_uid)
    VALUES (p_worker, v_pool.id, 'spawning', p_revision, (SELECT epoch FROM holdfast.installation), t, t, holdfast.heard(), p_uid)
    ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, reason)
    VALUES (t, 'worker.adopted', v_pool.id, p_worker, 'a free pod without a row, after lost commits');
    RETURN 'done';
END $$;
