-- Add a column for the heard time at which a claim ended. Its key and its output are kept for a day of heard time, because a jump
-- of the database's clock must not free them. The previous release leaves the column empty; then only `ended_at` counts.
ALTER TABLE holdfast.claim ADD COLUMN ended_heard timestamptz;
