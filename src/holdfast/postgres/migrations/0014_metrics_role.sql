-- A token may have the role `metrics`, which reads /metrics and nothing about claims. The release before refuses it everywhere.
ALTER TABLE holdfast.token DROP CONSTRAINT token_role_check;
ALTER TABLE holdfast.token ADD CONSTRAINT token_role_check CHECK (role IN ('admin', 'operator', 'tenant', 'metrics'));
