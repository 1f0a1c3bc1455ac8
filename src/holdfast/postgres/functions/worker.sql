-- Store what agents report, and return what they should do.

-- Retires a worker that has served a claim which the database does not know (any more). Freeze and brake do not prevent it,
-- because the worker must not serve a second tenant (P1). Its pod is ended by the ordinary path, which obeys both.
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

-- Stores one heartbeat now, because the batch of heartbeats is stored later, and until then the worker would become suspect
-- again.
CREATE FUNCTION @fn.store_heartbeat(p_worker text, p_doing text, p_claim text, p_fence bigint, p_tenant text, p_served_fence bigint)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO holdfast.heartbeat AS heartbeat (worker_id, beat_heard, doing, claim_id, fence, tenant, reset_fence)
    VALUES (p_worker, holdfast.heard(), p_doing, p_claim, p_fence, p_tenant, p_served_fence)
    ON CONFLICT (worker_id) DO UPDATE SET beat_heard = greatest(heartbeat.beat_heard, excluded.beat_heard), doing = excluded.doing,
        claim_id = excluded.claim_id, fence = excluded.fence, tenant = excluded.tenant, reset_fence = excluded.reset_fence
$$;

-- Confirms a held worker, because its agent has just sent a message about this very assignment. Without it an operator could
-- still give the worker up, although its agent is back.
CREATE FUNCTION @fn.confirm_by_agent(p_worker text, p_fence bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE holdfast.worker w SET suspect_since = NULL, unconfirmed_since = NULL, version = version + 1
    WHERE w.id = p_worker AND w.state = 'held' AND w.fence = p_fence AND NOT @confirmed(w)
$$;

-- Returns whether the last claim of the worker ended without an acknowledgement. If its agent is idle now and does not report this
-- claim as served, the agent never received it: the delivery was stored, but the answer was lost. So there is nothing to reset.
CREATE FUNCTION @fn.never_received(w holdfast.worker) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (SELECT FROM holdfast.claim c
                   WHERE c.worker_id = w.id AND c.fence = w.fence AND c.state = 'ended' AND c.active_at IS NULL)
$$;

-- Processes an agent's report and returns what the agent should do. A report without news is answered by reads alone. A missing
-- row never ends anything: an agent whose claim has no row continues (P7). `p_fresh` is true if the agent has just sent the
-- report, and false if a waiting poll checks an old report again, which proves nothing about the agent. If `p_acting` is false,
-- nothing is changed, and the agent of a known worker gets 'nothing'. `p_incarnation` is the epoch that the agent saw last, or NULL.
-- If it is not the current one, the agent sent the report before commits were lost. The answer is 'outdated' with the current epoch.
CREATE FUNCTION @fn.report(p_worker text, p_uid text, p_doing text, p_claim text, p_fence bigint, p_served_fence bigint,
                         p_endpoint text, p_fresh boolean, p_incarnation integer, p_acting boolean)
RETURNS TABLE (o_do text, o_fence bigint, o_reason text, o_park boolean, o_pool text, o_epoch integer) LANGUAGE plpgsql ROWS 1 AS $$
DECLARE
    w holdfast.worker;
    c holdfast.claim;
    v_frozen boolean;
    t timestamptz := holdfast.now();
BEGIN
    IF p_incarnation <> (SELECT epoch FROM holdfast.installation) THEN
        RETURN QUERY SELECT 'outdated', NULL::bigint, '', false, NULL::text, i.epoch FROM holdfast.installation i;
        RETURN;
    END IF;
    -- The caller has verified that this fence was really given to this claim, so this database has lost the commit that gave it.
    IF p_fence > @fn.last_fence() THEN
        RETURN QUERY SELECT 'ahead', p_fence, 'an agent holds a fence that this database never gave', false, NULL::text, NULL::integer;
        RETURN;
    END IF;
    SELECT * INTO w FROM holdfast.worker WHERE id = p_worker AND state <> 'gone';
    IF NOT FOUND OR w.pod_uid IS DISTINCT FROM p_uid THEN
        RETURN QUERY SELECT 'unknown', NULL::bigint, 'no such worker', false, NULL::text, NULL::integer;
        RETURN;
    END IF;
    IF NOT p_acting THEN
        RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, NULL::text, NULL::integer;
        RETURN;
    END IF;
    IF p_claim IS NOT NULL THEN
        SELECT * INTO c FROM holdfast.claim WHERE id = p_claim;
        -- A claim's fence only grows, and an assignment is delivered only after both are committed. So an agent with a later
        -- assignment than its claim's row, or with one that was never delivered, proves that this database has lost commits. If
        -- the worker's own row is later, the assignment could not be adopted, and the agent would begin one recovery per poll.
        IF p_fresh AND ((c.state <> 'ended' AND coalesce(c.fence, 0) < p_fence AND coalesce(w.fence, 0) < p_fence)
                        OR (c.state = 'assigned' AND c.fence = p_fence AND w.claim_id = p_claim AND NOT c.delivered)) THEN
            RETURN QUERY SELECT 'ahead', p_fence, 'an agent holds an assignment that this database does not show', false, NULL::text, NULL::integer;
            RETURN;
        END IF;
        -- The agent ends its claim only if the claim has ended, or has a later assignment. A missing row is no reason (P7).
        IF NOT (w.state = 'held' AND w.fence = p_fence) AND (c.state = 'ended' OR c.fence > p_fence) THEN
            RETURN QUERY SELECT 'end', p_fence, CASE WHEN c.state = 'ended' THEN c.reason ELSE 'the claim was assigned to another worker' END,
                                w.state = 'parked' AND w.fence = p_fence, NULL::text, NULL::integer;
            RETURN;
        END IF;
        IF w.state = 'held' AND w.fence = p_fence AND w.claim_id = p_claim THEN
            IF c.state = 'assigned' AND p_doing = 'running' THEN
                -- An agent reports this only after its acknowledgement was accepted, so that commit was lost. Without it the
                -- claim would be given to another worker and run a second time (P8).
                PERFORM @fn.acknowledge(p_worker => p_worker, p_fence => p_fence, p_endpoint => p_endpoint,
                    p_incarnation => CASE WHEN p_fresh THEN p_incarnation ELSE 0 END);  -- no epoch is 0
            END IF;
            IF p_fresh AND NOT @confirmed(w) THEN
                PERFORM @fn.confirm_by_agent(p_worker => p_worker, p_fence => p_fence);
                PERFORM @fn.store_heartbeat(p_worker => p_worker, p_doing => p_doing, p_claim => p_claim, p_fence => p_fence,
                                            p_tenant => w.tenant, p_served_fence => p_served_fence);
            END IF;
        END IF;
        RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, NULL::text, NULL::integer;
        RETURN;
    END IF;
    IF w.state = 'retiring' THEN
        SELECT frozen IS NOT NULL INTO v_frozen FROM holdfast.pool WHERE id = w.pool_id;
        RETURN QUERY SELECT CASE WHEN v_frozen THEN 'nothing' ELSE 'exit' END, NULL::bigint, coalesce(w.reason, ''), false,
                            NULL::text, NULL::integer;
        RETURN;
    END IF;
    IF w.state = 'held' THEN
        SELECT * INTO c FROM holdfast.claim WHERE id = w.claim_id;
        IF p_served_fence >= c.fence THEN
            -- The agent has served this very claim or a later one, so the claim had left it. Whether it ran, and which way it
            -- ended, is lost.
            PERFORM @fn.end_claim(p_claim => c.id, p_fence => c.fence, p_tenant => NULL, p_states => ARRAY['assigned', 'active'],
                p_outcome => 'lost', p_how => 'forgotten', p_reason => 'its end was in commits that the database lost',
                p_exit => NULL, p_acting => true);
        ELSIF p_served_fence IS NOT NULL AND w.held_from = 'warm' THEN
            -- The worker has served another claim before, which is known only now. If its assignment has not started, the claim
            -- gets another worker.
            PERFORM @fn.requeue(p_claim => c.id, p_fence => c.fence, p_keep_worker => false, p_suspect => false, p_dead => false,
                                p_untouched => false, p_idle => NULL,
                                p_reason => 'its worker has served a claim that the database does not know');
        ELSIF p_doing = 'idle' AND c.state = 'assigned' AND c.offered THEN
            RETURN QUERY SELECT 'hold', c.fence, '', false, NULL::text, NULL::integer;
            RETURN;
        END IF;
    ELSIF NOT p_fresh THEN
        NULL;
    ELSIF p_served_fence IS NOT NULL AND w.state IN @worker.disown THEN
        -- The worker has served a claim that the database does not know (any more), so it must not serve another tenant.
        PERFORM @fn.retire_spent(p_worker);
    ELSIF p_doing = 'draining' AND NOT w.terminating THEN
        UPDATE holdfast.worker SET terminating = true, version = version + 1 WHERE id = p_worker AND state <> 'held';
    ELSIF p_doing = 'idle' AND w.state = 'spawning' THEN
        -- The agent has served no claim, so what its row may have missed in lost commits does not matter any more.
        UPDATE holdfast.worker SET state = 'warm', version = version + 1, ready = true, endpoint = p_endpoint,
            suspect_since = NULL, unconfirmed_since = NULL, state_since = t, state_heard = holdfast.heard() WHERE id = p_worker AND state IN @worker.warm;
        IF FOUND THEN
            UPDATE holdfast.pool SET failures = 0, trouble = NULL, backoff_until = NULL
            WHERE id = w.pool_id AND (failures > 0 OR trouble IS NOT NULL);
            INSERT INTO holdfast.event (at, kind, pool_id, worker_id) VALUES (t, 'worker.warm', w.pool_id, p_worker);
            PERFORM pg_notify('holdfast', 'p ' || w.pool_id);
            RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, w.pool_id, NULL::integer;
            RETURN;
        END IF;
    ELSIF p_doing = 'idle' AND (w.suspect_since IS NOT NULL OR NOT @confirmed(w) OR w.endpoint IS DISTINCT FROM p_endpoint
          OR (NOT w.ready AND (w.state = 'warm' OR p_served_fence = w.fence OR @fn.never_received(w)))) THEN
        UPDATE holdfast.worker AS worker SET suspect_since = NULL, unconfirmed_since = NULL, version = version + 1,
            endpoint = p_endpoint,
            ready = ready OR state = 'warm' OR coalesce(fence = p_served_fence, false) OR @fn.never_received(worker)
        WHERE id = p_worker AND state IN @worker.free;
        IF FOUND AND (w.suspect_since IS NOT NULL OR NOT @confirmed(w)) THEN
            PERFORM @fn.store_heartbeat(p_worker => p_worker, p_doing => p_doing, p_claim => NULL, p_fence => NULL,
                                        p_tenant => NULL, p_served_fence => p_served_fence);
        END IF;
        PERFORM pg_notify('holdfast', 'p ' || w.pool_id);
        RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, w.pool_id, NULL::integer;
        RETURN;
    END IF;
    RETURN QUERY SELECT 'nothing', NULL::bigint, '', false, NULL::text, NULL::integer;
END $$;

-- Makes an assigned claim active. The agent starts the command only after this succeeded. An agent that lost the answer may
-- repeat the call and gets the claim again, even if the first call still runs, because the row is locked before it is checked.
-- `p_incarnation` is the epoch that the agent saw last, or NULL. If it is not the current one, the agent sent the call before
-- commits were lost. Then it may hold another claim now, so this does not confirm its worker.
CREATE FUNCTION @fn.acknowledge(p_worker text, p_fence bigint, p_endpoint text, p_incarnation integer)
RETURNS TABLE (o_first boolean, o_claim holdfast.claim) LANGUAGE plpgsql ROWS 1 AS $$
DECLARE
    c holdfast.claim;
    t timestamptz := holdfast.now();
    h timestamptz := holdfast.heard();
    v_fresh boolean := coalesce(p_incarnation = (SELECT epoch FROM holdfast.installation), true);
BEGIN
    SELECT * INTO c FROM holdfast.claim WHERE worker_id = p_worker AND fence = p_fence AND state IN @claim.live FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF c.state = 'active' THEN
        PERFORM @fn.confirm_by_agent(p_worker => p_worker, p_fence => p_fence) WHERE v_fresh;
        RETURN QUERY SELECT false, c;
        RETURN;
    END IF;
    IF NOT c.delivered OR c.state NOT IN @claim.activate THEN
        RETURN;
    END IF;
    UPDATE holdfast.claim SET state = 'active', active_at = t, lease_heard = h + lease, max_heard = h + max_duration,
        protected = coalesce(protected, false) -- it is unknown after lost commits; `converge` reads it from the pod
    WHERE id = c.id RETURNING * INTO c;
    UPDATE holdfast.worker SET endpoint = coalesce(p_endpoint, endpoint), version = version + 1 WHERE id = p_worker;
    PERFORM @fn.confirm_by_agent(p_worker => p_worker, p_fence => p_fence) WHERE v_fresh;
    DELETE FROM holdfast.claim_secret WHERE claim_id = c.id;
    PERFORM @fn.clear_failing(c.pool_id);
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant)
    VALUES (t, 'claim.active', c.pool_id, p_worker, c.id, c.tenant);
    PERFORM pg_notify('holdfast', 'c ' || c.id);
    RETURN QUERY SELECT true, c;
