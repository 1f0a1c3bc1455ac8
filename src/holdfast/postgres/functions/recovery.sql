-- Recovery after lost commits: notice the loss, begin, compare, adopt, end, and decide whether acting is allowed (decision 0016).
-- The advisory lock 'holdfast.recovery' guards the mode. A statement that relies on the mode takes the lock in shared mode.
-- Beginning and ending a recovery take it exclusively.

-- Returns the server's timeline, which changes with every failover. Returns NULL on a standby, which has no current one.
CREATE FUNCTION @fn.timeline() RETURNS integer LANGUAGE sql AS $$
    SELECT CASE WHEN NOT pg_is_in_recovery() THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer END
$$;

-- Returns whether the caller may give out, spawn or end something. The answer true stays valid until the calling statement
-- commits, because begin_recovery needs this lock exclusively. The answer is false during a recovery, and if the database shows a
-- lower mark than the caller has seen, or another timeline than at the last beat: then commits may be lost, and no beat has
-- noticed it yet. The lock and the read are two statements, because a statement's snapshot is taken before it waits for the lock.
CREATE FUNCTION @fn.acting(p_mark bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('holdfast.recovery', 0));
    RETURN EXISTS (SELECT FROM holdfast.installation i, holdfast.hearing h WHERE i.recovering_since IS NULL AND h.mark >= p_mark
                   AND (i.timeline IS NULL OR i.timeline = @fn.timeline()));
END $$;

-- Returns whether the database is in this epoch. The answer true stays valid until the calling statement commits, as above.
CREATE FUNCTION @fn.in_epoch(p_epoch integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('holdfast.recovery', 0));
    RETURN EXISTS (SELECT FROM holdfast.installation WHERE epoch = p_epoch);
END $$;

