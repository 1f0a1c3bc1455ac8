-- The brake (P7): limit how much Holdfast ends by its own decision, for the whole fleet and for each tenant (decision 0025).

-- Returns whether the claim's request named the time that ends it now. Such an end is the holder's choice, so the brake does not
-- count it. A lease that was renewed is not the holder's choice any more, because the renewals may be lost through our fault.
CREATE FUNCTION @fn.chosen_end(c holdfast.claim, p_how text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_how WHEN 'lease' THEN c.lease_chosen AND c.lease_heard - c.lease <= c.max_heard - c.max_duration
                      ELSE c.max_chosen END
$$;

-- Checks the brake and counts this ending. Returns NULL if the ending is allowed, otherwise 'braked'. It counts the endings by
-- Holdfast's own decision in the last ten minutes. A tripped brake stays until a person releases it.
-- `p_tenant` is the tenant of the claim or of the parked worker, or NULL. Once a tenant has used its share, its own brake trips. For
-- the fleet it counts for no more than its share. Otherwise one tenant could trip the brake of all.
-- `p_ceiling` marks a claim that is past its longest duration. A tenant's brake does not stop its end, because a tenant that trips its
-- own brake could then keep its workers forever (P4). It only limits the rate: the tenant's endings in ten minutes stay within what
-- the fleet's brake allows, and more of them trip the tenant's brake and wait. Otherwise a mistake of ours could end all claims of
-- one tenant without an alert (P7).
CREATE FUNCTION @fn.braked(p_kind text, p_id text, p_tenant text, p_ceiling boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    i holdfast.installation;
    b holdfast.tenant_brake;
    v_count bigint;
    v_own bigint;
    v_alive bigint;
    v_allowed bigint;
    v_share bigint;
    v_reason text;
    v_since timestamptz;
    t timestamptz := holdfast.now();
BEGIN
    SELECT * INTO i FROM holdfast.installation FOR UPDATE;
    IF i.brake_tripped_at IS NOT NULL THEN
        RETURN 'braked';
    END IF;
    SELECT * INTO b FROM holdfast.tenant_brake WHERE tenant = p_tenant;
    IF b.tripped_at IS NOT NULL AND NOT p_ceiling THEN
        RETURN 'braked';
    END IF;
    v_since := greatest(t - interval '10 min', coalesce(i.brake_released_at, '-infinity'));
    SELECT count(*), count(*) FILTER (WHERE tenant = p_tenant AND at > coalesce(b.released_at, '-infinity')) INTO v_count, v_own
    FROM holdfast.ending WHERE kind = p_kind AND at > v_since;
    IF p_kind = 'worker' THEN
        SELECT count(*) INTO v_alive FROM holdfast.worker WHERE state <> 'gone';
        v_allowed := greatest(i.brake_limit, floor(i.brake_share * (v_alive + v_count)));
    ELSE
        SELECT count(*) INTO v_alive FROM holdfast.claim WHERE state IN @claim.live;
        v_allowed := greatest(coalesce(i.brake_claims, i.brake_limit), floor(i.brake_share * (v_alive + v_count)));
    END IF;
    v_share := greatest(1, floor(i.brake_tenant_share * v_allowed));
    -- No tenant counts for more than its present share, because what is allowed shrinks when a tenant gives its claims back.
    IF v_allowed <= (SELECT coalesce(sum(CASE WHEN n.tenant IS NULL THEN n.n ELSE least(n.n, v_share) END), 0)
                     FROM (SELECT tenant, count(*) AS n FROM holdfast.ending WHERE kind = p_kind AND at > v_since GROUP BY 1) AS n) THEN
        v_reason := format('%s %ss were ended in ten minutes, of %s', v_count, p_kind, v_alive + v_count);
        UPDATE holdfast.installation SET brake_tripped_at = t, brake_reason = v_reason;
        INSERT INTO holdfast.event (at, kind, reason) VALUES (t, 'brake.tripped', v_reason);
        RETURN 'braked';
    END IF;
    IF p_tenant IS NOT NULL AND v_own >= (CASE WHEN p_ceiling THEN v_allowed ELSE v_share END) THEN
        IF b.tripped_at IS NULL THEN
            -- The tenant can read this, so it contains no figures of the fleet.
            v_reason := format('%s %ss of tenant %s were ended in ten minutes', v_own, p_kind, p_tenant);
            INSERT INTO holdfast.tenant_brake (tenant, tripped_at, reason) VALUES (p_tenant, t, v_reason)
            ON CONFLICT (tenant) DO UPDATE SET tripped_at = t, reason = v_reason;
            INSERT INTO holdfast.event (at, kind, tenant, reason) VALUES (t, 'brake.tripped', p_tenant, v_reason);
        END IF;
        RETURN 'braked';
    END IF;
    INSERT INTO holdfast.ending (at, kind, id, tenant) VALUES (t, p_kind, p_id, p_tenant);
    RETURN NULL;
END $$;

-- Stores the brake's limits, with an event if they change.
CREATE FUNCTION @fn.set_brake(p_workers integer, p_claims integer, p_share real, p_tenant_share real, p_actor jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    i holdfast.installation;
BEGIN
    SELECT * INTO i FROM holdfast.installation FOR UPDATE;
    IF (i.brake_limit, coalesce(i.brake_claims, i.brake_limit), i.brake_share, i.brake_tenant_share)
       IS NOT DISTINCT FROM (p_workers, p_claims, p_share, p_tenant_share) THEN
        RETURN;
    END IF;
    UPDATE holdfast.installation SET brake_limit = p_workers, brake_claims = p_claims, brake_share = p_share,
        brake_tenant_share = p_tenant_share;
    INSERT INTO holdfast.event (at, kind, reason, data, actor) VALUES (holdfast.now(), 'brake.set',
        format('%s workers, %s claims, or the share %s of what is alive; %s of it for a tenant', p_workers, p_claims, p_share, p_tenant_share),
        jsonb_build_object('workers', p_workers, 'claims', p_claims, 'share', p_share, 'tenantShare', p_tenant_share), p_actor);
END $$;

-- Releases the fleet's brake, or that of `p_tenant`. Returns whether it was tripped.
CREATE FUNCTION @fn.release_brake(p_tenant text, p_reason text, p_actor jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    t timestamptz := holdfast.now();
BEGIN
    -- The lock of `braked`, so that an ending at the same time sees either state as a whole.
    PERFORM FROM holdfast.installation FOR UPDATE;
    IF p_tenant IS NULL THEN
        UPDATE holdfast.installation SET brake_tripped_at = NULL, brake_reason = NULL, brake_released_at = t
        WHERE brake_tripped_at IS NOT NULL;
    ELSE
        UPDATE holdfast.tenant_brake SET tripped_at = NULL, reason = NULL, released_at = t
        WHERE tenant = p_tenant AND tripped_at IS NOT NULL;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO holdfast.event (at, kind, tenant, reason, actor) VALUES (t, 'brake.released', p_tenant, p_reason, p_actor);
    RETURN true;
END $$;