END $$;

-- Returns the workers that may need an action only because time has passed. `converge` checks them every few seconds, between two
-- full passes. The arguments are the limits of the cases that a full pass would find (duties/cases.py).
CREATE FUNCTION @fn.due_workers(p_no_pod float, p_retiring float, p_silent float) RETURNS SETOF text LANGUAGE sql AS $$
    WITH clock AS MATERIALIZED (SELECT holdfast.heard() AS h)
    SELECT w.id FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id
    LEFT JOIN holdfast.heartbeat u ON u.worker_id = w.id LEFT JOIN holdfast.claim c ON c.id = w.claim_id, clock
    WHERE w.state <> 'gone' AND p.frozen IS NULL AND (
        (w.state = 'spawning' AND @coming(w) AND (
            (w.pod_uid IS NULL AND w.state_heard < clock.h - make_interval(secs => p_no_pod))
            OR coalesce(w.scheduled_heard, w.state_heard) < clock.h - @fn.duration(p.spec ->> 'startTimeout')))
        OR (w.state = 'retiring' AND w.state_heard < clock.h - make_interval(secs => p_retiring))
        OR ((p.spec #>> '{worker,agent}')::boolean AND w.state IN @worker.started AND w.suspect_since IS NULL
            AND coalesce(u.beat_heard, w.state_heard) < clock.h - make_interval(secs => p_silent))
        OR (w.state = 'held' AND c.state = 'active' AND NOT w.protected AND NOT w.terminating
            AND p.spec #>> '{protection,mode}' <> 'off')
        OR (w.state IN @worker.free AND w.protected AND p.spec #>> '{protection,mode}' <> 'always'))
    -- Held workers that are due only because they are silent come last: the agents of running jobs have exited, so there may be
    -- thousands of them. So do unconfirmed workers that retire, because they wait for their agents or for an operator.
    ORDER BY w.state = 'retiring' AND NOT @confirmed(w), w.state = 'held' AND c.state = 'active' AND (w.protected OR p.spec #>> '{protection,mode}' = 'off'),
             w.state = 'retiring', w.state_heard LIMIT 500
$$;
