-- Store the priority of a request that asked for more than its tenant may use, so that every reader sees what was granted and why.
-- NULL means that the request got the priority that it asked for.
ALTER TABLE holdfast.claim ADD COLUMN requested_priority smallint;
