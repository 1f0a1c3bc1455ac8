-- End claims and retire workers. Each is one guarded change with its event. The brake is checked before the
-- changes that it counts.

-- Returns the interval of a duration such as '1h30m'.
CREATE FUNCTION @fn.duration(p_text text) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(sum(make_interval(secs => part[1]::float * CASE part[2]
        WHEN 'ms' THEN 0.001 WHEN 's' THEN 1 WHEN 'm' THEN 60 ELSE 3600 END)), interval '0')
    FROM regexp_matches(p_text, '([0-9]+)(ms|s|m|h)', 'g') AS part
$$;

-- Returns how long the worker may stay parked: the claim's TTL, otherwise the tenant's, otherwise the pool's, and at most the
-- pool's maxTTL.
CREATE FUNCTION @fn.park_ttl(c holdfast.claim, p holdfast.pool) RETURNS interval LANGUAGE sql AS $$
    SELECT least(coalesce(c.park_ttl, (SELECT park_ttl FROM holdfast.tenant WHERE name = c.tenant),
                          @fn.duration(p.spec #>> '{park,ttl}')), @fn.duration(p.spec #>> '{park,maxTTL}'))
$$;

-- Returns the worker's next state when its claim leaves it: its state before the claim (if nothing was delivered), parked for its
-- tenant, or retiring.
CREATE FUNCTION @fn.onward(w holdfast.worker, c holdfast.claim, p_outcome text, p_keep boolean) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    p holdfast.pool;
    v_max integer;
BEGIN
    SELECT * INTO p FROM holdfast.pool WHERE id = w.pool_id;
    IF NOT w.delivered AND p_keep THEN
        RETURN w.held_from;
    END IF;
    IF p.state <> 'live' OR p.spec ->> 'mode' <> 'session' OR NOT (p.spec #>> '{worker,agent}')::boolean
       OR w.revision <> p.revision OR NOT @capacity(w)
       OR p_outcome NOT IN ('released', 'expired', 'completed') OR @fn.park_ttl(c, p) <= interval '0' THEN
        RETURN 'retiring';
    END IF;
    v_max := (p.spec #>> '{park,max}')::integer;
    IF v_max IS NOT NULL AND
       (SELECT count(*) FROM holdfast.worker WHERE pool_id = w.pool_id AND state = 'parked') >= v_max THEN
        RETURN 'retiring';
    END IF;
    RETURN 'parked';
END $$;

-- Moves the worker of a claim to its next state and returns the event's kind. A worker that no longer has this claim is not
-- changed, and NULL is returned. `p_confirmed` means that the claim leaves because the worker's agent refused it or reported its
-- result, because the worker is dead, or because an operator gave it up. Otherwise an unconfirmed worker stays unconfirmed: it
-- retires, but its pod is not deleted, because its agent may hold another claim.
CREATE FUNCTION @fn.leave(c holdfast.claim, p_outcome text, p_keep boolean, p_confirmed boolean, p_reason text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    w holdfast.worker;
    p holdfast.pool;
    v_to text;
    t timestamptz := holdfast.now();
    h timestamptz := holdfast.heard();
BEGIN
    SELECT * INTO w FROM holdfast.worker WHERE id = c.worker_id AND claim_id = c.id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT * INTO p FROM holdfast.pool WHERE id = w.pool_id;
    v_to := @fn.onward(w => w, c => c, p_outcome => p_outcome, p_keep => p_keep);
    UPDATE holdfast.worker SET
        state = v_to, version = version + 1, claim_id = NULL, held_from = NULL, state_since = t, state_heard = h,
        tenant = CASE WHEN v_to = 'warm' THEN NULL ELSE tenant END,
        -- A parked worker becomes free when its agent reports that the reset is done.
        ready = CASE WHEN v_to = 'parked' AND w.delivered THEN false ELSE ready END,
        -- If a parked worker is returned unused, its TTL must not start again.
        parked_since = CASE WHEN v_to = 'parked' THEN CASE WHEN w.delivered THEN t ELSE parked_since END END,
        parked_heard = CASE WHEN v_to = 'parked' THEN CASE WHEN w.delivered THEN h ELSE parked_heard END END,
        park_ttl = CASE WHEN v_to = 'parked' THEN CASE WHEN w.delivered THEN @fn.park_ttl(c, p) ELSE park_ttl END END,
        reason = CASE WHEN v_to = 'retiring' THEN p_reason END,
        unconfirmed_since = CASE WHEN NOT p_confirmed THEN unconfirmed_since END
    WHERE id = w.id;
    RETURN CASE v_to WHEN 'parked' THEN CASE WHEN w.delivered THEN 'worker.parked' ELSE 'worker.returned' END
                     WHEN 'warm' THEN 'worker.returned' ELSE 'worker.retiring' END;
END $$;

-- Ends a claim in one of the ways that P2 allows. Returns done, stale, braked or recovering, and with done the ended claim.
-- `p_acting` is whether Holdfast may end claims by its own decision now. Holders, results and operators may always end a claim.
CREATE FUNCTION @fn.end_claim(p_claim text, p_fence bigint, p_tenant text, p_states text[], p_outcome text, p_how text,
                              p_reason text, p_exit integer, p_acting boolean, p_actor jsonb DEFAULT NULL)
RETURNS TABLE (o_what text, o_claim holdfast.claim) LANGUAGE plpgsql ROWS 1 AS $$
DECLARE
    c holdfast.claim;
    v_ended holdfast.claim;
    v_also text;
    v_not text;
    v_reason text := p_reason;
    t timestamptz := holdfast.now();
BEGIN
    SELECT * INTO c FROM holdfast.claim
    WHERE id = p_claim AND state = ANY (p_states) AND state IN @claim.end AND (p_fence IS NULL OR fence = p_fence)
      AND (p_tenant IS NULL OR tenant = p_tenant) FOR UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'stale', NULL::holdfast.claim;
        RETURN;
    END IF;
    IF p_how IN ('lease', 'max_duration', 'deadline', 'death', 'pool_deleted', 'unprotected', 'activation') THEN
        IF NOT p_acting THEN
            RETURN QUERY SELECT 'recovering', NULL::holdfast.claim;
            RETURN;
        END IF;
        -- The deadline is checked under the row's lock, because a renewal may have been stored during the wait for it.
        IF (p_how = 'lease' AND c.lease_heard > holdfast.heard())
           OR (p_how = 'max_duration' AND c.max_heard > holdfast.heard())
           OR (p_how = 'deadline' AND c.deadline_heard > holdfast.heard()) THEN
            RETURN QUERY SELECT 'stale', NULL::holdfast.claim;
            RETURN;
        END IF;
        IF p_how IN ('lease', 'max_duration', 'unprotected') AND @fn.may_hold_another(c) THEN
            RETURN QUERY SELECT 'stale', NULL::holdfast.claim;
            RETURN;
        END IF;
        IF p_how IN ('lease', 'max_duration') AND NOT @fn.chosen_end(c, p_how) THEN
            -- Not `p_how`: a claim whose lease ran out too ends by its lease, and its tenant's brake must not keep it forever (P4).
            v_not := @fn.braked(p_kind => 'claim', p_id => p_claim, p_tenant => c.tenant, p_ceiling => c.max_heard <= holdfast.heard());
            IF v_not IS NOT NULL THEN
                RETURN QUERY SELECT v_not, NULL::holdfast.claim;
                RETURN;
            END IF;
        END IF;
    END IF;
    -- Workers may have been free, so a claim that waited because of a failing hook says that. The pool's trouble is not in the
    -- reason, because it may contain data of another tenant.
    IF p_how = 'deadline' AND c.activation_failures > 0 THEN
        v_reason := format('activation failed %s times before its deadline: %s', c.activation_failures, c.reason);
    ELSIF p_how = 'deadline' AND EXISTS (SELECT FROM holdfast.pool p WHERE p.id = c.pool_id AND @failing(p)) THEN
        v_reason := 'activations of its pool fail, and no worker was free before its deadline';
    END IF;
    UPDATE holdfast.claim SET state = 'ended', outcome = p_outcome, how = p_how, reason = v_reason, exit_code = p_exit,
        ended_at = t, ended_heard = holdfast.heard(),
        -- The work is over, so what it was started with is erased. The request's hash stays, because it belongs to the key (P1).
        request = request - ARRAY['command', 'env', 'payload']
    WHERE id = p_claim RETURNING * INTO v_ended;
    DELETE FROM holdfast.claim_secret WHERE claim_id = p_claim;
    IF (c.request ->> 'stdin')::boolean THEN
        DELETE FROM holdfast.claim_input_piece WHERE claim_id = p_claim;
    END IF;
    v_also := @fn.leave(c => c, p_outcome => p_outcome, p_keep => p_how <> 'death', p_confirmed => p_how IN ('result', 'death'),
                        p_reason => format('its claim ended: %s', p_outcome));
    INSERT INTO holdfast.event (at, kind, also, pool_id, worker_id, claim_id, tenant, reason, data, actor)
    VALUES (t, 'claim.ended', v_also, c.pool_id, c.worker_id, c.id, c.tenant, v_reason,
            jsonb_build_object('outcome', p_outcome, 'how', p_how, 'exit_code', p_exit, 'from', c.state), p_actor);
    PERFORM pg_notify('holdfast', 'c ' || p_claim);
    IF v_also IS NOT NULL THEN
        PERFORM pg_notify('holdfast', 'w ' || c.worker_id);
    END IF;
    RETURN QUERY SELECT 'done', v_ended;
END $$;

-- Sends a claim back to its place in the queue. An assigned claim is sent back because its worker proved unusable before the work
-- started; with `p_idle`, only if its hand-over has made no progress for so many seconds. An active claim is sent back only if
-- its worker is proven dead (`p_dead`), and the command never started (`p_untouched`, and the claim has no secrets) or the claim
-- has `retry: lost` and retries left. The same holds for an assigned claim that may have been acknowledged in lost commits.
CREATE FUNCTION @fn.requeue(p_claim text, p_fence bigint, p_keep_worker boolean, p_suspect boolean, p_dead boolean,
                            p_untouched boolean, p_idle float, p_reason text, p_actor jsonb DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    c holdfast.claim;
    v_begun boolean;
    v_also text;
    t timestamptz := holdfast.now();
BEGIN
    SELECT * INTO c FROM holdfast.claim WHERE id = p_claim AND fence = p_fence
        AND (state IN @claim.requeue OR (state IN @claim.retry AND p_dead)) FOR UPDATE;
    -- With 0 seconds the time is not compared, because heard time may step back by up to 2 s when another replica joins.
    IF NOT FOUND OR (p_idle > 0 AND c.progress_heard > holdfast.heard() - make_interval(secs => p_idle)) THEN
        RETURN 'stale';
    END IF;
    -- Recovery marks every assignment as delivered. If the worker died before its agent reported again, the acknowledgement may
    -- be in the lost commits. A worker without an agent acknowledges nothing: its holder may know of it.
    v_begun := c.state = 'active' OR (p_dead AND c.delivered AND EXISTS (
        SELECT FROM holdfast.worker w JOIN holdfast.pool p ON p.id = w.pool_id
        WHERE w.id = c.worker_id AND (NOT @confirmed(w) OR NOT (p.spec #>> '{worker,agent}')::boolean)));
    IF v_begun AND NOT ((p_untouched AND NOT c.secret) OR (coalesce(c.retry = 'lost', false) AND c.losses < @MAX_LOST_RETRIES)) THEN
        RETURN 'stale';
    END IF;
    -- Such a worker may have acknowledged in one of the lost commits, so a stalled hand-over proves nothing.
    IF p_idle IS NOT NULL AND @fn.may_hold_another(c) THEN
        UPDATE holdfast.claim SET reason = 'its worker has not reported since the database lost commits and may have begun;'
            ' `holdfast recover` shows what an operator can do' WHERE id = p_claim;
        RETURN 'stale';
    END IF;
    -- The claim keeps its fence, which marks the last assignment that is over, so that recovery never adopts that assignment.
    UPDATE holdfast.claim SET state = 'waiting', worker_id = NULL, offered = false, delivered = false,
        protected = NULL, progress_heard = NULL, lease_heard = NULL, max_heard = NULL, assigned_at = NULL, active_at = NULL,
        losses = losses + (v_begun AND NOT p_untouched)::integer, reason = p_reason,
        -- A retried claim gets its full waiting time again. Otherwise it would be refused at once, because its deadline is past.
        deadline_heard = CASE WHEN v_begun THEN holdfast.heard() + patience ELSE deadline_heard END
    WHERE id = p_claim;
    v_also := @fn.leave(c => c, p_outcome => 'lost', p_keep => p_keep_worker, p_confirmed => p_idle IS NULL, p_reason => p_reason);
    IF p_suspect THEN
        UPDATE holdfast.worker SET suspect_since = t, version = version + 1
        WHERE id = c.worker_id AND state IN @worker.free;
    END IF;
    INSERT INTO holdfast.event (at, kind, also, pool_id, worker_id, claim_id, tenant, reason, actor)
    VALUES (t, CASE WHEN c.state = 'active' THEN 'claim.retried' ELSE 'claim.requeued' END, v_also, c.pool_id, c.worker_id,
            c.id, c.tenant, p_reason, p_actor);
    PERFORM pg_notify('holdfast', 'p ' || c.pool_id);
    PERFORM pg_notify('holdfast', 'w ' || c.worker_id);
    RETURN 'done';
END $$;

-- Returns when the claim last went back to the queue because its worker had died, or NULL if it never did. It is written in
-- plpgsql, because Postgres would plan a subquery on all partitions of the history for every claim that is shown.
CREATE FUNCTION @fn.retried_at(p_claim text) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT max(at) FROM holdfast.event WHERE claim_id = p_claim AND kind = 'claim.retried');
END $$;

-- Moves a free worker to `retiring`, with its event. `p_unconfirmed` is set if the worker may be busy: then its pod is kept until
-- its agent reports, its pod ends, or an operator decides.
CREATE FUNCTION @fn.retire_free(w holdfast.worker, p_unconfirmed timestamptz, p_reason text, p_actor jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t timestamptz := holdfast.now();
BEGIN
    UPDATE holdfast.worker SET state = 'retiring', version = version + 1, reason = p_reason, parked_since = NULL,
        parked_heard = NULL, park_ttl = NULL, unconfirmed_since = p_unconfirmed, state_since = t, state_heard = holdfast.heard()
    WHERE id = w.id AND state IN @worker.condemn;
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, tenant, reason, data, actor)
    VALUES (t, 'worker.retiring', w.pool_id, w.id, w.tenant, p_reason, jsonb_build_object('from', w.state), p_actor);
    PERFORM pg_notify('holdfast', 'w ' || w.id);
END $$;

-- Condemns a free worker. A free worker retires only in this way, except for retire_spent and the workers that are parked for a
-- deleted tenant (postgres/tenants.py). Returns done, stale, frozen or braked.
-- `p_floor` is set if the pool has too many free workers: the worker stays if the pool has no more than so many now.
CREATE FUNCTION @fn.condemn(p_worker text, p_version integer, p_reason text, p_counted boolean, p_dead boolean,
                            p_floor integer, p_actor jsonb DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    w holdfast.worker;
    v_pool text;
    v_not text;
BEGIN
    -- Counts under the pool's lock, so that no worker of it is given out or spawned before this commits.
    IF p_floor IS NOT NULL THEN
        SELECT pool_id INTO v_pool FROM holdfast.worker WHERE id = p_worker;
        PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.pool.' || v_pool, 0));
        IF p_floor >= (SELECT count(*) FROM holdfast.worker f WHERE f.pool_id = v_pool
                       AND (f.state = 'spawning' AND @coming(f) OR f.state = 'warm' AND @capacity(f))) THEN
            RETURN 'stale';
        END IF;
    END IF;
    SELECT * INTO w FROM holdfast.worker WHERE id = p_worker AND state IN @worker.condemn
        AND (p_version IS NULL OR version = p_version) FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    IF EXISTS (SELECT FROM holdfast.pool WHERE id = w.pool_id AND frozen IS NOT NULL) THEN
        RETURN 'frozen';
    END IF;
    -- Checks P2 from the claim's side as well. A live claim on a free worker is a bug elsewhere, but it must not lose its worker.
    IF EXISTS (SELECT FROM holdfast.claim WHERE worker_id = p_worker AND state IN @claim.live) THEN
        RETURN 'stale';
    END IF;
    -- An agent that reports a claim which is not known to have ended is not free, whatever the worker's row shows. An unconfirmed
    -- worker may be busy as well. Proof of death overrides this check, and so do an operator's command and the report of an agent
    -- that gave up its worker. The last two have no version.
    IF p_version IS NOT NULL AND NOT p_dead AND (
        NOT @confirmed(w)
        OR EXISTS (SELECT FROM holdfast.heartbeat u WHERE u.worker_id = p_worker AND u.claim_id IS NOT NULL
                   AND NOT EXISTS (SELECT FROM holdfast.claim c WHERE c.id = u.claim_id AND c.state = 'ended'))) THEN
        RETURN 'stale';
    END IF;
    IF p_counted THEN
        v_not := @fn.braked(p_kind => 'worker', p_id => p_worker, p_tenant => w.tenant, p_ceiling => false);
        IF v_not IS NOT NULL THEN
            RETURN v_not;
        END IF;
    END IF;
    PERFORM @fn.retire_free(w => w, p_unconfirmed => NULL, p_reason => p_reason, p_actor => p_actor);
    RETURN 'done';
END $$;
