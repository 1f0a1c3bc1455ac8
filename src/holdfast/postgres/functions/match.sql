-- The claim path: take in a batch of requests, order fairly, pair with free workers, assign.
-- Functions belong to the release that wrote them (see decisions/0003), so old and new replicas never share one.

-- Bind claims to workers, pair by pair. A claim that was cancelled meanwhile simply stays out, and so does its worker.
CREATE FUNCTION @fn.assign(p_pool text, p_claims text[], p_workers text[])
RETURNS TABLE (o_claim text, o_worker text, o_fence bigint, o_uid text, o_tenant text)
LANGUAGE sql AS $$
    WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
    pair AS (SELECT * FROM unnest(p_claims, p_workers) AS p(claim_id, worker_id)),
    c AS (
        UPDATE holdfast.claim AS claim
        SET state = 'assigned',
            worker_id = pair.worker_id,
            -- Not joined: a table without statistics counts as hundreds of rows, and the plan below would read every worker.
            fence = ((SELECT epoch FROM holdfast.installation)::bigint << @FENCE_BITS) + nextval('holdfast.fence'),
            attempts = claim.attempts + 1,
            reason = '',
            offered = false,
            delivered = false,
            protected = NULL,
            assigned_at = clock.t,
            progress_heard = clock.h
        FROM pair, clock
        WHERE claim.id = pair.claim_id AND claim.state IN @claim.assign
        RETURNING claim.id, claim.worker_id, claim.fence, claim.tenant
    ), w AS (
        UPDATE holdfast.worker AS worker
        SET state = 'held', version = worker.version + 1, held_from = worker.state, claim_id = c.id, tenant = c.tenant,
            fence = c.fence, delivered = false, state_since = clock.t, state_heard = clock.h
        FROM c, clock
        WHERE worker.id = c.worker_id AND worker.state IN @worker.hold
        RETURNING c.id, c.worker_id, c.fence, worker.pod_uid, c.tenant
    ), e AS (
        INSERT INTO holdfast.event (at, kind, also, pool_id, worker_id, claim_id, tenant)
        SELECT clock.t, 'claim.assigned', 'worker.held', p_pool, c.worker_id, c.id, c.tenant
        FROM c, clock
    )
    SELECT * FROM w
$$;

-- How many more claims a tenant may have live. Exact only under the lock on caps, which the caller takes first.
CREATE FUNCTION @fn.room(p_tenant text) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN t.max_claims IS NULL THEN 1000000000
                ELSE t.max_claims - (SELECT count(*) FROM holdfast.claim
                                     WHERE tenant = p_tenant AND state IN @claim.live) END
    FROM (SELECT (SELECT max_claims FROM holdfast.tenant WHERE name = p_tenant)) AS t(max_claims)
$$;

