"""Fixtures that all tests share: one Postgres per test process, a fresh database per test, and fleets of real processes."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from cluster_fixtures import *  # noqa: F403
from cluster_fixtures import skip_without_binaries
from fleet import Fleet
from holdfast.ports.cluster import Cluster
from holdfast.postgres.database import Database
from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries
from holdfast.postgres.migrate import migrate
from holdfast.postgres.store import PostgresStore

if TYPE_CHECKING:
    from contracts.cluster import Stage

pytest.register_assert_rewrite("contracts.cluster")  # before the first import, so that failed asserts in it show their values

# Fixtures that start a whole fleet, real or simulated, or a cluster. `make test-quick` leaves out every test that uses one of
# these, and the folders e2e and soak.
WHOLE = {"make_fleet", "control_plane", "own_control_plane", "simulated", "simulated_dsn"}


@pytest.hookimpl(tryfirst=True)  # must run before pytest applies `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_without_binaries(config, items)
    for item in items:
        if WHOLE & set(getattr(item, "fixturenames", ())):
            item.add_marker("whole")


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[EmbeddedPostgres]:
    if running := os.environ.get("HOLDFAST_TEST_POSTGRES"):  # the folder of a server that keeps running after this process
        yield EmbeddedPostgres(Path(running), find_binaries())
        return
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    folder.chmod(0o755)  # because Postgres runs as another account when the tests run as root
    server = EmbeddedPostgres(folder / "postgres", find_binaries())
    server.start()
    # The databases are thrown away after the tests, so a crash loses nothing. With fsync a test's database costs six times as
    # much.
    asyncio.run(_admin(server.dsn, *(f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "full_page_writes"))))
    asyncio.run(_admin(server.dsn, "SELECT pg_reload_conf()"))
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template(shared_postgres: EmbeddedPostgres) -> str:
    """Returns the name of a migrated database, from which the databases of tests are copied."""
    if made := os.environ.get("HOLDFAST_TEST_TEMPLATE"):  # a database of the server that keeps running
        return made

    async def make() -> None:
        await _admin(shared_postgres.dsn, "CREATE DATABASE migrated")
        await migrate(_named(shared_postgres.dsn, "migrated"), "i-test")

    asyncio.run(make())
    return "migrated"


@pytest.fixture
def dsn(shared_postgres: EmbeddedPostgres, template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Returns the DSN of a fresh, migrated database."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    asyncio.run(_admin(shared_postgres.dsn, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY"))
    yield _named(shared_postgres.dsn, name)
    asyncio.run(_admin(shared_postgres.dsn, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    """Returns the real store on a fresh database."""
    made = PostgresStore(await Database.connect(dsn, size=16))
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def cluster(stage: "Stage") -> AsyncIterator[Cluster]:
    """Returns a connection to the cluster of the test's stage."""
    opened = stage.open()
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def home() -> Iterator[Path]:
    """Returns a folder with a short path, because the path of a socket in it must stay below 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        yield Path(folder)


@pytest.fixture
def make_fleet() -> Iterator[Callable[..., Fleet]]:
    """Starts fleets of real replicas and workers, each on its own Postgres. All their processes are ended after the test."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Fleet:
            return stack.enter_context(Fleet(**options))

        yield make


def _named(dsn: str, database: str) -> str:
    return dsn.replace("@/holdfast?", f"@/{database}?")


async def _admin(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
