"""Tokens in Postgres. Only their hashes are stored, never the tokens."""

from typing import Any

from ..model.event import Actor
from .database import Database, actor_json

BY_HASH = (
    "SELECT id, role, tenant, name FROM holdfast.token WHERE hash = $1 AND (expires_at IS NULL OR expires_at > holdfast.now())"
)
ALL = "SELECT id, name, role, tenant, created_at, expires_at FROM holdfast.token ORDER BY created_at, id"
# The event names the token by its id, name and role. A token that the installation makes for itself has no actor and no event.
EVENT = """
event AS (
    INSERT INTO holdfast.event (at, kind, tenant, reason, data, actor)
    SELECT holdfast.now(), '@kind', token.tenant, format('token %s (%s, %s)', token.id, token.name, token.role),
           jsonb_build_object('token', token.id, 'name', token.name, 'role', token.role), @actor::jsonb
    FROM token WHERE @actor::jsonb IS NOT NULL
)
SELECT id FROM token
"""
MAKE = """
WITH token AS (
    INSERT INTO holdfast.token (id, hash, name, role, tenant, created_at, expires_at)
    VALUES ($1, $2, $3, $4, $5, holdfast.now(), holdfast.now() + make_interval(secs => $6))
    ON CONFLICT (hash) DO NOTHING RETURNING *
), """ + EVENT.replace("@kind", "token.created").replace("@actor", "$7")
# Other replicas receive a notice, so that they refuse the token at once.
REVOKE = "WITH token AS (DELETE FROM holdfast.token WHERE id = $1 RETURNING *), " + (
    EVENT.replace("@kind", "token.revoked")
    .replace("@actor", "$2")
    .replace("SELECT id FROM", "SELECT id, pg_notify('holdfast', 'k ' || id) FROM")
)
# The claims that have not ended and that were requested with the token. The history has the token of each request.
MADE_WITH = """
SELECT c.id FROM holdfast.claim c WHERE c.state IN ('waiting', 'assigned', 'active') AND EXISTS (
    SELECT FROM holdfast.event e WHERE e.claim_id = c.id AND e.kind = 'claim.created' AND e.actor ->> 'id' = $1)
ORDER BY c.id
"""


class PostgresTokens:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def by_hash(self, hash_: str) -> tuple[str, str, str | None, str] | None:
        row = await self._db.row(BY_HASH, hash_)
        return (row["id"], row["role"], row["tenant"], row["name"]) if row else None

    async def all(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._db.rows(ALL)]

    async def make(
        self,
        id_: str,
        hash_: str,
        name: str,
        role: str,
        tenant: str | None,
        expires: float | None,
        actor: Actor | None = None,
    ) -> None:
        await self._db.rows(MAKE, id_, hash_, name, role, tenant, expires, actor_json(actor))

    async def revoke(self, id_: str, actor: Actor | None = None) -> bool:
        return await self._db.value(REVOKE, id_, actor_json(actor)) is not None

    async def claims_of(self, id_: str) -> list[str]:
        return [row["id"] for row in await self._db.rows(MADE_WITH, id_)]
