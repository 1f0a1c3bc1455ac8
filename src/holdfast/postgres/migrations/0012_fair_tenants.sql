-- Give each tenant its own brake, its own limits and a bounded queue, so that no tenant can starve the others (decision 0025).

-- The brake's limits. `brake_limit` is that of workers, and that of claims as long as `brake_claims` is NULL.
ALTER TABLE holdfast.installation ADD COLUMN brake_claims integer;
ALTER TABLE holdfast.installation ADD COLUMN brake_tenant_share real NOT NULL DEFAULT 0.5;

-- The tenant whose claim or worker was ended. NULL is a worker of no tenant, or an ending that the release before counted.
ALTER TABLE holdfast.ending ADD COLUMN tenant text;

-- The brakes of tenants. A row is written when the brake of its tenant trips for the first time.
CREATE TABLE holdfast.tenant_brake (
    tenant      text PRIMARY KEY,
    tripped_at  timestamptz,
    reason      text,
    released_at timestamptz
);

-- Whether the request itself named the lease or the longest duration. Such an end is the holder's choice, and the brake does not
-- count it. Claims of the release before count.
ALTER TABLE holdfast.claim ADD COLUMN lease_chosen boolean NOT NULL DEFAULT false;
ALTER TABLE holdfast.claim ADD COLUMN max_chosen boolean NOT NULL DEFAULT false;

ALTER TABLE holdfast.tenant ADD COLUMN max_waiting integer NOT NULL DEFAULT 1000;
ALTER TABLE holdfast.tenant ADD COLUMN max_output_bytes bigint NOT NULL DEFAULT 1073741824;
