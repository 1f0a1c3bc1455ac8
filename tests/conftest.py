"""Fixtures that all tests share: a Postgres and a database per test process, emptied after each test, and fleets of processes."""

import asyncio
import contextlib
import gc
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
from databases import ReusedDatabase
from fleet import Fleet
from holdfast.ports.cluster import Cluster
from holdfast.postgres.database import Database
from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries
from holdfast.postgres.store import PostgresStore
from scratch import prepared_postgres
from served_api import served, server_thread  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from contracts.cluster import Stage

pytest.register_assert_rewrite("contracts.cluster")  # before the first import, so that failed asserts in it show their values

# Fixtures that start a whole fleet, real or simulated, or a cluster. `make test-quick` leaves out every test that uses one of
# these, and the folders e2e and soak.
WHOLE = {"make_fleet", "control_plane", "own_control_plane", "simulated", "simulated_dsn"}


@pytest.hookimpl(tryfirst=True)  # must run before pytest applies `-m`, and before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_without_binaries(config, items)
    for item in items:
        if WHOLE & set(getattr(item, "fixturenames", ())):
            item.add_marker("whole")
        if _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    # Long tests come first. Short ones at the end fill the processes evenly, so that none of them waits for the last long test.
    items.sort(key=lambda item: item.get_closest_marker("whole") is None)


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Returns whether the tests of this test's file share a fixture. They run in one process; otherwise each process would
    prepare that fixture for itself."""
    fixtures = getattr(item, "_fixtureinfo", None)
    return fixtures is not None and any(each[-1].scope == "module" for each in fixtures.name2fixturedefs.values())


def pytest_collection_finish() -> None:
    """Keeps the collected tests out of every later garbage collection, which would cost a tenth of the suite's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[EmbeddedPostgres]:
    if running := os.environ.get("HOLDFAST_TEST_POSTGRES"):  # the folder of a server that keeps running after this process
        yield EmbeddedPostgres(Path(running), find_binaries())
        return
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    folder.chmod(0o755)  # because Postgres runs as another account when the tests run as root
    server = prepared_postgres(folder / "postgres")
    server.start()
    # The database is thrown away after the tests, so a crash loses nothing.
    asyncio.run(_admin(server.dsn, *(f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "full_page_writes"))))
    asyncio.run(_admin(server.dsn, "SELECT pg_reload_conf()"))
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def reused_database(shared_postgres: EmbeddedPostgres) -> Iterator[ReusedDatabase]:
    """Returns the database that the tests of this process use one after the other."""
    database = ReusedDatabase(shared_postgres.dsn, os.environ.get("HOLDFAST_TEST_TEMPLATE"))
    yield database
    database.close()


@pytest.fixture
def dsn(reused_database: ReusedDatabase) -> Iterator[str]:
    """Returns the DSN of a migrated database that holds nothing of another test."""
    yield reused_database.use()
    reused_database.clean()


@pytest.fixture(scope="session")
async def connected_database(reused_database: ReusedDatabase) -> AsyncIterator[ReusedDatabase]:
    """Returns the same database for tests that use its kept connections. All of them run in one event loop."""
    yield reused_database
    await reused_database.disconnect()


@pytest.fixture
async def no_task_left(dsn: str) -> AsyncIterator[None]:
    """Cancels the tasks that a test leaves behind, before its database is emptied. All tests share one event loop, so otherwise
    such a task would go on in the next test."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@pytest.fixture
async def store(no_task_left: None, connected_database: ReusedDatabase) -> PostgresStore:
    """Returns the real store on a fresh database."""
    return PostgresStore(await connected_database.connect())


@pytest.fixture
async def lone_store(no_task_left: None, dsn: str) -> AsyncIterator[PostgresStore]:
    """Returns the real store with a single connection of its own, for a test that changes the connection's session."""
    made = PostgresStore(await Database.connect(dsn, size=1))
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


async def _admin(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