CREATE FUNCTION @fn.take_in(p_pool text, p_new jsonb) RETURNS void LANGUAGE sql AS $$
    WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
    asked AS (
        SELECT r.*, least(r.priority, coalesce(t.max_priority, 0))::smallint AS granted,
               1000000 / coalesce(t.weight, 1) AS cost
        FROM jsonb_to_recordset(p_new) AS r(ord integer, id text, tenant text, key text, hash text, request jsonb,
             priority integer, lease float, max_duration float, deadline float, park_ttl float, retry text, secrets jsonb)
        LEFT JOIN holdfast.tenant t ON t.name = r.tenant
    ), tagged AS (
        -- Behind what it was served and what it still has waiting; what was cancelled or refused costs it nothing.
        SELECT a.*, greatest(coalesce(f.tag, 0), coalesce(v.tag, 0), coalesce((
                        SELECT c.tag + a.cost FROM holdfast.claim c WHERE c.pool_id = p_pool AND c.tenant = a.tenant
                        AND c.priority = a.granted AND c.state = 'waiting' ORDER BY c.tag DESC LIMIT 1), 0))
                    + (row_number() OVER (PARTITION BY a.tenant, a.granted ORDER BY a.ord) - 1) * a.cost AS tag
        FROM asked a
        LEFT JOIN holdfast.fair f ON f.pool_id = p_pool AND f.priority = a.granted AND f.tenant = a.tenant
        LEFT JOIN holdfast.fair v ON v.pool_id = p_pool AND v.priority = a.granted AND v.tenant = ''
    ), made AS (
        INSERT INTO holdfast.claim (id, pool_id, tenant, key, key_live, request_hash, request, state, priority, tag, retry,
                                    secret, lease, max_duration, park_ttl, created_at, patience, deadline_heard)
        SELECT g.id, p_pool, g.tenant, g.key, g.key IS NOT NULL, g.hash, g.request, 'waiting', g.granted, g.tag, g.retry,
               g.secrets IS NOT NULL,
               make_interval(secs => g.lease), make_interval(secs => g.max_duration), make_interval(secs => g.park_ttl),
               clock.t, make_interval(secs => g.deadline), clock.h + make_interval(secs => g.deadline)
        FROM tagged g, clock
        ON CONFLICT DO NOTHING
        RETURNING id, tenant, priority, tag
    ), kept AS (
        INSERT INTO holdfast.claim_secret (claim_id, secrets)
        SELECT g.id, g.secrets FROM tagged g JOIN made USING (id) WHERE g.secrets IS NOT NULL
    )
    INSERT INTO holdfast.event (at, kind, pool_id, claim_id, tenant)
    SELECT clock.t, 'claim.created', p_pool, m.id, m.tenant FROM made m, clock
$$;

-- What is served is charged: the tenant's next tag comes after it, and the pool's virtual time (tenant '') moves up to it, each
-- for one priority by itself.
CREATE FUNCTION @fn.charge(p_pool text, p_claims text[]) RETURNS void LANGUAGE sql AS $$
    WITH served AS (
        SELECT c.priority, c.tenant, max(c.tag) AS tag, 1000000 / coalesce(max(t.weight), 1) AS cost
        FROM holdfast.claim c LEFT JOIN holdfast.tenant t ON t.name = c.tenant WHERE c.id = ANY (p_claims) GROUP BY 1, 2
    )
    INSERT INTO holdfast.fair (pool_id, priority, tenant, tag)
    SELECT p_pool, priority, tenant, tag + cost FROM served
    UNION ALL SELECT p_pool, priority, '', max(tag) FROM served GROUP BY priority
    ON CONFLICT (pool_id, priority, tenant) DO UPDATE SET tag = greatest(fair.tag, excluded.tag)
$$;

-- The waiting claims that come first. With tenants at their cap, a walk over tenants: what waits behind a cap must not
-- be read again by every batch.
CREATE FUNCTION @fn.first_waiting(p_pool text, p_full text[], p_limit integer)
RETURNS TABLE (o_id text, o_tenant text, o_priority smallint, o_tag bigint) LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(p_full) = 0 THEN
        RETURN QUERY SELECT id, tenant, priority, tag FROM holdfast.claim
            WHERE pool_id = p_pool AND state = 'waiting' ORDER BY priority DESC, tag, id LIMIT p_limit;
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE tenants AS (
        (SELECT tenant FROM holdfast.claim WHERE pool_id = p_pool AND state = 'waiting' ORDER BY tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT c.tenant FROM holdfast.claim c
                WHERE c.pool_id = p_pool AND c.state = 'waiting' AND c.tenant > tenants.tenant ORDER BY c.tenant LIMIT 1)
        FROM tenants WHERE tenants.tenant IS NOT NULL
    )
    SELECT c.id, c.tenant, c.priority, c.tag FROM tenants CROSS JOIN LATERAL (
        SELECT w.id, w.tenant, w.priority, w.tag FROM holdfast.claim w
        WHERE w.pool_id = p_pool AND w.tenant = tenants.tenant AND w.state = 'waiting'
        ORDER BY w.priority DESC, w.tag, w.id LIMIT p_limit) c
    WHERE tenants.tenant <> ALL (p_full) ORDER BY c.priority DESC, c.tag, c.id LIMIT p_limit;
