"""The listener for notifications is restored after any error of its connection, because nothing else would show its loss."""

import asyncio
from typing import Any

import asyncpg
import pytest

from holdfast.model.tenant import TenantSpec
from holdfast.postgres import notices
from holdfast.postgres.store import PostgresStore


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


async def test_a_deleted_tenant_is_noticed_with_and_without_listening(dsn: str, store: PostgresStore) -> None:
    """Behind PgBouncer the history is polled, so the event must lead to the same notice."""
    for received in (notices.PostgresNotices(dsn), notices.PolledNotices(store.db)):
        try:
            assert await asyncio.wait_for(anext(received), 60) == ("reset", [])
            await store.pools.put_tenant("acme", TenantSpec())
            assert (await store.pools.delete_tenant("acme")).deleted
            assert await asyncio.wait_for(anext(received), 60) == ("t", ["acme"])
        finally:
            await received.close()
