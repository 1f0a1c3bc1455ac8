"""The cost of a new connection: the types of Postgres itself are read once, not once per connection."""

from typing import Any

import asyncpg
import pytest

from holdfast.postgres import database
from holdfast.postgres.database import Database

ARRAYS = "SELECT $1::text[] AS a, $2::bigint[] AS b, $3::boolean[] AS c"


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_second_connection_knows_the_types_that_the_first_one_asked_for(
    dsn: str, monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    asked = list[Any]()
    real = asyncpg.Connection._introspect_types

    async def counted(self: Any, typeoids: Any, timeout: float) -> Any:
        asked.append(typeoids)
        return await real(self, typeoids, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", counted)
    monkeypatch.setattr(database, "_KNOWN_TYPES", {})

    for _ in range(3):
        db = await Database.connect(dsn, size=1, pooled=pooled)
        try:
            for _ in range(2):
                [row] = await db.rows(ARRAYS, ["x", "y"], [1, 2**40], [True, False])
                assert dict(row) == {"a": ["x", "y"], "b": [1, 2**40], "c": [True, False]}
        finally:
            await db.close()
    assert len(asked) == 1, asked


async def test_types_that_are_not_built_in_are_read_on_every_connection(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of these types differ between servers, and may change."""
    monkeypatch.setattr(database, "_KNOWN_TYPES", {})

    for number in range(2):
        db = await Database.connect(dsn, size=1)
        try:
            await db.rows(f"CREATE TYPE public.mood{number} AS ENUM ('good', 'bad')")
            assert await db.value(f"SELECT 'good'::public.mood{number}") == "good"
        finally:
            await db.close()
    assert not database._KNOWN_TYPES
