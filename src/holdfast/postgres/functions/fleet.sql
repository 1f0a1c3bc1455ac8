-- Replicas' beats and terms, and the rows of workers to come.

-- One statement a second for each replica: it is alive, its duties' terms go on, and heard time moves.
-- `p_elapsed` is the replica's own monotonic time since its last beat (NULL: none yet). Heard time moves by no more than
-- that, so neither an outage nor a jump of the database's clock lets a deadline pass.
-- `p_mark` and `p_epoch` are the highest that the replica knows of, its own or kept outside. They are compared before this beat
-- raises the mark: of a database that lost one mark, the next beat would make up for it, and nobody would notice.
CREATE FUNCTION @fn.beat(p_replica text, p_elapsed float, p_term float, p_duties jsonb, p_mark bigint, p_epoch integer)
RETURNS TABLE (o_mark bigint, o_epoch integer, o_recovering boolean, o_terms jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    h holdfast.hearing;
    i holdfast.installation;
    t timestamptz;
    v_step interval;
    v_system text;
    v_timeline integer;
BEGIN
    SELECT * INTO i FROM holdfast.installation;
    SELECT * INTO h FROM holdfast.hearing;
    IF h.mark < p_mark OR i.epoch < p_epoch THEN
        -- In the same change as the beat: whoever noticed may die now, and the next one would see nothing.
        PERFORM @fn.begin_recovery(format('the database shows mark %s of epoch %s, and mark %s of epoch %s was seen',
                                          h.mark, i.epoch, p_mark, p_epoch), p_mark, p_epoch);
    END IF;
    SELECT system_identifier::text INTO v_system FROM pg_control_system();
    v_timeline := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer;
    IF (i.system_identifier, i.timeline) IS DISTINCT FROM (v_system, v_timeline) THEN
        IF i.system_identifier IS NOT NULL THEN
            PERFORM @fn.begin_recovery('the server''s identity or timeline changed: restored, or failed over',
                                       (SELECT mark FROM holdfast.hearing), i.epoch - 1);
        END IF;
        UPDATE holdfast.installation SET system_identifier = v_system, timeline = v_timeline;
    END IF;
    SELECT * INTO h FROM holdfast.hearing FOR UPDATE;
    t := holdfast.now();
    -- The same rule as in holdfast.heard(), bounded by our own clock.
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
             -- A negative age is stale: the clock went back, and what it said is worth nothing.
             'expired', until < t OR renewed_at > t,
             'idle', extract(epoch FROM t - coalesce(progress_at, renewed_at)))) FROM holdfast.term)
    FROM holdfast.installation n;
END $$;

