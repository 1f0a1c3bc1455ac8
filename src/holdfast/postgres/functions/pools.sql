-- Store pools as users write them.

-- Creates or changes a pool; the last write wins. An unchanged spec changes nothing, not even the generation. The name is locked
-- before the pool is read, so that if two callers create it at the same time, exactly one of them gets `created`.
CREATE FUNCTION @fn.put_pool(p_id text, p_name text, p_spec jsonb, p_revision text, p_source text,
                             p_actor jsonb DEFAULT NULL)
RETURNS TABLE (o_id text, o_what text) LANGUAGE plpgsql AS $$
DECLARE
    was holdfast.pool;
    t timestamptz := holdfast.now();
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.name.' || p_name, 0));
    SELECT * INTO was FROM holdfast.pool WHERE name = p_name AND state = 'live' FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO holdfast.pool (id, name, spec, revision, source, created_at, updated_at)
        VALUES (p_id, p_name, p_spec, p_revision, p_source, t, t)
        -- The pool's Kubernetes object belonged to another installation for a while, so the pool was drained. It is live again.
        ON CONFLICT (id) DO UPDATE SET state = 'live', spec = p_spec, revision = p_revision, generation = pool.generation + 1,
            frozen = NULL, failures = 0, backoff_until = NULL, trouble = NULL, updated_at = t, activation_failing = '{}',
            activation_backoffs = 0, activation_heard = NULL, activation_trouble = NULL
        WHERE p_source = 'cr' AND pool.state = 'gone';
        IF NOT FOUND THEN  -- the old pool still drains
            RETURN QUERY SELECT p_id, 'taken';
            RETURN;
        END IF;
        INSERT INTO holdfast.event (at, kind, pool_id, actor) VALUES (t, 'pool.created', p_id, p_actor);
        PERFORM pg_notify('holdfast', 'p ' || p_id);
        RETURN QUERY SELECT p_id, 'created';
        RETURN;
    END IF;
    -- A pool is managed by its Kubernetes object or by the API, never by both. Another object with the same name is another pool.
    IF was.source <> p_source OR (p_source = 'cr' AND was.id <> p_id) THEN
        RETURN QUERY SELECT was.id, 'taken';
        RETURN;
    END IF;
    IF was.spec = p_spec THEN
        RETURN QUERY SELECT was.id, 'same';
        RETURN;
    END IF;
    UPDATE holdfast.pool SET spec = p_spec, revision = p_revision, generation = generation + 1, updated_at = t,
        -- A new revision starts without backoff, because the old failures may not apply to it.
        failures = CASE WHEN revision <> p_revision THEN 0 ELSE failures END,
        backoff_until = CASE WHEN revision <> p_revision THEN NULL ELSE backoff_until END,
        trouble = CASE WHEN revision <> p_revision THEN NULL ELSE trouble END
    WHERE id = was.id;
    PERFORM @fn.clear_failing(was.id) WHERE was.revision <> p_revision;
    INSERT INTO holdfast.event (at, kind, pool_id, reason, actor)
    VALUES (t, 'pool.changed', was.id, CASE WHEN was.revision <> p_revision THEN 'new revision ' || p_revision ELSE '' END, p_actor);
    PERFORM pg_notify('holdfast', 'p ' || was.id);
    RETURN QUERY SELECT was.id, 'changed';
END $$;
