-- Keep the history within its limits.

-- Creates the event partitions of the next three days, and drops those older than `p_days`. Returns how many it dropped.
CREATE FUNCTION @fn.event_partitions(p_days integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_day date;
    v_name text;
    v_dropped integer := 0;
    v_today date := (holdfast.now() AT TIME ZONE 'UTC')::date;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.partitions', 0));
    -- Starts with tomorrow, because rows of today may already be in the default partition, and then Postgres refuses a partition
    -- for that day.
    FOR v_day IN SELECT generate_series(v_today + 1, v_today + 3, interval '1 day')::date LOOP
        v_name := 'event_' || to_char(v_day, 'YYYYMMDD');
        IF to_regclass('holdfast.' || v_name) IS NULL THEN
            BEGIN
                EXECUTE format('CREATE TABLE holdfast.%I PARTITION OF holdfast.event FOR VALUES FROM (%L) TO (%L)',
                               v_name, v_day::timestamp AT TIME ZONE 'UTC', (v_day + 1)::timestamp AT TIME ZONE 'UTC');
            EXCEPTION WHEN check_violation THEN
                NULL;  -- the clock was once ahead, so the default partition has rows of that day; they stay there
            END;
        END IF;
    END LOOP;
    FOR v_name IN SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = 'holdfast' AND relname ~ '^event_[0-9]{8}$'
                    AND to_date(substr(relname, 7), 'YYYYMMDD') < v_today - p_days LOOP
        EXECUTE format('DROP TABLE holdfast.%I', v_name);
        v_dropped := v_dropped + 1;
    END LOOP;
    DELETE FROM holdfast.event_default WHERE at < holdfast.now() - make_interval(days => p_days);
    RETURN v_dropped;
END $$;

-- Drops the functions of releases that no replica has run for a day. Returns how many releases it dropped.
CREATE FUNCTION @fn.drop_old_releases(p_ours text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_name text;
    v_dropped integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(7413000001);  -- a replica that starts creates its functions under this lock (migrate.py)
    FOR v_name IN SELECT nspname FROM pg_namespace WHERE nspname ~ '^holdfast_[0-9a-f]{8}$' AND nspname <> p_ours
                  AND nspname NOT IN (SELECT functions FROM holdfast.replica WHERE seen_at > holdfast.now() - interval '1 day') LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', v_name);
        v_dropped := v_dropped + 1;
    END LOOP;
    RETURN v_dropped;
END $$;