-- What pods are stamped with, compared with the rows: of commits that were lost since the last mark, a stamp is all that is left.
-- A stamp is written after its worker's row, and a row's fence only grows, so one that is ahead of it was given by a database
-- that we are not. (To be above all that we gave is not enough to ask for: after a crash the sequence itself may be ahead.)
CREATE FUNCTION @fn.compare_stamps(p_stamps jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    s record;
BEGIN
    SELECT t.* INTO s FROM jsonb_to_recordset(p_stamps) AS t(worker text, uid text, claim text, fence bigint)
    WHERE t.fence > (SELECT (i.epoch::bigint << 40) + f.last_value FROM holdfast.installation i, holdfast.fence f)
       OR EXISTS (SELECT FROM holdfast.worker w WHERE w.id = t.worker AND w.pod_uid = t.uid
                  AND w.state IN ('warm', 'parked', 'held') AND coalesce(w.fence, 0) < t.fence)
    ORDER BY t.fence DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    RETURN @fn.begin_recovery(
        format('pod %s is stamped for claim %s with a fence that this database did not give it', s.worker, s.claim),
        (SELECT mark FROM holdfast.hearing), (s.fence >> 40)::integer);
END $$;

-- Recovery is over. Who has not spoken since it began gets no claim until it does.
CREATE FUNCTION @fn.end_recovery() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    i holdfast.installation;
    t timestamptz := holdfast.now();
BEGIN
    SELECT * INTO i FROM holdfast.installation WHERE recovering_since IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    UPDATE holdfast.installation SET recovering_since = NULL, recovered_at = t;
    UPDATE holdfast.worker w SET suspect_since = t, version = version + 1
    FROM holdfast.pool p
    WHERE p.id = w.pool_id AND (
        -- Whose agent has not spoken since; and who has neither an agent nor a stamp that could speak for it: an operator looks.
        ((p.spec #>> '{worker,agent}')::boolean AND w.state IN ('warm', 'parked', 'held') AND NOT EXISTS (
            SELECT FROM holdfast.pulse u WHERE u.worker_id = w.id AND u.beat_heard > i.recovery_heard))
        OR (NOT (p.spec #>> '{worker,agent}')::boolean AND p.spec #>> '{protection,mode}' <> 'claim' AND w.state = 'warm'));
    PERFORM @fn.retire_spent(w.id) FROM holdfast.worker w JOIN holdfast.pulse u ON u.worker_id = w.id
    WHERE w.state IN ('spawning', 'warm') AND u.reset_fence IS NOT NULL;
    INSERT INTO holdfast.event (at, kind, reason) VALUES (t, 'recovery.ended', 'pods and agents have been compared');
    RETURN 'done';
END $$;

-- Take a duty's term: it ran out, or its holder lives without progress (`p_stale` seconds).
CREATE FUNCTION @fn.take_term(p_duty text, p_replica text, p_term float, p_stale float) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    t timestamptz;
    v_number bigint;
    v_old text;
BEGIN
    SELECT holder INTO v_old FROM holdfast.term WHERE duty = p_duty FOR UPDATE;
    t := holdfast.now();  -- after the lock: read before it, a term that was renewed meanwhile would look like a clock that went back
    UPDATE holdfast.term SET holder = p_replica, number = number + 1, renewed_at = t, until = t + make_interval(secs => p_term),
        progress_at = t, failure = NULL, taken_over = taken_over + (v_old IS NOT NULL AND v_old <> p_replica)::integer
    WHERE duty = p_duty AND (until < t OR renewed_at > t
        OR t - coalesce(progress_at, renewed_at) > make_interval(secs => p_stale)
        OR coalesce(progress_at, renewed_at) > t)
    RETURNING number INTO v_number;
    IF v_number IS NOT NULL AND v_old IS DISTINCT FROM p_replica THEN
        INSERT INTO holdfast.event (at, kind, reason, data) VALUES (t, 'term.taken',
            format('duty %s: %s takes over from %s', p_duty, p_replica, coalesce(v_old, 'nobody')),
            jsonb_build_object('duty', p_duty, 'replica', p_replica));
    END IF;
    RETURN v_number;
END $$;

-- Rows for new workers, before their pods: a crash between leaves a row that we can find, not a pod that we cannot.
-- Guarded by the counts inside, so two passes at once cannot overspawn.
CREATE FUNCTION @fn.spawn(p_pool text, p_ids text[], p_free_target integer, p_limit_starting integer,
                          p_mark bigint)
RETURNS TABLE (o_worker text, o_revision text, o_epoch integer) LANGUAGE plpgsql AS $$
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
    IF NOT FOUND OR @fn.halted(p_mark) OR EXISTS (SELECT FROM holdfast.installation WHERE stopping) THEN
        RETURN;
    END IF;
    SELECT epoch INTO v_epoch FROM holdfast.installation;
    -- What cannot be given out is not capacity: a claim would wait behind it for ever.
    SELECT count(*), count(*) FILTER (WHERE state = 'spawning' OR (state = 'warm' AND NOT terminating AND schedulable
                                      AND suspect_since IS NULL)), count(*) FILTER (WHERE state = 'spawning')
    INTO v_present, v_coming, v_starting FROM holdfast.worker WHERE pool_id = p_pool AND state <> 'gone';
    v_count := least(cardinality(p_ids), (p.spec ->> 'max')::integer - v_present, p_free_target - v_coming,
                     p_limit_starting - v_starting);
    IF v_count <= 0 THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH made AS (
        INSERT INTO holdfast.worker (id, pool_id, state, revision, epoch, created_at, state_since, state_heard)
        SELECT id, p_pool, 'spawning', p.revision, v_epoch, t, t, holdfast.heard() FROM unnest(p_ids[1:v_count]) AS n(id)
        RETURNING id
    ), e AS (
        INSERT INTO holdfast.event (at, kind, pool_id, worker_id)
        SELECT t, 'worker.spawning', p_pool, made.id FROM made
    )
    SELECT made.id, p.revision, v_epoch FROM made;
END $$;

-- The database lost commits: the epoch grows above every epoch that anybody has seen, and everything waits until pods and
-- agents have been compared. Seen again from a later epoch while recovering, the comparison starts anew.
CREATE FUNCTION @fn.begin_recovery(p_reason text, p_mark bigint, p_epoch integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    t timestamptz;
    h timestamptz;
    v_workers text[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.recovery', 0));
    IF NOT EXISTS (SELECT FROM holdfast.installation WHERE recovering_since IS NULL OR epoch <= p_epoch) THEN
        -- One loss, seen by several: who saw the highest mark must not see it as another loss once this recovery is over.
        UPDATE holdfast.hearing SET mark = p_mark WHERE mark < p_mark;
        RETURN false;
    END IF;
    t := holdfast.now();
    h := holdfast.heard();
    -- What the lost time would have renewed starts anew: nobody could be heard in it. Claims, the installation, workers: whoever
    -- ends a claim locks in this order too, and several of a kind by their ids.
    PERFORM FROM holdfast.claim WHERE state IN ('assigned', 'active') ORDER BY id FOR UPDATE;
    UPDATE holdfast.claim SET lease_heard = h + lease WHERE state = 'active' AND lease IS NOT NULL;
    -- Nor does anybody know whether an assignment was delivered: its worker may know of this tenant, and have let go of it since.
    WITH c AS (UPDATE holdfast.claim SET progress_heard = h, delivered = true WHERE state = 'assigned' RETURNING worker_id)
    SELECT array_agg(worker_id) INTO v_workers FROM c;
    UPDATE holdfast.installation SET epoch = greatest(epoch, p_epoch) + 1, recovering_since = t, recovery_heard = h,
        recovery_reason = p_reason, recoveries = recoveries + 1;
    PERFORM FROM holdfast.worker WHERE id = ANY (v_workers) ORDER BY id FOR UPDATE;
    UPDATE holdfast.worker SET delivered = true WHERE id = ANY (v_workers);
    UPDATE holdfast.hearing SET mark = greatest(mark, p_mark);
    INSERT INTO holdfast.event (at, kind, reason) VALUES (t, 'recovery.began', p_reason);
    RETURN true;
END $$;
