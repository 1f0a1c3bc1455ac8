"""What tests share: one Postgres a test process, a fresh database for each test, and whole fleets of real processes."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fleet import Fleet
from holdfast.postgres.database import Database
from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries
from holdfast.postgres.migrate import migrate
from holdfast.postgres.store import PostgresStore


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[EmbeddedPostgres]:
    if running := os.environ.get("HOLDFAST_TEST_POSTGRES"):  # the folder of a server that outlives this process
        yield EmbeddedPostgres(Path(running), find_binaries())
        return
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    folder.chmod(0o755)  # as root, Postgres runs as another account
    server = EmbeddedPostgres(folder / "postgres", find_binaries())
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template(shared_postgres: EmbeddedPostgres) -> str:
    """A migrated database that others are copied from."""

    async def make() -> None:
        await _admin(shared_postgres.dsn, "CREATE DATABASE migrated")
        await migrate(_named(shared_postgres.dsn, "migrated"), "i-test")

    asyncio.run(make())
    return "migrated"


@pytest.fixture
def dsn(shared_postgres: EmbeddedPostgres, template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh, migrated database."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    asyncio.run(_admin(shared_postgres.dsn, f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield _named(shared_postgres.dsn, name)
    asyncio.run(_admin(shared_postgres.dsn, f"DROP DATABASE {name} WITH (FORCE)"))


Story = Callable[[PostgresStore], Coroutine[Any, Any, None]]


@pytest.fixture
def on_store(dsn: str) -> Callable[[Story], None]:
    """Run a test's story against the real store."""

    def run(story: Story) -> None:
        async def main() -> None:
            store = PostgresStore(await Database.connect(dsn, size=16))
            try:
                await story(store)
            finally:
                await store.close()

        asyncio.run(main())

    return run


@pytest.fixture
def make_fleet() -> Iterator[Callable[..., Fleet]]:
    """Fleets of real replicas, workers and a Postgres of their own; everything they started is ended with the test."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Fleet:
            return stack.enter_context(Fleet(**options))

        yield make


def _named(dsn: str, database: str) -> str:
    return dsn.replace("@/holdfast?", f"@/{database}?")


async def _admin(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
