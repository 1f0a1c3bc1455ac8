-- Show an unconfirmed starting worker as suspect as well. The release before 0003 does not know `unconfirmed_since`. It makes a
-- starting worker warm when its pod is ready, and would then give it out, although it may serve a claim of lost commits. It never
-- gives out a suspect worker, and does not end one whose `suspect_since` is `recovered_at`.
CREATE OR REPLACE FUNCTION holdfast.share_unconfirmed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.worker SET unconfirmed_since = NEW.recovered_at
    WHERE suspect_since = NEW.recovered_at AND unconfirmed_since IS NULL;
    UPDATE holdfast.worker SET suspect_since = NEW.recovered_at
    WHERE unconfirmed_since IS NOT NULL AND state IN ('spawning', 'warm', 'parked', 'held')
      AND suspect_since IS DISTINCT FROM NEW.recovered_at;
    RETURN NULL;
END $$;
UPDATE holdfast.worker w SET suspect_since = i.recovered_at FROM holdfast.installation i
WHERE w.state = 'spawning' AND w.unconfirmed_since IS NOT NULL AND w.suspect_since IS DISTINCT FROM i.recovered_at;
