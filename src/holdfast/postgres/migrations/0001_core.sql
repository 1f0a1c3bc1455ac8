-- The tables that hold the truth. Changes after this file expand first and contract a release later.

-- One place for "now": a simulation replaces this function, and nothing else reads a clock.
CREATE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

CREATE TABLE holdfast.installation (
    one               boolean PRIMARY KEY DEFAULT true CHECK (one),
    install_id        text NOT NULL,
    epoch             integer NOT NULL DEFAULT 1 CHECK (epoch BETWEEN 1 AND 8191),
    system_identifier text,
    timeline          integer,
    stopping          boolean NOT NULL DEFAULT false,   -- free workers go, nothing is spawned or given out
    recovering_since  timestamptz,
    recovery_heard    timestamptz,
    recovery_reason   text,
    recovered_at      timestamptz,
    recoveries        integer NOT NULL DEFAULT 0,
    brake_limit       integer NOT NULL DEFAULT 50,      -- endings in ten minutes, or …
    brake_share       real NOT NULL DEFAULT 0.25,       -- … this share of what lives, whichever is more
    brake_tripped_at  timestamptz,
    brake_reason      text,
    brake_released_at timestamptz
);

-- Heard time: the database's clock less the time in which nobody could be heard (P7). Deadlines are kept in it.
-- `mark` grows with every beat of a replica; copies of it outside the database show commits that were lost.
CREATE TABLE holdfast.hearing (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    last_heard timestamptz NOT NULL,
    deaf       interval NOT NULL DEFAULT '0',
    mark       bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);

-- A beat comes every second. Up to 2 s since the last one count as heard; after 5 s without any, nothing since then does:
-- an outage counts for nothing, and slow beats only slow the deadlines down.
CREATE FUNCTION holdfast.heard() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT last_heard - deaf + CASE WHEN since > interval '5 s' THEN interval '0'
                                    ELSE greatest(interval '0', least(since, interval '2 s')) END
    FROM (SELECT last_heard, deaf, holdfast.now() - last_heard AS since FROM holdfast.hearing) AS h
$$;

CREATE TABLE holdfast.replica (
    id         text PRIMARY KEY,
    pid        integer NOT NULL,
    host       text NOT NULL,
    url        text NOT NULL,
    version    text NOT NULL,
    functions  text NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,
    stopped_at timestamptz
) WITH (fillfactor = 50);

CREATE TABLE holdfast.term (
    duty         text PRIMARY KEY,
    holder       text,
    number       bigint NOT NULL DEFAULT 0,
    renewed_at   timestamptz NOT NULL DEFAULT 'epoch',
    until        timestamptz NOT NULL DEFAULT 'epoch',
    taken_over   bigint NOT NULL DEFAULT 0,
    progress_at  timestamptz,
    success_at   timestamptz,
    seconds      real,
    actions      bigint NOT NULL DEFAULT 0,
    skips        bigint NOT NULL DEFAULT 0,
    failure      text
) WITH (fillfactor = 20);

CREATE TABLE holdfast.pool (
    id            text PRIMARY KEY,
    name          text NOT NULL,
    spec          jsonb NOT NULL,
    revision      text NOT NULL,
    state         text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'draining', 'gone')),
    source        text NOT NULL DEFAULT 'api' CHECK (source IN ('api', 'cr')),
    generation    integer NOT NULL DEFAULT 1,
    frozen        text,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    shrunk_at     timestamptz,
    backoff_until timestamptz,
    failures      integer NOT NULL DEFAULT 0,
    trouble       text
);
-- A name is free at once when its pool drains: another pool under it is another row.
CREATE UNIQUE INDEX pool_name ON holdfast.pool (name) WHERE state = 'live';

CREATE TABLE holdfast.tenant (
    name         text PRIMARY KEY,
    weight       integer NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 1000),
    max_claims   integer,
    max_priority integer NOT NULL DEFAULT 0,
    park_ttl     interval,
    updated_at   timestamptz NOT NULL
);

CREATE SEQUENCE holdfast.fence AS bigint;