-- Begins a recovery, because the database lost commits. The epoch grows above every epoch that was seen (`p_epoch`), and nothing
-- is given out, spawned or ended until pods and agents have been compared. If a recovery is already in progress, it starts again
-- only if `p_epoch` is not below the current epoch; otherwise this returns false.
CREATE FUNCTION @fn.begin_recovery(p_reason text, p_mark bigint, p_epoch integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    t timestamptz;
    h timestamptz;
    v_workers text[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.recovery', 0));
    IF NOT EXISTS (SELECT FROM holdfast.installation WHERE recovering_since IS NULL OR epoch <= p_epoch) THEN
        -- Several replicas may notice the same loss. The mark is raised to the highest that one of them saw, because otherwise
        -- that replica would take it for another loss after this recovery.
        UPDATE holdfast.hearing SET mark = greatest(mark, p_mark);
        RETURN false;
    END IF;
    t := holdfast.now();
    h := holdfast.heard();
    -- Leases start again, because their renewals may be among the lost commits. Rows are locked in the same order as when a claim
    -- ends (claims, the installation, workers; rows of one table by id), so that the two cannot deadlock.
    PERFORM FROM holdfast.claim WHERE state IN @claim.live ORDER BY id FOR UPDATE;
    UPDATE holdfast.claim SET lease_heard = h + lease WHERE state = 'active' AND lease IS NOT NULL;
    -- An assignment may have been delivered in a lost commit. It counts as delivered, because its worker may have received the
    -- tenant's data even if its agent does not report the claim any more.
    WITH c AS (UPDATE holdfast.claim SET progress_heard = h, delivered = true WHERE state = 'assigned' RETURNING worker_id)
    SELECT array_agg(worker_id) INTO v_workers FROM c;
    UPDATE holdfast.installation SET epoch = greatest(epoch, p_epoch) + 1, recovering_since = t, recovery_heard = h,
        recovery_reason = p_reason, recoveries = recoveries + 1;
    PERFORM FROM holdfast.worker WHERE id = ANY (v_workers) ORDER BY id FOR UPDATE;
    UPDATE holdfast.worker SET delivered = true WHERE id = ANY (v_workers);
    -- After an outage heard time falls back to the last beat, and reports that were stored since then would be later than
    -- `recovery_heard`. They would count as sent after the recovery began, so a worker that is cut off would be confirmed.
    PERFORM FROM holdfast.heartbeat WHERE beat_heard > h ORDER BY worker_id FOR UPDATE;
    UPDATE holdfast.heartbeat SET beat_heard = h WHERE beat_heard > h;
    UPDATE holdfast.hearing SET mark = greatest(mark, p_mark);
    INSERT INTO holdfast.event (at, kind, reason) VALUES (t, 'recovery.began', p_reason);
    RETURN true;
END $$;

-- Returns the highest fence that this database can have given.
CREATE FUNCTION @fn.last_fence() RETURNS bigint LANGUAGE sql AS $$
    SELECT (i.epoch::bigint << @FENCE_BITS) + f.last_value FROM holdfast.installation i, holdfast.fence f
$$;

-- Returns whether a database of this installation can have been in this epoch. A damaged stamp or mark must not raise the epoch,
-- because there are only 8191 of them.
CREATE FUNCTION @fn.can_be_epoch(p_epoch bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT p_epoch <= epoch + @EPOCH_MARGIN FROM holdfast.installation
$$;

-- Begins a recovery, because an agent or a pod has a fence that this database never gave. The high part of the fence is the epoch
-- in which it was given. Returns false for a damaged fence.
CREATE FUNCTION @fn.begin_by_fence(p_reason text, p_fence bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT CASE WHEN @fn.can_be_epoch(p_fence >> @FENCE_BITS)
        THEN @fn.begin_recovery(p_reason, (SELECT mark FROM holdfast.hearing), (p_fence >> @FENCE_BITS)::integer) ELSE false END
$$;

-- Begins a recovery if this database shows less than a replica has seen, or if it is another server than before. `p_mark` and
-- `p_epoch` are the highest that the replica has seen or has read from the copy outside the database.
CREATE FUNCTION @fn.notice(p_mark bigint, p_epoch integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    h holdfast.hearing;
    i holdfast.installation;
    v_system text;
    v_timeline integer;
BEGIN
    SELECT * INTO i FROM holdfast.installation;
    SELECT * INTO h FROM holdfast.hearing;
    IF NOT @fn.can_be_epoch(p_epoch) THEN
        p_epoch := 0;  -- the copy outside is damaged; its mark is compared all the same
    END IF;
    IF h.mark < p_mark OR i.epoch < p_epoch THEN
        PERFORM @fn.begin_recovery(format('the database shows mark %s of epoch %s, and mark %s of epoch %s was seen',
                                          h.mark, i.epoch, p_mark, p_epoch), p_mark, p_epoch);
    END IF;
    SELECT system_identifier::text INTO v_system FROM pg_control_system();
    v_timeline := @fn.timeline();
    IF (i.system_identifier, i.timeline) IS DISTINCT FROM (v_system, v_timeline) THEN
        IF i.system_identifier IS NOT NULL THEN
            PERFORM @fn.begin_recovery('the server''s identity or timeline changed: restored, or failed over',
                                       (SELECT mark FROM holdfast.hearing), i.epoch - 1);
        END IF;
        UPDATE holdfast.installation SET system_identifier = v_system, timeline = v_timeline;
    END IF;
END $$;

-- Compares what the replica has seen with the database, then stores its beat. The comparison comes first, because the beat raises
-- the mark and would hide the loss of one mark. Both are one transaction, because the replica may die between two.
CREATE FUNCTION @fn.compared_beat(p_mark bigint, p_epoch integer, p_replica text, p_elapsed float, p_term float, p_duties jsonb)
RETURNS TABLE (o_mark bigint, o_epoch integer, o_recovering boolean, o_terms jsonb) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @fn.notice(p_mark, p_epoch);
    RETURN QUERY SELECT * FROM @fn.beat(p_replica => p_replica, p_elapsed => p_elapsed, p_term => p_term, p_duties => p_duties);
END $$;

-- Compares the stamps on pods with the workers' rows, and begins a recovery if a stamp is ahead. If commits after the last mark
-- were lost, a stamp is their only trace. A stamp is written after its worker's row, and a row's fence only grows. So a stamp
-- that is ahead of its row proves that the commit with its assignment was lost. To compare stamps only with last_fence() would
-- not be enough, because after a crash the sequence itself may be ahead. A retiring worker is left out: it is never assigned again,
-- and if it retires because it served a claim of lost commits, its stamp is ahead until its pod is gone. Damaged
-- stamps are ignored.
CREATE FUNCTION @fn.compare_stamps(p_stamps jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    s record;
BEGIN
    SELECT t.* INTO s FROM jsonb_to_recordset(p_stamps) AS t(worker text, uid text, claim text, fence bigint)
    WHERE @fn.can_be_epoch(t.fence >> @FENCE_BITS) AND (t.fence > @fn.last_fence()
       OR EXISTS (SELECT FROM holdfast.worker w WHERE w.id = t.worker AND w.pod_uid = t.uid
                  AND w.state IN @worker.living AND coalesce(w.fence, 0) < t.fence))
    ORDER BY t.fence DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    RETURN @fn.begin_by_fence(
        format('pod %s is stamped for claim %s with a fence that this database did not give it', s.worker, s.claim), s.fence);
END $$;

-- Writes the claim and the worker as its pod and agent show them, because the database lost commits and has no row or an older
-- one. All checks come before the first write. Returns done or stale.
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
    -- Recovery must not end before this commits. Otherwise the claim would not have been compared with the others.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('holdfast.recovery', 0));
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
    -- An ended claim stays ended. If the claim or the worker has a later assignment, that one is valid, and this one is old.
    IF c.state = 'ended' OR c.fence > p_fence OR (c.state = 'waiting' AND c.fence = p_fence)
       OR (c.state = 'active' AND c.fence = p_fence AND c.worker_id = p_worker)
       OR w.fence > p_fence THEN
        RETURN 'stale';
    END IF;
    -- The worker's row shows another claim. The row is older than what the pod shows, so that claim has left this worker.
    IF w.claim_id <> p_claim THEN
        SELECT * INTO other FROM holdfast.claim WHERE id = w.claim_id FOR UPDATE;
        IF other.state IN @claim.requeue THEN
            -- The claim may have moved to another worker, on which it is adopted later in this recovery. So it waits until the
            -- end of the recovery. It stays `delivered`, because then it may have run, and end_recovery must end it.
            UPDATE holdfast.claim SET state = 'waiting', worker_id = NULL, offered = false, protected = NULL,
                progress_heard = NULL, assigned_at = NULL, reason = 'its worker was found to hold another claim'
            WHERE id = other.id;
            INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant, reason)
            VALUES (t, 'claim.requeued', other.pool_id, p_worker, other.id, other.tenant, 'its worker was found to hold another claim');
        ELSIF other.state IN @claim.live THEN
            -- Its worker took a later assignment, so this claim had ended in one of the ways of P2. Which way it was is lost.
            UPDATE holdfast.claim SET state = 'ended', outcome = 'lost', how = 'forgotten', ended_at = t, ended_heard = h,
                request = request - ARRAY['command', 'env', 'payload'],
                reason = 'its end was in commits that the database lost' WHERE id = other.id;
            INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant, reason, data)
            VALUES (t, 'claim.ended', other.pool_id, p_worker, other.id, other.tenant,
                    'its end was in commits that the database lost', '{"outcome": "lost", "how": "forgotten"}');
        END IF;
    END IF;
    -- The row of another worker may still show this claim.
    WITH left_behind AS (
        UPDATE holdfast.worker SET state = 'retiring', claim_id = NULL, held_from = NULL, version = version + 1, state_since = t,
            state_heard = h, reason = 'its claim was found on another worker'
        WHERE claim_id = p_claim AND id <> p_worker AND state IN @worker.spend RETURNING id, pool_id, reason
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
            true, true, false,  -- what its holder received is lost, so it is shown as unprotected until `converge` reads the pod
            v_lease, v_max, t, t, t, h, h + v_max, h + v_lease);
    ELSE
        UPDATE holdfast.claim SET state = 'active', worker_id = p_worker, fence = p_fence, active_at = coalesce(active_at, t),
            assigned_at = coalesce(assigned_at, t), max_heard = coalesce(max_heard, h + max_duration), offered = true,
            delivered = true, lease_heard = h + lease, reason = 'adopted after lost commits',
            protected = coalesce(protected, false)
        WHERE id = p_claim AND (state IN @claim.readopt OR state = 'active');
        DELETE FROM holdfast.claim_secret WHERE claim_id = p_claim;
    END IF;
    INSERT INTO holdfast.worker (id, pool_id, state, revision, epoch, claim_id, held_from, tenant, fence, delivered, created_at,
        state_since, state_heard, pod_uid, endpoint, ready)
    VALUES (p_worker, v_pool.id, 'held', p_revision, (SELECT epoch FROM holdfast.installation), p_claim, 'warm', p_tenant,
        p_fence, true, t, t, h, p_uid, p_endpoint, true)
    ON CONFLICT (id) DO UPDATE SET state = 'held', version = worker.version + 1, claim_id = p_claim, held_from = 'warm',
        tenant = p_tenant, fence = p_fence, delivered = true, state_since = t, state_heard = h, pod_uid = p_uid, ready = true,
        parked_since = NULL, parked_heard = NULL, park_ttl = NULL, reason = NULL, endpoint = coalesce(p_endpoint, worker.endpoint),
        unconfirmed_since = NULL
    WHERE worker.state IN @worker.rehold;
    INSERT INTO holdfast.event (at, kind, also, pool_id, worker_id, claim_id, tenant, reason)
    VALUES (t, 'claim.adopted', 'worker.adopted', v_pool.id, p_worker, p_claim, p_tenant, 'its pod or agent still holds it');
    RETURN 'done';
END $$;

-- Writes a row for a free pod that has none after lost commits. `p_spent` means that its agent has served a tenant, so it
-- retires. Returns done or stale.
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

-- Ends the recovery. A worker whose agent has not reported since it began is unconfirmed until the agent reports (`@confirmed`).
-- A claim that left its worker in lost commits and was found on no other worker ends as lost. Returns done or stale.
CREATE FUNCTION @fn.end_recovery() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    i holdfast.installation;
    t timestamptz := holdfast.now();
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.recovery', 0));
    -- Such a claim may have run, and work runs at most once (P8). Claims are locked before the installation, as everywhere.
    PERFORM @fn.end_claim(p_claim => c.id, p_fence => c.fence, p_tenant => NULL, p_states => ARRAY['waiting'], p_outcome => 'lost',
        p_how => 'forgotten', p_reason => 'its worker took another claim in commits that the database lost, so it may have run',
        p_exit => NULL, p_acting => true)
    FROM (SELECT id, fence FROM holdfast.claim WHERE state = 'waiting' AND delivered ORDER BY id) c;
    -- The row is locked as well, because a replica of the release before does not take the advisory lock.
    SELECT * INTO i FROM holdfast.installation WHERE recovering_since IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    UPDATE holdfast.installation SET recovering_since = NULL, recovered_at = t;
    UPDATE holdfast.worker w SET unconfirmed_since = coalesce(w.unconfirmed_since, t), version = version + 1
    FROM holdfast.pool p
    WHERE p.id = w.pool_id AND (
        -- The worker's agent has not reported since. A worker that the database shows as starting counts as well, because it
        -- may have become warm and got a claim in the lost commits. So does a worker that retires after a claim: its holder may
        -- have released the claim since the loss, or the claim was found on another worker, and its agent may hold a later one.
        ((p.spec #>> '{worker,agent}')::boolean AND (w.state IN @worker.living OR (w.state = 'retiring' AND w.tenant IS NOT NULL))
         AND NOT EXISTS (SELECT FROM holdfast.heartbeat u WHERE u.worker_id = w.id AND u.beat_heard > i.recovery_heard))
        -- The worker has no agent that could report whether it is free, so an operator decides. A missing stamp shows it only if
        -- the pool requires protection: otherwise the worker may have been given out unprotected, and then it has no stamp. A
        -- claim that is only assigned may have left its worker unused in the lost commits, so its worker counts as free.
        OR (NOT (p.spec #>> '{worker,agent}')::boolean
            AND (w.state IN ('spawning', 'warm')
                 OR EXISTS (SELECT FROM holdfast.claim c WHERE c.id = w.claim_id AND c.state = 'assigned'))
            AND NOT (p.spec #>> '{protection,mode}' = 'claim' AND (p.spec #>> '{protection,required}')::boolean)));
    PERFORM @fn.retire_spent(u.worker_id) FROM holdfast.heartbeat u WHERE u.reset_fence IS NOT NULL;
    INSERT INTO holdfast.event (at, kind, reason) VALUES (t, 'recovery.ended', 'pods and agents have been compared');
    RETURN 'done';
END $$;