END $$;

-- One batch of one pool. `o_what` is new, same, other or closed for each request, and assigned for each pair. Without
-- `p_acting`, requests are stored and wait.
-- Everything here is a few rows by an index, whatever the statistics say. Otherwise the planner plans each LIMIT again on every call
-- (40 % of a claim's CPU), and on tables that were small when last analyzed it hashes all workers to update one.
CREATE FUNCTION @fn.match(p_pool text, p_new jsonb, p_limit integer, p_acting boolean)
RETURNS TABLE (o_what text, o_claim text, o_worker text, o_fence bigint, o_uid text, o_tenant text)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off AS $$
DECLARE
    v_pool holdfast.pool;
    v_capped boolean := false;
    v_full text[] := '{}';
    v_left integer := p_limit;
    v_free text[];
    v_claims text[];
    v_workers text[];
    v_slice integer;
    v_ids text[];
    v_tenants text[];
    r record;
BEGIN
    -- A statement that locks and reads in one go reads from before the lock; the next statement does not.
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.pool.' || p_pool, 0));
    SELECT * INTO v_pool FROM holdfast.pool WHERE id = p_pool AND state = 'live';
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'closed', n.id, NULL::text, NULL::bigint, NULL::text, NULL::text
            FROM jsonb_to_recordset(p_new) AS n(id text);
        RETURN;
    END IF;
    IF jsonb_array_length(p_new) > 0 THEN
        PERFORM @fn.take_in(p_pool, p_new);
        -- Same id: this very batch, sent again after an unknown commit. Same key: the same request, or another one.
        RETURN QUERY
            SELECT CASE WHEN c.id = n.id THEN 'new' WHEN c.request_hash = n.hash THEN 'same' ELSE 'other' END,
                   n.id, c.id, NULL::bigint, NULL::text, NULL::text
            FROM jsonb_to_recordset(p_new) AS n(id text, tenant text, key text, hash text)
            CROSS JOIN LATERAL (
                SELECT id, request_hash FROM holdfast.claim WHERE id = n.id
                UNION ALL
                SELECT id, request_hash FROM holdfast.claim
                WHERE n.key IS NOT NULL AND key_live AND tenant = n.tenant AND key = n.key AND id <> n.id
            ) AS c;
    END IF;
    IF NOT p_acting OR EXISTS (SELECT FROM holdfast.installation WHERE stopping) THEN
        RETURN;
    END IF;
    -- First, each tenant's own parked workers. A row that is being written is waited for: skipped, its tenant would lose it.
    IF EXISTS (SELECT FROM holdfast.worker WHERE pool_id = p_pool AND state = 'parked') THEN
        IF EXISTS (SELECT FROM holdfast.worker w JOIN holdfast.tenant t ON t.name = w.tenant
                   WHERE w.pool_id = p_pool AND w.state = 'parked' AND t.max_claims IS NOT NULL) THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.caps', 0));
            v_capped := true;
        END IF;
        SELECT array_agg(c.id), array_agg(w.id) INTO v_claims, v_workers
        FROM (SELECT id, tenant, row_number() OVER (PARTITION BY tenant ORDER BY parked_since DESC, id) AS n
              FROM (SELECT p.id, p.tenant, p.parked_since FROM holdfast.worker p
                    WHERE p.pool_id = p_pool AND p.state = 'parked' AND @free(p)
                      AND EXISTS (SELECT FROM holdfast.claim c
                                  WHERE c.pool_id = p_pool AND c.tenant = p.tenant AND c.state = 'waiting')
                    ORDER BY p.id LIMIT p_limit FOR UPDATE) AS free) AS w
        CROSS JOIN LATERAL (SELECT c.id FROM holdfast.claim c
                            WHERE c.pool_id = p_pool AND c.tenant = w.tenant AND c.state = 'waiting'
                            ORDER BY c.priority DESC, c.tag, c.id OFFSET w.n - 1 LIMIT 1) AS c
        WHERE w.n <= @fn.room(w.tenant);
        IF v_claims IS NOT NULL THEN
            PERFORM @fn.charge(p_pool, v_claims);
            FOR r IN SELECT * FROM @fn.assign(p_pool, v_claims, v_workers) LOOP
                v_left := v_left - 1;
                RETURN QUERY SELECT 'assigned', r.o_claim, r.o_worker, r.o_fence, r.o_uid, r.o_tenant;
            END LOOP;
        END IF;
    END IF;

    -- Then the warm ones, newest revision first, in the fair order.
    LOOP
        EXIT WHEN v_left <= 0;
        -- Read once: what is judged below is exactly what is assigned, and the walk along the queue is paid once a batch.
        SELECT array_agg(s.o_id), array_agg(s.o_tenant) INTO v_ids, v_tenants FROM @fn.first_waiting(p_pool, v_full, v_left) s;
        EXIT WHEN v_ids IS NULL;
        v_slice := cardinality(v_ids);
        -- Two walks along an index: one ORDER BY over both would read and sort every free worker of the pool.
        SELECT array_agg(id) INTO v_free FROM (
            SELECT f.id FROM holdfast.worker f
            WHERE f.pool_id = p_pool AND f.revision = v_pool.revision AND f.state = 'warm' AND @free(f)
            ORDER BY f.state_since, f.id LIMIT v_slice FOR UPDATE SKIP LOCKED) w;
        IF coalesce(cardinality(v_free), 0) < v_slice THEN
            SELECT v_free || array_agg(id) INTO v_free FROM (
                SELECT f.id FROM holdfast.worker f
                WHERE f.pool_id = p_pool AND f.revision <> v_pool.revision AND f.state = 'warm' AND @free(f)
                ORDER BY f.state_since, f.id LIMIT v_slice - coalesce(cardinality(v_free), 0) FOR UPDATE SKIP LOCKED) w;
        END IF;
        EXIT WHEN v_free IS NULL;
        v_slice := cardinality(v_free);
        IF NOT v_capped AND EXISTS (SELECT FROM holdfast.tenant
                                    WHERE name = ANY (v_tenants[1:v_slice]) AND max_claims IS NOT NULL) THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.caps', 0));
            v_capped := true;
        END IF;
        WITH s AS (
            SELECT u.id, u.tenant, u.ord, row_number() OVER (PARTITION BY u.tenant ORDER BY u.ord) AS nth
            FROM unnest(v_ids[1:v_slice], v_tenants[1:v_slice]) WITH ORDINALITY AS u(id, tenant, ord)
        ), room AS MATERIALIZED (
            SELECT d.tenant, CASE WHEN v_capped THEN @fn.room(d.tenant) ELSE 1000000000 END AS n
            FROM (SELECT DISTINCT s.tenant FROM s) d
        )
        SELECT array_agg(s.id ORDER BY s.ord) FILTER (WHERE s.nth <= room.n),
               v_full || coalesce(array_agg(DISTINCT s.tenant) FILTER (WHERE s.nth > room.n), '{}')
        INTO v_claims, v_full
        FROM s JOIN room USING (tenant);
        IF v_claims IS NOT NULL THEN
            PERFORM @fn.charge(p_pool, v_claims);
            FOR r IN SELECT * FROM @fn.assign(p_pool, v_claims, v_free[1:cardinality(v_claims)]) LOOP
                v_left := v_left - 1;
                RETURN QUERY SELECT 'assigned', r.o_claim, r.o_worker, r.o_fence, r.o_uid, r.o_tenant;
            END LOOP;
        END IF;
        -- Again only where tenants at their cap stood in front of others.
        EXIT WHEN v_claims IS NOT NULL AND cardinality(v_claims) = v_slice;
        EXIT WHEN cardinality(v_full) = 0;
    END LOOP;
END $$;
