"""The standard input of commands in Postgres: stored in pieces, deleted when the command has received them."""

import asyncpg

from ..ports.inputs import InputPiece, InputState
from .database import Database

PIECES = 8  # sent to the agent at a time

# Returns a row only if this call stored its bytes or its end, because only then may its piece be inserted: a piece that begins within
# another one would pass bytes to the command twice. The row is locked, so of two requests for the same offset one stores its bytes.
# The claim is locked, so that its end either sees and erases the piece, or is seen here.
STORE = """
WITH i AS (
    INSERT INTO holdfast.claim_input AS i (claim_id, stored, complete)
    SELECT c.id, CASE WHEN $2::bigint = 0 THEN octet_length($3::bytea) ELSE 0 END, $2 = 0 AND $4::boolean FROM holdfast.claim c
    WHERE c.id = $1 AND c.state <> 'ended' AND (c.request ->> 'stdin')::boolean FOR SHARE
    ON CONFLICT (claim_id) DO UPDATE SET stored = $2 + octet_length($3::bytea), complete = $4
    WHERE i.stored = $2 AND NOT i.complete AND NOT i.closed AND $2 + octet_length($3::bytea) - coalesce(i.taken, 0) <= $5::bigint
    RETURNING i.*
), piece AS (
    INSERT INTO holdfast.claim_input_piece (claim_id, position, data)
    SELECT i.claim_id, $2, $3 FROM i WHERE i.stored = $2 + octet_length($3::bytea) AND octet_length($3::bytea) > 0
)
SELECT stored, taken, complete, closed FROM i
"""

# Reads only, so that a caller that waits for room does not write.
SENT = """
SELECT coalesce(i.stored, 0) AS stored, i.taken, coalesce(i.complete, false) AS complete, coalesce(i.closed, false) AS closed
FROM holdfast.claim c LEFT JOIN holdfast.claim_input i ON i.claim_id = c.id
WHERE c.id = $1 AND c.state <> 'ended' AND (c.request ->> 'stdin')::boolean
"""

# If the database lost commits, the agent may have received more than is stored, so its number counts.
TAKE = """
WITH i AS (
    INSERT INTO holdfast.claim_input AS i (claim_id, stored, taken, closed)
    SELECT c.id, $3::bigint, $3, $4::boolean FROM holdfast.claim c WHERE c.worker_id = $1 AND c.fence = $2 AND c.state = 'active'
    ON CONFLICT (claim_id) DO UPDATE SET taken = greatest(i.taken, excluded.taken), stored = greatest(i.stored, excluded.taken),
        closed = i.closed OR excluded.closed
    RETURNING i.*
), gone AS (
    DELETE FROM holdfast.claim_input_piece p USING i WHERE p.claim_id = i.claim_id AND (p.position < i.taken OR i.closed)
)
SELECT claim_id FROM i
"""

STATE = "SELECT stored, taken, complete, closed FROM holdfast.claim_input WHERE claim_id = $1"

NEXT = """
SELECT i.stored, i.complete, coalesce((
    SELECT string_agg(data, ''::bytea ORDER BY position) FROM (
        SELECT p.data, p.position FROM holdfast.claim_input_piece p WHERE p.claim_id = $1 AND p.position >= $2
        ORDER BY p.position LIMIT $3) AS next
), ''::bytea) AS data
FROM holdfast.claim_input i WHERE i.claim_id = $1
"""


class PostgresInputs:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def store(self, claim: str, offset: int, data: bytes, complete: bool, room: int) -> InputState | None:
        state = _state(await self._db.row(STORE, claim, offset, data, complete, room))
        if state is None and data and complete:  # the bytes may be stored already, and only the end is new
            state = _state(await self._db.row(STORE, claim, offset + len(data), b"", True, room))
        return state or await self.sent(claim)

    async def sent(self, claim: str) -> InputState | None:
        return _state(await self._db.row(SENT, claim))

    async def state(self, claim: str) -> InputState | None:
        return _state(await self._db.row(STATE, claim))

    async def take(self, worker: str, fence: int, taken: int, closed: bool) -> InputPiece | None:
        claim = await self._db.value(TAKE, worker, fence, taken, closed)
        return await self.next(claim, taken) if claim is not None else None

    async def next(self, claim: str, taken: int) -> InputPiece:
        row: asyncpg.Record | None = await self._db.row(NEXT, claim, taken, PIECES)
        if row is None:
            return InputPiece(claim, b"", end=False)
        return InputPiece(claim, row["data"], row["complete"] and row["stored"] <= taken + len(row["data"]))


def _state(row: asyncpg.Record | None) -> InputState | None:
    return InputState(row["stored"], row["taken"], row["complete"], row["closed"]) if row is not None else None
