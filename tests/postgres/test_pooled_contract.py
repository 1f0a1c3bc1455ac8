"""Runs tests of the store again through a PgBouncer in transaction mode: claims, agents, the queue, and races."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bouncer import PgBouncer, needs_pgbouncer
from holdfast.postgres.database import Database
from holdfast.postgres.embedded import EmbeddedPostgres
from holdfast.postgres.store import PostgresStore
from postgres import test_store_agents, test_store_machine, test_store_queue, test_store_racing

pytestmark = needs_pgbouncer
for _module in (test_store_agents, test_store_machine, test_store_queue, test_store_racing):
    _tests = {name: test for name, test in vars(_module).items() if name.startswith("test_")}
    assert not _tests.keys() & globals().keys(), "two tests have one name, so that one of them would not run"
    globals().update(_tests)


@pytest.fixture
async def store(no_task_left: None, dsn: str, shared_postgres: EmbeddedPostgres, place: Path) -> AsyncIterator[PostgresStore]:
    # More server connections than any test blocks at a lock, and fewer than the replicas have.
    with PgBouncer(shared_postgres, place / "bouncer", size=12) as bouncer:
        made = PostgresStore(await Database.connect(bouncer.through(dsn), size=16, pooled=True))
        try:
            yield made
        finally:
            await made.close()
