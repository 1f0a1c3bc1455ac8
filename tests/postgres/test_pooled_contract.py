"""The store's own stories, told again through a PgBouncer in transaction mode: claims, agents, the queue, and races for them."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from bouncer import PgBouncer, needs_pgbouncer
from holdfast.postgres.database import Database
from holdfast.postgres.embedded import EmbeddedPostgres
from holdfast.postgres.store import PostgresStore
from store import test_store_agents, test_store_machine, test_store_queue, test_store_racing

Story = Callable[[PostgresStore], Coroutine[Any, Any, None]]
pytestmark = needs_pgbouncer
for _module in (test_store_agents, test_store_machine, test_store_queue, test_store_racing):
    _stories = {name: story for name, story in vars(_module).items() if name.startswith("test_")}
    assert not _stories.keys() & globals().keys(), "two stories of one name: one of them would not be told"
    globals().update(_stories)


@pytest.fixture
def on_store(dsn: str, shared_postgres: EmbeddedPostgres, place: Path) -> Callable[[Story], None]:
    def run(story: Story) -> None:
        async def main() -> None:
            # More server connections than any story keeps waiting at a lock, and fewer than its replicas have of theirs.
            with PgBouncer(shared_postgres, place / "bouncer", size=12) as bouncer:
                store = PostgresStore(await Database.connect(bouncer.through(dsn), size=16, pooled=True))
                try:
                    await story(store)
                finally:
                    await store.close()

        asyncio.run(main())

    return run
