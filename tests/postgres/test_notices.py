"""The listener for notifications is restored after any error of its connection, because nothing else would show its loss."""

import asyncio
from typing import Any

import asyncpg
import pytest

from holdfast.postgres import notices


@pytest.mark.parametrize(
    "refusal", [asyncpg.InvalidPasswordError("new"), asyncpg.InvalidCatalogNameError("being restored"), OSError()]
)
async def test_a_refused_connection_is_tried_again(dsn: str, refusal: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, refusals = asyncpg.connect, [refusal]

    async def refused_once(*args: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await connect(*args, **options)

    monkeypatch.setattr(notices.asyncpg, "connect", refused_once)
    received = notices.PostgresNotices(dsn)
    try:
        assert await asyncio.wait_for(anext(received), 60) == ("reset", [])
        connection = await connect(dsn, timeout=10)
        await connection.execute("SELECT pg_notify('holdfast', 'c c-1 c-2')")
        await connection.close()
        assert await asyncio.wait_for(anext(received), 60) == ("c", ["c-1", "c-2"])
    finally:
        await received.close()
