-- Rename the table of heartbeats to the name that the code uses.
ALTER TABLE holdfast.pulse RENAME TO heartbeat;
ALTER INDEX holdfast.pulse_pkey RENAME TO heartbeat_pkey;

-- The previous release uses the old name, and may run at the same time as this one. It reads and writes the table through this
-- view. The release after the next one drops the view.
CREATE VIEW holdfast.pulse AS SELECT * FROM holdfast.heartbeat;
