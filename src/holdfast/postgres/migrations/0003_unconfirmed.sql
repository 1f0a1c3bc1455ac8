-- Add a column for workers that have not been confirmed since the database lost commits.
ALTER TABLE holdfast.worker ADD COLUMN unconfirmed_since timestamptz;
CREATE INDEX worker_unconfirmed ON holdfast.worker (id) WHERE unconfirmed_since IS NOT NULL;
UPDATE holdfast.worker w SET unconfirmed_since = w.suspect_since FROM holdfast.installation i WHERE w.suspect_since = i.recovered_at;

-- The previous release recognizes such a worker by `suspect_since = recovered_at`, and may run at the same time as this one. So
-- when either release ends a recovery, the trigger writes both columns. The release after the next one drops the trigger.
CREATE FUNCTION holdfast.share_unconfirmed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.worker SET unconfirmed_since = NEW.recovered_at
    WHERE suspect_since = NEW.recovered_at AND unconfirmed_since IS NULL;
    UPDATE holdfast.worker SET suspect_since = NEW.recovered_at
    WHERE unconfirmed_since IS NOT NULL AND state IN ('warm', 'parked', 'held') AND suspect_since IS DISTINCT FROM NEW.recovered_at;
    RETURN NULL;
END $$;
-- The trigger is deferred, because the workers are written after the installation, in the same transaction.
CREATE CONSTRAINT TRIGGER share_unconfirmed AFTER UPDATE OF recovered_at ON holdfast.installation
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.recovered_at IS DISTINCT FROM NEW.recovered_at)
    EXECUTE FUNCTION holdfast.share_unconfirmed();
