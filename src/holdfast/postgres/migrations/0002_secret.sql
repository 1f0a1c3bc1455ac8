-- Whether a claim came with secrets. They are erased with its acknowledgement; after that it cannot be served again.
ALTER TABLE holdfast.claim ADD COLUMN secret boolean NOT NULL DEFAULT false;
UPDATE holdfast.claim SET secret = true WHERE id IN (SELECT claim_id FROM holdfast.claim_secret);
