-- Replicas' beats and terms, and the rows of new workers.

-- Records that the replica is alive, extends its duties' terms and advances heard time. Each replica calls it once a second.
-- `p_elapsed` is the replica's own monotonic time since its last beat (NULL before the first). Heard time advances by at most
-- that, so neither an outage nor a jump of the database's clock lets a deadline pass.
-- Only compared_beat (recovery.sql) may call this, because what the replica has seen must be compared before the mark rises.
CREATE FUNCTION @fn.beat(p_replica text, p_elapsed float, p_term float, p_duties jsonb)
RETURNS TABLE (o_mark bigint, o_epoch integer, o_recovering boolean, o_terms jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    h holdfast.hearing;
    t timestamptz;
    v_step interval;
BEGIN
    SELECT * INTO h FROM holdfast.hearing FOR UPDATE;
    t := holdfast.now();
    -- The same rule as in holdfast.heard(), and in addition limited by the replica's own clock.
    v_step := least(t - h.last_heard, make_interval(secs => coalesce(p_elapsed, 0)));
    v_step := CASE WHEN v_step > interval '5 s' THEN interval '0' ELSE greatest(interval '0', least(v_step, interval '2 s')) END;
    UPDATE holdfast.hearing SET last_heard = t, deaf = t - (h.last_heard - h.deaf + v_step), mark = mark + 1;
    UPDATE holdfast.replica SET seen_at = t WHERE id = p_replica;
    UPDATE holdfast.term AS term SET
        renewed_at = t, until = t + make_interval(secs => p_term),
        progress_at = CASE WHEN d.progressed THEN t ELSE term.progress_at END,
        success_at = CASE WHEN d.succeeded THEN t ELSE term.success_at END,
        seconds = coalesce(d.seconds, term.seconds),
        actions = term.actions + d.actions, skips = term.skips + d.skips, failure = d.failure
    FROM jsonb_to_recordset(p_duties) AS d(duty text, number bigint, progressed boolean, succeeded boolean, seconds real,
                                           actions bigint, skips bigint, failure text)
    WHERE term.duty = d.duty AND term.holder = p_replica AND term.number = d.number;
    RETURN QUERY SELECT h.mark + 1, n.epoch, n.recovering_since IS NOT NULL,
        (SELECT jsonb_agg(jsonb_build_object('duty', duty, 'holder', holder, 'number', number,
             -- A renewal in the future means that the database's clock went back, so `until` proves nothing and the term is over.
             'expired', until < t OR renewed_at > t,
             'idle', extract(epoch FROM t - coalesce(progress_at, renewed_at)))) FROM holdfast.term)
    FROM holdfast.installation n;
END $$;

-- Takes a duty's term and returns its number. It returns NULL unless the term has run out, or the duty has made no progress for
-- `p_stale` seconds.
CREATE FUNCTION @fn.take_term(p_duty text, p_replica text, p_term float, p_stale float) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    t timestamptz;
    v_number bigint;
    v_old text;
BEGIN
    SELECT holder INTO v_old FROM holdfast.term WHERE duty = p_duty FOR UPDATE;
    -- The time is read after the lock. Otherwise a term that is renewed during the wait would look as if the clock went back.
    t := holdfast.now();
    UPDATE holdfast.term SET holder = p_replica, number = number + 1, renewed_at = t, until = t + make_interval(secs => p_term),
        progress_at = t, failure = NULL, taken_over = taken_over + (v_old IS NOT NULL AND v_old <> p_replica)::integer
    WHERE duty = p_duty AND (until < t OR renewed_at > t
        OR t - coalesce(progress_at, renewed_at) > make_interval(secs => p_stale)
        OR progress_at > t)
    RETURNING number INTO v_number;
    IF v_number IS NOT NULL AND v_old IS DISTINCT FROM p_replica THEN
        INSERT INTO holdfast.event (at, kind, reason, data) VALUES (t, 'term.taken',
            format('duty %s: %s takes over from %s', p_duty, p_replica, coalesce(v_old, 'no holder')),
            jsonb_build_object('duty', p_duty, 'replica', p_replica));
    END IF;
    RETURN v_number;
END $$;

-- Creates the rows of new workers. The row comes before the pod, because a crash between them then leaves a row that we can find,
-- not a pod that we cannot. Workers are counted under the pool's lock, so two passes at the same time cannot spawn too many. If
-- `p_acting` is false, nothing is created.
CREATE FUNCTION @fn.spawn(p_pool text, p_ids text[], p_free_target integer, p_limit_starting integer,
                          p_acting boolean)
RETURNS TABLE (o_worker text, o_epoch integer) LANGUAGE plpgsql AS $$
DECLARE
    p holdfast.pool;
    v_present integer;
    v_coming integer;
    v_starting integer;
    v_count integer;
    v_epoch integer;
    t timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.pool.' || p_pool, 0));
    t := holdfast.now();
    SELECT * INTO p FROM holdfast.pool WHERE id = p_pool AND state = 'live' AND frozen IS NULL
        AND (backoff_until IS NULL OR backoff_until <= t);
    IF NOT FOUND OR NOT p_acting OR EXISTS (SELECT FROM holdfast.installation WHERE stopping) THEN
        RETURN;
    END IF;
    SELECT epoch INTO v_epoch FROM holdfast.installation;
    -- A warm or starting worker that cannot be given out does not count as capacity. Otherwise claims could wait forever for it.
    SELECT count(*), count(*) FILTER (WHERE (w.state = 'spawning' AND @coming(w)) OR (w.state = 'warm' AND @capacity(w))),
           count(*) FILTER (WHERE w.state = 'spawning' AND @coming(w))
    INTO v_present, v_coming, v_starting FROM holdfast.worker w WHERE w.pool_id = p_pool AND w.state <> 'gone';
    v_count := least(cardinality(p_ids), (p.spec ->> 'max')::integer - v_present, p_free_target - v_coming,
                     p_limit_starting - v_starting);
    RETURN QUERY
    WITH made AS (
        INSERT INTO holdfast.worker (id, pool_id, state, revision, epoch, created_at, state_since, state_heard)
        SELECT id, p_pool, 'spawning', p.revision, v_epoch, t, t, holdfast.heard() FROM unnest(p_ids[1:v_count]) AS n(id)
        RETURNING id
    ), e AS (
        INSERT INTO holdfast.event (at, kind, pool_id, worker_id)
        SELECT t, 'worker.spawning', p_pool, made.id FROM made
    )
    SELECT made.id, v_epoch FROM made;
END $$;
