-- The claim path: store a batch of requests, order the queue fairly, pair waiting claims with free workers, assign them.
-- Functions belong to the release that created them (see decisions/0003), so old and new replicas never share a function.

-- Assigns each claim to the worker at the same position. A pair is skipped if its claim was cancelled in the meantime.
CREATE FUNCTION @fn.assign(p_pool text, p_claims text[], p_workers text[])
RETURNS TABLE (o_claim text, o_worker text, o_fence bigint, o_uid text, o_tenant text)
LANGUAGE sql AS $$
    WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
    pair AS (SELECT * FROM unnest(p_claims, p_workers) AS p(claim_id, worker_id)),
    c AS (
        UPDATE holdfast.claim AS claim
        SET state = 'assigned',
            worker_id = pair.worker_id,
            -- A subquery, not a join: the planner expects hundreds of rows of a table without statistics, and would then plan
            -- to read every worker below.
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

-- Returns how many more live claims the tenant may have. This is exact only if the caller holds the lock 'holdfast.caps'.
CREATE FUNCTION @fn.room(p_tenant text) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN t.max_claims IS NULL THEN 1000000000
                ELSE t.max_claims - (SELECT count(*) FROM holdfast.claim
                                     WHERE tenant = p_tenant AND state IN @claim.live) END
    FROM (SELECT (SELECT max_claims FROM holdfast.tenant WHERE name = p_tenant)) AS t(max_claims)
$$;

-- Returns the requests that exceed their tenant's `max_waiting`. A request that is already stored, by its id or its key, is not
-- among them. Batches of this pool cannot be stored at the same time, because the caller has the pool's lock. Each other pool may be
-- storing one batch. If these could exceed the limit together, the tenant's lock is taken and its claims are counted again.
CREATE FUNCTION @fn.exceeding(p_pool text, p_new jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_elsewhere bigint := (SELECT count(*) FROM holdfast.pool WHERE state = 'live' AND id <> p_pool) * @BATCH;
    v_room bigint;
    v_exceeding text[] := '{}';
    r record;
BEGIN
    -- In the order of their names, so that two batches with the same tenants cannot deadlock.
    FOR r IN SELECT n.tenant, count(*) AS n, coalesce(max(t.max_waiting), @MAX_WAITING) AS most
             FROM jsonb_to_recordset(p_new) AS n(tenant text) LEFT JOIN holdfast.tenant t ON t.name = n.tenant GROUP BY 1 ORDER BY 1 LOOP
        v_room := r.most - @fn.waiting_claims(r.tenant, r.most);
        IF v_elsewhere > 0 AND v_room < r.n + v_elsewhere THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.queue.' || r.tenant, 0));
            v_room := r.most - @fn.waiting_claims(r.tenant, r.most);
        END IF;
        IF v_room < r.n THEN
            v_exceeding := v_exceeding || ARRAY(
                SELECT n.id FROM jsonb_to_recordset(p_new) AS n(ord integer, id text, tenant text, key text)
                WHERE n.tenant = r.tenant AND NOT EXISTS (SELECT FROM holdfast.claim c WHERE c.id = n.id)
                  AND NOT EXISTS (SELECT FROM holdfast.claim c WHERE c.key_live AND c.tenant = n.tenant AND c.key = n.key)
                ORDER BY n.ord OFFSET greatest(0, v_room));
        END IF;
    END LOOP;
    RETURN v_exceeding;
END $$;

-- Returns how many claims of the tenant wait in all pools, at most `p_most`. It counts per pool, because that is what an index serves.
CREATE FUNCTION @fn.waiting_claims(p_tenant text, p_most bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM (
        SELECT FROM holdfast.pool p JOIN holdfast.claim c ON c.pool_id = p.id AND c.tenant = p_tenant AND c.state = 'waiting'
        WHERE p.state <> 'gone' LIMIT p_most) AS w
$$;

-- Stores new requests, except those in `p_not`, as waiting claims with their place in the fair order. It skips a request whose id or
-- key is already stored.
CREATE FUNCTION @fn.take_in(p_pool text, p_new jsonb, p_not text[]) RETURNS void LANGUAGE sql AS $$
    WITH clock AS (SELECT holdfast.now() AS t, holdfast.heard() AS h),
    requested AS (
        SELECT r.*, least(r.priority, coalesce(t.max_priority, 0))::smallint AS granted,
               1000000 / coalesce(t.weight, 1) AS cost
        FROM jsonb_to_recordset(p_new) AS r(ord integer, id text, tenant text, key text, hash text, request jsonb,
             priority integer, lease float, max_duration float, deadline float, park_ttl float, retry text, secrets jsonb,
             actor jsonb, labels jsonb, lease_chosen boolean, max_chosen boolean)
        LEFT JOIN holdfast.tenant t ON t.name = r.tenant WHERE r.id <> ALL (p_not)
    ), tagged AS (
        -- A claim's tag is its place in the fair order (decision 0004). It comes after the tenant's served claims and after its claims that still wait. A claim that was cancelled or
        -- refused does not move it.
        SELECT a.*, greatest(0, f.tag, v.tag, (
                        SELECT c.tag + a.cost FROM holdfast.claim c WHERE c.pool_id = p_pool AND c.tenant = a.tenant
                        AND c.priority = a.granted AND c.state = 'waiting' ORDER BY c.tag DESC LIMIT 1))
                    + (row_number() OVER (PARTITION BY a.tenant, a.granted ORDER BY a.ord) - 1) * a.cost AS tag
        FROM requested a
        LEFT JOIN holdfast.fair f ON f.pool_id = p_pool AND f.priority = a.granted AND f.tenant = a.tenant
        LEFT JOIN holdfast.fair v ON v.pool_id = p_pool AND v.priority = a.granted AND v.tenant = ''
    ), made AS (
        INSERT INTO holdfast.claim (id, pool_id, tenant, key, key_live, request_hash, request, state, priority, tag, retry,
                                    secret, lease, max_duration, park_ttl, created_at, patience, deadline_heard, requested_priority,
                                    labels, lease_chosen, max_chosen)
        SELECT g.id, p_pool, g.tenant, g.key, g.key IS NOT NULL, g.hash, g.request, 'waiting', g.granted, g.tag, g.retry,
               g.secrets IS NOT NULL,
               make_interval(secs => g.lease), make_interval(secs => g.max_duration), make_interval(secs => g.park_ttl),
               clock.t, make_interval(secs => g.deadline), clock.h + make_interval(secs => g.deadline),
               CASE WHEN g.priority > g.granted THEN g.priority END, g.labels, g.lease_chosen, g.max_chosen
        FROM tagged g, clock
        -- In one order for all pools. Otherwise two batches with the same keys could wait for each other's.
        ORDER BY g.tenant, g.key
        ON CONFLICT DO NOTHING
        RETURNING id, tenant, priority, tag
    ), kept AS (
        INSERT INTO holdfast.claim_secret (claim_id, secrets)
        SELECT g.id, g.secrets FROM tagged g JOIN made USING (id) WHERE g.secrets IS NOT NULL
    )
    INSERT INTO holdfast.event (at, kind, pool_id, claim_id, tenant, actor)
    SELECT clock.t, 'claim.created', p_pool, m.id, m.tenant, g.actor FROM made m JOIN tagged g USING (id), clock
$$;

-- Charges the served claims to their tenants. The tenant's next tag comes after them, and the pool's virtual time (tenant '')
-- moves up to them. Each priority is charged separately.
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

-- Returns the waiting claims that come first. A claim past its deadline is left out, because `deadlines` refuses it, and so is a
-- claim whose activation failed, until its backoff is over. If some
-- tenants are at their cap (`p_full`), it reads the queue tenant by tenant, because otherwise every batch would read all claims that wait behind a cap.
CREATE FUNCTION @fn.first_waiting(p_pool text, p_full text[], p_limit integer)
RETURNS TABLE (o_id text, o_tenant text, o_priority smallint, o_tag bigint) LANGUAGE plpgsql AS $$
DECLARE
    h timestamptz := holdfast.heard();
BEGIN
    IF cardinality(p_full) = 0 THEN
        RETURN QUERY SELECT id, tenant, priority, tag FROM holdfast.claim
            WHERE pool_id = p_pool AND state = 'waiting' AND deadline_heard > h AND coalesce(not_before_heard <= h, true)
            ORDER BY priority DESC, tag, id LIMIT p_limit;
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
        WHERE w.pool_id = p_pool AND w.tenant = tenants.tenant AND w.state = 'waiting' AND w.deadline_heard > h
          AND coalesce(w.not_before_heard <= h, true)
        ORDER BY w.priority DESC, w.tag, w.id LIMIT p_limit) c
    WHERE tenants.tenant <> ALL (p_full) ORDER BY c.priority DESC, c.tag, c.id LIMIT p_limit;
END $$;

-- Stores and matches one batch of one pool. `o_what` is new, same, other, full or closed for each request, and assigned for each pair.
-- For a request, `o_claim` is its own id and `o_worker` the id of the claim that stands for it.
-- If `p_acting` is false, requests are stored and wait.
-- The planner settings force index scans, because every step here reads only a few rows. Without them the planner plans each
-- LIMIT again on every call (40 % of a claim's CPU), and if the tables were small when last analyzed, it hashes all workers to
-- update one.
CREATE FUNCTION @fn.match(p_pool text, p_new jsonb, p_limit integer, p_acting boolean)
RETURNS TABLE (o_what text, o_claim text, o_worker text, o_fence bigint, o_uid text, o_tenant text)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off AS $$
DECLARE
    v_pool holdfast.pool;
    h timestamptz := holdfast.heard();
    v_exceeding text[];
    v_caps_locked boolean := false;
    v_full text[] := '{}';
    v_left integer;
    v_free text[];
    v_claims text[];
    v_workers text[];
    v_slice integer;
    v_ids text[];
    v_tenants text[];
    r record;
BEGIN
    -- The lock and the read are two statements, because a statement's snapshot is taken before it waits for the lock.
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.pool.' || p_pool, 0));
    SELECT * INTO v_pool FROM holdfast.pool WHERE id = p_pool AND state = 'live';
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'closed', n.id, NULL::text, NULL::bigint, NULL::text, NULL::text
            FROM jsonb_to_recordset(p_new) AS n(id text);
        RETURN;
    END IF;
    IF jsonb_array_length(p_new) > 0 THEN
        v_exceeding := @fn.exceeding(p_pool, p_new);
        PERFORM @fn.take_in(p_pool, p_new, v_exceeding);
        -- The same id means that this batch was sent again, because the result of its first commit was unknown. The same key
        -- means the same request or another one, which the hash shows. The release before stored another hash of a request with
        -- secrets; it is compared for one release.
        RETURN QUERY
            SELECT CASE WHEN c.id = n.id THEN 'new' WHEN c.request_hash IN (n.hash, n.hash_before) THEN 'same'
                        WHEN c.id IS NULL THEN 'full' ELSE 'other' END, n.id, c.id, NULL::bigint, NULL::text, NULL::text
            FROM jsonb_to_recordset(p_new) AS n(id text, tenant text, key text, hash text, hash_before text)
            LEFT JOIN LATERAL (
                SELECT id, request_hash FROM holdfast.claim WHERE id = n.id
                UNION ALL
                SELECT id, request_hash FROM holdfast.claim
                WHERE key_live AND tenant = n.tenant AND key = n.key AND id <> n.id
            ) AS c ON true;
    END IF;
    IF NOT p_acting OR EXISTS (SELECT FROM holdfast.installation WHERE stopping) THEN
        RETURN;
    END IF;
    v_left := @fn.activations_allowed(v_pool, p_limit);
    IF v_left = 0 THEN
        RETURN;
    END IF;
    -- Each tenant's own parked workers come first. This waits for rows that are locked (no SKIP LOCKED), because otherwise the
    -- tenant would get a warm worker instead of its parked one.
    IF EXISTS (SELECT FROM holdfast.worker WHERE pool_id = p_pool AND state = 'parked') THEN
        IF EXISTS (SELECT FROM holdfast.worker w JOIN holdfast.tenant t ON t.name = w.tenant
                   WHERE w.pool_id = p_pool AND w.state = 'parked' AND t.max_claims IS NOT NULL) THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.caps', 0));
            v_caps_locked := true;
        END IF;
        SELECT array_agg(c.id), array_agg(w.id) INTO v_claims, v_workers
        FROM (SELECT id, tenant, row_number() OVER (PARTITION BY tenant ORDER BY parked_since DESC, id) AS n
              FROM (SELECT p.id, p.tenant, p.parked_since FROM holdfast.worker p
                    WHERE p.pool_id = p_pool AND p.state = 'parked' AND @free(p)
                      AND EXISTS (SELECT FROM holdfast.claim c
                                  WHERE c.pool_id = p_pool AND c.tenant = p.tenant AND c.state = 'waiting'
                                    AND coalesce(c.not_before_heard <= h, true))
                    ORDER BY p.id LIMIT v_left FOR UPDATE) AS free) AS w
        CROSS JOIN LATERAL (SELECT c.id FROM holdfast.claim c
                            WHERE c.pool_id = p_pool AND c.tenant = w.tenant AND c.state = 'waiting'
                              AND c.deadline_heard > h AND coalesce(c.not_before_heard <= h, true)
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

    -- Then warm workers are given out in the fair order, workers of the newest revision first.
    LOOP
        -- The queue is read once per batch, so that the claims that are checked below are exactly those that are assigned.
        SELECT array_agg(s.o_id), array_agg(s.o_tenant) INTO v_ids, v_tenants FROM @fn.first_waiting(p_pool, v_full, v_left) s;
        EXIT WHEN v_ids IS NULL;
        v_slice := cardinality(v_ids);
        -- Two index scans, because a single ORDER BY over both revisions would read and sort every free worker of the pool.
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
        IF NOT v_caps_locked AND EXISTS (SELECT FROM holdfast.tenant
                                    WHERE name = ANY (v_tenants[1:v_slice]) AND max_claims IS NOT NULL) THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.caps', 0));
            v_caps_locked := true;
        END IF;
        WITH s AS (
            SELECT u.id, u.tenant, u.ord, row_number() OVER (PARTITION BY u.tenant ORDER BY u.ord) AS nth
            FROM unnest(v_ids[1:v_slice], v_tenants[1:v_slice]) WITH ORDINALITY AS u(id, tenant, ord)
        ), room AS MATERIALIZED (
            SELECT d.tenant, CASE WHEN v_caps_locked THEN @fn.room(d.tenant) ELSE 1000000000 END AS n
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
        -- Repeat only if claims of tenants at their cap were in front, because claims of other tenants may wait behind them.
        EXIT WHEN cardinality(v_claims) = v_slice;
    END LOOP;
END $$;