-- No foreign keys between claim, worker and pool: a claim's journey is several writes a row, and each key would lock
-- and read the pool's row on each of them. The partial unique indexes below are what P1 rests on.
CREATE TABLE holdfast.claim (
    id             text PRIMARY KEY,
    pool_id        text NOT NULL,
    tenant         text NOT NULL,
    key            text,
    key_live       boolean NOT NULL DEFAULT false,
    request_hash   text NOT NULL,
    request        jsonb NOT NULL,
    state          text NOT NULL CHECK (state IN ('waiting', 'assigned', 'active', 'ended')),
    reason         text NOT NULL DEFAULT '',
    priority       smallint NOT NULL DEFAULT 0,
    tag            bigint NOT NULL,
    worker_id      text,
    fence          bigint,
    attempts       integer NOT NULL DEFAULT 0,
    losses         integer NOT NULL DEFAULT 0,
    retry          text,
    protected      boolean,
    offered        boolean NOT NULL DEFAULT false,
    delivered      boolean NOT NULL DEFAULT false,
    outcome        text CHECK (outcome IN ('completed', 'failed', 'released', 'expired', 'cancelled', 'lost', 'refused')),
    how            text,
    exit_code      integer,
    lease          interval,
    max_duration   interval NOT NULL,
    park_ttl       interval,
    created_at     timestamptz NOT NULL,
    assigned_at    timestamptz,
    active_at      timestamptz,
    ended_at       timestamptz,
    patience       interval NOT NULL DEFAULT '1 hour',  -- how long it may wait, for a second wait after retry: lost
    deadline_heard timestamptz NOT NULL,
    progress_heard timestamptz,
    lease_heard    timestamptz,
    max_heard      timestamptz,
    CHECK ((state = 'ended') = (outcome IS NOT NULL)),
    CHECK (state NOT IN ('assigned', 'active') OR (worker_id IS NOT NULL AND fence IS NOT NULL)),
    CHECK (state <> 'active' OR max_heard IS NOT NULL)            -- P4: every protection has a ceiling
);
CREATE UNIQUE INDEX claim_one_worker ON holdfast.claim (worker_id) WHERE state IN ('assigned', 'active');   -- P1
CREATE UNIQUE INDEX claim_key ON holdfast.claim (tenant, key) WHERE key_live;                                -- P1
CREATE INDEX claim_order ON holdfast.claim (pool_id, priority DESC, tag, id) WHERE state = 'waiting';
CREATE INDEX claim_tenant_order ON holdfast.claim (pool_id, tenant, priority DESC, tag, id) WHERE state = 'waiting';
CREATE INDEX claim_live ON holdfast.claim (tenant) WHERE state IN ('assigned', 'active');
CREATE INDEX claim_deadline ON holdfast.claim (deadline_heard) WHERE state = 'waiting';
CREATE INDEX claim_progress ON holdfast.claim (progress_heard) WHERE state = 'assigned';
CREATE INDEX claim_lease ON holdfast.claim (lease_heard) WHERE state = 'active' AND lease_heard IS NOT NULL;
CREATE INDEX claim_max ON holdfast.claim (max_heard) WHERE state = 'active';
CREATE INDEX claim_ended ON holdfast.claim (ended_at) WHERE state = 'ended';
CREATE INDEX claim_created ON holdfast.claim (created_at, id);
CREATE INDEX claim_tenant_created ON holdfast.claim (tenant, created_at, id);

-- Apart from the claim, so that reading a claim can never show them. Erased when the worker acknowledged.
CREATE TABLE holdfast.claim_secret (
    claim_id text PRIMARY KEY,
    secrets  jsonb NOT NULL
);

