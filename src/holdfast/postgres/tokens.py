"""Tokens in Postgres. Only their hashes are stored, never the tokens."""

from typing import Any

from .database import Database

BY_HASH = (
    "SELECT id, role, tenant, name FROM holdfast.token WHERE hash = $1 AND (expires_at IS NULL OR expires_at > holdfast.now())"
)
ALL = "SELECT id, name, role, tenant, created_at, expires_at FROM holdfast.token ORDER BY created_at, id"
MAKE = """
INSERT INTO holdfast.token (id, hash, name, role, tenant, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, holdfast.now(), holdfast.now() + make_interval(secs => $6))
ON CONFLICT (hash) DO NOTHING
"""
REVOKE = "DELETE FROM holdfast.token WHERE id = $1 RETURNING id"


class PostgresTokens:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def by_hash(self, hash_: str) -> tuple[str, str, str | None, str] | None:
        row = await self._db.row(BY_HASH, hash_)
        return (row["id"], row["role"], row["tenant"], row["name"]) if row else None

    async def all(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._db.rows(ALL)]

    async def make(self, id_: str, hash_: str, name: str, role: str, tenant: str | None, expires: float | None) -> None:
        await self._db.rows(MAKE, id_, hash_, name, role, tenant, expires)

    async def revoke(self, id_: str) -> bool:
        return await self._db.value(REVOKE, id_) is not None
