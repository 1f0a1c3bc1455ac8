-- Count failed activations per claim and per pool, and store when the next one may be tried (decision 0018).
ALTER TABLE holdfast.claim ADD COLUMN activation_failures integer NOT NULL DEFAULT 0;
ALTER TABLE holdfast.claim ADD COLUMN not_before_heard timestamptz;

-- `activation_failing` are different claims that failed since the last success, at most as many as make the pool wait.
ALTER TABLE holdfast.pool ADD COLUMN activation_failing text[] NOT NULL DEFAULT '{}';
ALTER TABLE holdfast.pool ADD COLUMN activation_backoffs integer NOT NULL DEFAULT 0;
ALTER TABLE holdfast.pool ADD COLUMN activation_heard timestamptz;
ALTER TABLE holdfast.pool ADD COLUMN activation_trouble text;

-- The last output of a worker: of what it serves, of its hooks and of its agent. It is apart from the worker's row, which is
-- written often.
CREATE TABLE holdfast.worker_log (
    worker_id text PRIMARY KEY,
    at        timestamptz NOT NULL,
    text      text NOT NULL
);
CREATE INDEX worker_log_at ON holdfast.worker_log (at);
