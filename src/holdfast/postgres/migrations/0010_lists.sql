-- Make the history and the lists searchable: who caused an event, rare kinds of events, labels.

-- The token with which somebody caused the event: its id, name and role, never the token itself. It is null if Holdfast or an
-- agent caused the event.
ALTER TABLE holdfast.event ADD COLUMN actor jsonb;

-- Let readers find rare kinds of events without reading the whole history. Frequent kinds are left out, because an entry for
-- each of them would cost time on the claim path (model/event.py `FREQUENT`).
CREATE INDEX event_kind ON holdfast.event (kind, xid, id) WHERE kind NOT IN (
    'claim.active', 'claim.assigned', 'claim.created', 'claim.ended', 'worker.adopted', 'worker.gone', 'worker.held',
    'worker.parked', 'worker.retiring', 'worker.returned', 'worker.spawning', 'worker.warm');

-- Labels of claims. A claim without labels has no entry in the index, so it costs nothing there.
ALTER TABLE holdfast.claim ADD COLUMN labels jsonb;
CREATE INDEX claim_labels ON holdfast.claim USING gin (labels) WHERE labels IS NOT NULL;
