-- Store several pools and tenants as a whole.

-- Creates or changes all of these pools and tenants, or none of them. Each pool names what the caller's checks saw: the id and the
-- generation of the live pool with this name, or null. If one of them is another pool now or has changed since, nothing is stored
-- and no row is returned, because the checks may give another result now.
CREATE FUNCTION @fn.apply(p_pools jsonb, p_tenants jsonb, p_actor jsonb)
RETURNS TABLE (o_kind text, o_name text, o_what text) LANGUAGE plpgsql AS $$
DECLARE
    v_names text[] := ARRAY(SELECT n ->> 'name' FROM jsonb_array_elements(p_pools) AS n ORDER BY 1);
    v_name text;
    v record;
BEGIN
    -- Names first and in their order, then rows in the order of their ids, so that two calls with the same pools cannot deadlock.
    FOREACH v_name IN ARRAY v_names LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.name.' || v_name, 0));
    END LOOP;
    PERFORM FROM holdfast.pool WHERE name = ANY (v_names) AND state = 'live' ORDER BY id FOR UPDATE;
    IF EXISTS (SELECT FROM jsonb_to_recordset(p_pools) AS n(name text, seen_id text, seen_generation integer)
               LEFT JOIN holdfast.pool p ON p.name = n.name AND p.state = 'live'
               WHERE p.id IS DISTINCT FROM n.seen_id OR p.generation IS DISTINCT FROM n.seen_generation OR p.source <> 'api') THEN
        RETURN;
    END IF;
    FOR v IN SELECT * FROM jsonb_to_recordset(p_pools) AS n(name text, id text, spec jsonb, revision text) ORDER BY n.name LOOP
        RETURN QUERY SELECT 'WorkerPool', v.name, put.o_what FROM @fn.put_pool(
            p_id => v.id, p_name => v.name, p_spec => v.spec, p_revision => v.revision, p_source => 'api', p_actor => p_actor) AS put;
    END LOOP;
    FOR v IN SELECT * FROM jsonb_to_recordset(p_tenants) AS n(name text, weight integer, max_claims integer, max_priority integer,
             park_ttl float, max_waiting integer, max_output_bytes bigint) ORDER BY n.name LOOP
        RETURN QUERY SELECT 'Tenant', v.name, @fn.put_tenant(p_name => v.name, p_weight => v.weight, p_max_claims => v.max_claims,
            p_max_priority => v.max_priority, p_park_ttl => make_interval(secs => v.park_ttl), p_max_waiting => v.max_waiting,
            p_max_output_bytes => v.max_output_bytes, p_actor => p_actor);
    END LOOP;
END $$;

-- Creates or changes a tenant's limits; the last write wins. Equal limits change nothing and write no event.
CREATE FUNCTION @fn.put_tenant(p_name text, p_weight integer, p_max_claims integer, p_max_priority integer, p_park_ttl interval,
                               p_max_waiting integer, p_max_output_bytes bigint, p_actor jsonb)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_what text := 'created';
    t timestamptz := holdfast.now();
BEGIN
    INSERT INTO holdfast.tenant (name, weight, max_claims, max_priority, park_ttl, max_waiting, max_output_bytes, updated_at)
    VALUES (p_name, p_weight, p_max_claims, p_max_priority, p_park_ttl, p_max_waiting, p_max_output_bytes, t)
    ON CONFLICT (name) DO NOTHING;
    IF NOT FOUND THEN
        UPDATE holdfast.tenant SET weight = p_weight, max_claims = p_max_claims, max_priority = p_max_priority,
            park_ttl = p_park_ttl, max_waiting = p_max_waiting, max_output_bytes = p_max_output_bytes, updated_at = t
        WHERE name = p_name AND (weight, max_claims, max_priority, park_ttl, max_waiting, max_output_bytes)
            IS DISTINCT FROM (p_weight, p_max_claims, p_max_priority, p_park_ttl, p_max_waiting, p_max_output_bytes);
        IF NOT FOUND THEN
            RETURN 'same';
        END IF;
        v_what := 'changed';
    END IF;
    INSERT INTO holdfast.event (at, kind, tenant, actor) VALUES (t, 'tenant.' || v_what, p_name, p_actor);
    RETURN v_what;
END $$;
