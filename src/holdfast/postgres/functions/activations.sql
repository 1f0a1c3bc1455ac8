-- Count failed activations, delay the next try of the claim and of its pool, and refuse a claim that failed too often
-- (decision 0018).

-- Returns how long the next try is delayed after so many failures in a row.
CREATE FUNCTION @fn.activation_backoff(p_failures integer) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT make_interval(secs => least(@LONGEST_BACKOFF, @FIRST_BACKOFF * power(2, least(p_failures, 20) - 1)))
$$;

-- Returns the whole seconds until this time, at least 0, for texts that people read.
CREATE FUNCTION @fn.seconds_until(p_heard timestamptz) RETURNS integer LANGUAGE sql AS $$
    SELECT greatest(0, ceil(extract(epoch FROM p_heard - holdfast.heard())))::integer
$$;

-- Counts the failure for the pool. One claim counts once, however often it fails, because its own payload may be the cause.
-- If activations of different claims fail, the pool waits.
CREATE FUNCTION @fn.count_failing(p_pool text, p_claim text, p_cause text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    p holdfast.pool;
    h timestamptz := holdfast.heard();
BEGIN
    SELECT * INTO p FROM holdfast.pool WHERE id = p_pool FOR UPDATE;
    p.activation_trouble := p_cause;
    IF NOT @failing(p) AND p_claim <> ALL (p.activation_failing) THEN
        p.activation_failing := p.activation_failing || p_claim;
    END IF;
    -- Activations that ran already when the backoff began do not make it longer. Otherwise many workers that fail at the same
    -- time would stop the pool for the longest backoff at once.
    IF @failing(p) AND coalesce(p.activation_heard <= h, true) THEN
        p.activation_backoffs := p.activation_backoffs + 1;
        p.activation_heard := h + @fn.activation_backoff(p.activation_backoffs);
        IF p.activation_backoffs = 1 THEN
            INSERT INTO holdfast.event (at, kind, pool_id, reason)
            VALUES (holdfast.now(), 'pool.troubled', p_pool, 'activation fails: ' || p_cause);
        END IF;
    END IF;
    UPDATE holdfast.pool SET activation_failing = p.activation_failing, activation_backoffs = p.activation_backoffs,
        activation_heard = p.activation_heard, activation_trouble = p.activation_trouble WHERE id = p_pool;
END $$;

-- Puts a claim back to its place in the queue, because its activation failed on this worker. The claim is not given out again
-- before its backoff is over. After too many failures it ends as refused. Returns done, refused or stale.
CREATE FUNCTION @fn.activation_failed(p_claim text, p_fence bigint, p_dead boolean, p_idle float, p_cause text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    c holdfast.claim;
    v_what text;
BEGIN
    -- `requeue` also accepts an active claim whose worker died. That is not a failed activation.
    PERFORM FROM holdfast.claim WHERE id = p_claim AND fence = p_fence AND state IN @claim.requeue FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    v_what := @fn.requeue(p_claim => p_claim, p_fence => p_fence, p_keep_worker => false, p_suspect => false, p_dead => p_dead,
                          p_untouched => false, p_idle => p_idle, p_reason => 'activation failed: ' || p_cause);
    IF v_what <> 'done' THEN
        RETURN v_what;
    END IF;
    UPDATE holdfast.claim SET reason = p_cause, activation_failures = activation_failures + 1,
        not_before_heard = holdfast.heard() + @fn.activation_backoff(activation_failures + 1)
    WHERE id = p_claim RETURNING * INTO c;
    PERFORM @fn.count_failing(c.pool_id, p_claim, p_cause);
    IF c.activation_failures < @MAX_ACTIVATIONS THEN
        RETURN 'done';
    END IF;
    PERFORM @fn.end_claim(p_claim => p_claim, p_fence => p_fence, p_tenant => NULL, p_states => ARRAY['waiting'],
        p_outcome => 'refused', p_how => 'activation',
        p_reason => format('activation failed %s times: %s', c.activation_failures, p_cause), p_exit => NULL, p_acting => true);
    RETURN 'refused';
END $$;

-- Ends the pool's trouble with activations, because one succeeded or the pool has a new revision.
CREATE FUNCTION @fn.clear_failing(p_pool text) RETURNS void LANGUAGE sql AS $$
    UPDATE holdfast.pool SET activation_failing = '{}', activation_backoffs = 0, activation_heard = NULL, activation_trouble = NULL
    WHERE id = p_pool AND activation_trouble IS NOT NULL
$$;

-- Returns how many claims of the pool may be given out now: all of them, or at most one if activations fail.
CREATE FUNCTION @fn.activations_allowed(p holdfast.pool, p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    IF NOT @failing(p) THEN
        RETURN p_limit;
    END IF;
    -- A hand-over in progress may be the one that shows whether activations work again. If its hook hangs, the pool goes on.
    IF p.activation_heard > holdfast.heard() OR EXISTS (
        SELECT FROM holdfast.claim c JOIN holdfast.worker w ON w.id = c.worker_id
        WHERE c.pool_id = p.id AND c.state = 'assigned'
          AND w.state_heard > holdfast.heard() - make_interval(secs => @LONGEST_BACKOFF)) THEN
        RETURN 0;
    END IF;
    RETURN least(1, p_limit);
END $$;