CREATE TABLE holdfast.worker (
    id            text PRIMARY KEY,
    pool_id       text NOT NULL,
    state         text NOT NULL CHECK (state IN ('spawning', 'warm', 'held', 'parked', 'retiring', 'gone')),
    version       integer NOT NULL DEFAULT 1,
    revision      text NOT NULL,
    epoch         integer NOT NULL DEFAULT 1,
    claim_id      text,
    held_from     text,
    tenant        text,
    fence         bigint,
    delivered     boolean NOT NULL DEFAULT false,
    reason        text,
    created_at    timestamptz NOT NULL,
    state_since   timestamptz NOT NULL,
    state_heard   timestamptz NOT NULL,
    parked_since  timestamptz,
    parked_heard  timestamptz,
    park_ttl      interval,
    pod_uid       text,
    node          text,
    endpoint      text,
    ready         boolean NOT NULL DEFAULT false,
    terminating   boolean NOT NULL DEFAULT false,
    schedulable   boolean NOT NULL DEFAULT true,
    scheduled_heard timestamptz,
    suspect_since timestamptz,
    protected     boolean NOT NULL DEFAULT false,
    agent_version text,
    CHECK ((state = 'held') = (claim_id IS NOT NULL)),
    CHECK (state <> 'parked' OR (tenant IS NOT NULL AND parked_since IS NOT NULL)),
    CHECK (state <> 'warm' OR tenant IS NULL)                     -- P1: warm has served nobody
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX worker_one_claim ON holdfast.worker (claim_id) WHERE claim_id IS NOT NULL;              -- P1
CREATE INDEX worker_present ON holdfast.worker (pool_id, state) WHERE state <> 'gone';
-- In the order in which free workers are given out: a batch reads only those that it takes.
CREATE INDEX worker_free ON holdfast.worker (pool_id, revision, state_since, id)
    WHERE state = 'warm' AND ready AND NOT terminating AND schedulable AND suspect_since IS NULL;
CREATE INDEX worker_parked ON holdfast.worker (pool_id, tenant) WHERE state = 'parked';
CREATE INDEX claim_of_worker ON holdfast.claim (worker_id, fence) WHERE worker_id IS NOT NULL;
CREATE INDEX worker_gone ON holdfast.worker (state_since) WHERE state = 'gone';

-- What agents last said. Narrow and with free space: beats stay HOT and never lock the worker's own row.
CREATE TABLE holdfast.pulse (
    worker_id  text PRIMARY KEY,
    beat_heard timestamptz NOT NULL,
    doing      text NOT NULL,
    claim_id   text,
    tenant     text,
    fence      bigint,
    reset_fence bigint        -- it has served somebody, whatever a restored database believes
) WITH (fillfactor = 50);

-- Start-time fair queueing: a tenant's next tag, and the pool's virtual time, each for one priority.
CREATE TABLE holdfast.fair (
    pool_id  text NOT NULL,
    priority smallint NOT NULL,
    tenant   text NOT NULL,       -- '' is the pool's own virtual time
    tag      bigint NOT NULL,
    PRIMARY KEY (pool_id, priority, tenant)
) WITH (fillfactor = 50);

-- Endings that the brake counts.
CREATE TABLE holdfast.ending (
    at   timestamptz NOT NULL,
    kind text NOT NULL CHECK (kind IN ('worker', 'claim')),
    id   text NOT NULL
);
CREATE INDEX ending_at ON holdfast.ending (kind, at);

CREATE TABLE holdfast.token (
    id         text PRIMARY KEY,
    hash       text NOT NULL UNIQUE,
    name       text NOT NULL,
    role       text NOT NULL CHECK (role IN ('admin', 'operator', 'tenant')),
    tenant     text CHECK ((role = 'tenant') = (tenant IS NOT NULL)),
    created_at timestamptz NOT NULL,
    expires_at timestamptz
);

-- The history. Ids are not commit order, so readers go by (xid, id) below the oldest running transaction.
CREATE TABLE holdfast.event (
    id        bigint GENERATED ALWAYS AS IDENTITY,
    xid       xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at        timestamptz NOT NULL,
    kind      text NOT NULL,
    pool_id   text,
    worker_id text,
    claim_id  text,
    tenant    text,
    reason    text NOT NULL DEFAULT '',
    also      text,      -- the worker's transition that the same change made
    data      jsonb
) PARTITION BY RANGE (at);
CREATE TABLE holdfast.event_default PARTITION OF holdfast.event DEFAULT;
CREATE INDEX event_order ON holdfast.event (xid, id);
CREATE INDEX event_tenant ON holdfast.event (tenant, xid, id) WHERE tenant IS NOT NULL;
CREATE INDEX event_claim ON holdfast.event (claim_id) WHERE claim_id IS NOT NULL;
CREATE INDEX event_worker ON holdfast.event (worker_id) WHERE worker_id IS NOT NULL;

INSERT INTO holdfast.hearing (last_heard) VALUES (holdfast.now());
INSERT INTO holdfast.term (duty) VALUES ('match'), ('deadlines'), ('converge'), ('scale'), ('pools'), ('prune');
