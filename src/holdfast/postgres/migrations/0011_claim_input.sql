-- The standard input of a claim's command: what its caller has sent and its agent has not yet passed on.
CREATE TABLE holdfast.claim_input (
    claim_id text PRIMARY KEY,
    stored   bigint NOT NULL DEFAULT 0,      -- bytes that the caller has sent
    taken    bigint,                         -- bytes that the command has received; NULL until its agent asked for the first time
    complete boolean NOT NULL DEFAULT false, -- the caller has sent the end of the input
    closed   boolean NOT NULL DEFAULT false  -- the command does not read its input any more
);

-- Apart from the claim, so that reading a claim can never show it. A piece is deleted as soon as the command has received it.
CREATE TABLE holdfast.claim_input_piece (
    claim_id text NOT NULL,
    position bigint NOT NULL,
    data     bytea NOT NULL,
    PRIMARY KEY (claim_id, position)
);
