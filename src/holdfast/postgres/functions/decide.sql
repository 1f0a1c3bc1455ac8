-- An operator's decisions about workers that are unconfirmed after a recovery: the row is right, or the worker is given up.

-- Returns the claim that the worker's agent has reported since the recovery began, unless that claim has ended. The agent may
-- work for a claim that has no row.
CREATE FUNCTION @fn.reported_claim(p_worker text) RETURNS text LANGUAGE sql AS $$
    SELECT u.claim_id FROM holdfast.heartbeat u, holdfast.installation i
    WHERE u.worker_id = p_worker AND u.beat_heard > i.recovery_heard
      AND NOT EXISTS (SELECT FROM holdfast.claim c WHERE c.id = u.claim_id AND c.state = 'ended')
$$;

-- Returns whether the claim's worker may hold another claim than its row shows, because the database lost commits: its agent has
-- not reported since, or has reported another claim. Then the end of this claim must not end the worker (P2), and this claim may
-- have run (P8). A claim that was assigned after the recovery and not delivered cannot have run, so it may leave the worker.
CREATE FUNCTION @fn.may_hold_another(c holdfast.claim) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (SELECT FROM holdfast.worker w WHERE w.id = c.worker_id AND NOT @confirmed(w))
        OR (c.delivered AND coalesce(@fn.reported_claim(c.worker_id) <> c.id, false))
$$;

-- Stores an operator's decision that an unconfirmed worker is what its row shows. The pod of a retiring worker is deleted then, as
-- after giving it up. Returns done, stale, or busy if its agent has reported a claim that the row does not show.
CREATE FUNCTION @fn.confirm(p_worker text, p_reason text, p_actor jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    w holdfast.worker;
BEGIN
    SELECT * INTO w FROM holdfast.worker u WHERE u.id = p_worker AND u.state <> 'gone' AND NOT @confirmed(u) FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    IF @fn.reported_claim(p_worker) <> coalesce(w.claim_id, '') THEN
        RETURN 'busy';
    END IF;
    UPDATE holdfast.worker SET unconfirmed_since = NULL, suspect_since = NULL, version = version + 1 WHERE id = p_worker;
    INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant, reason, actor)
    VALUES (holdfast.now(), 'worker.confirmed', w.pool_id, w.id, w.claim_id, w.tenant, format('by an operator: %s', p_reason), p_actor);
    PERFORM pg_notify('holdfast', 'w ' || w.id);
    PERFORM pg_notify('holdfast', 'p ' || w.pool_id);
    RETURN 'done';
END $$;

-- Retires an unconfirmed worker by an operator's decision. Its claim goes back to the queue only if it was certainly never sent
-- to the worker, because the work must not run twice (P8). Otherwise the claim ends as lost, by force (P2). Returns done, stale,
-- frozen, or busy if its agent has reported a claim since the recovery began.
CREATE FUNCTION @fn.give_up(p_worker text, p_reason text, p_actor jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    w holdfast.worker;
    c holdfast.claim;
    v_did text;
    v_reason text := format('its worker was given up by an operator: %s', p_reason);
BEGIN
    -- The claim is locked before its worker, as everywhere. After that the worker must still have this claim.
    SELECT * INTO c FROM holdfast.claim WHERE id = (SELECT claim_id FROM holdfast.worker WHERE id = p_worker) FOR UPDATE;
    SELECT * INTO w FROM holdfast.worker u WHERE u.id = p_worker AND u.state <> 'gone'
        AND NOT @confirmed(u) AND u.claim_id IS NOT DISTINCT FROM c.id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    IF @fn.reported_claim(p_worker) IS NOT NULL THEN
        RETURN 'busy';
    END IF;
    IF w.state = 'retiring' THEN
        v_did := 'done';
    ELSIF c.id IS NULL THEN
        v_did := @fn.condemn(p_worker => p_worker, p_version => NULL, p_reason => format('given up by an operator: %s', p_reason),
                             p_counted => false, p_dead => false, p_floor => NULL, p_actor => p_actor);
    ELSIF c.state = 'assigned' AND NOT c.delivered THEN
        v_did := @fn.requeue(p_claim => c.id, p_fence => c.fence, p_keep_worker => false, p_suspect => false, p_dead => false,
                             p_untouched => false, p_idle => NULL, p_reason => v_reason, p_actor => p_actor);
    ELSE
        SELECT o_what INTO v_did FROM @fn.end_claim(p_claim => c.id, p_fence => c.fence, p_tenant => NULL,
            p_states => ARRAY['assigned', 'active'], p_outcome => 'lost', p_how => 'force', p_reason => v_reason, p_exit => NULL,
            p_acting => true, p_actor => p_actor);
    END IF;
    IF v_did = 'done' THEN
        UPDATE holdfast.worker u SET unconfirmed_since = NULL, version = version + 1 WHERE u.id = p_worker AND NOT @confirmed(u);
        INSERT INTO holdfast.event (at, kind, pool_id, worker_id, claim_id, tenant, reason, actor)
        VALUES (holdfast.now(), 'worker.given_up', w.pool_id, w.id, c.id, w.tenant, format('by an operator: %s', p_reason), p_actor);
    END IF;
    RETURN v_did;
END $$;
