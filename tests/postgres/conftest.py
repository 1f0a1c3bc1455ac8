"""Fixtures: a private Postgres, a PgBouncer in front of the shared Postgres, and the shared Postgres with fsync on."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from bouncer import PgBouncer
from holdfast.postgres import binaries
from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries
from scratch import memory, prepared_postgres
from waiting import eventually


@pytest.fixture
def place() -> Iterator[Path]:
    """Returns a folder that every account can read. Only the owner can read the folders of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="hf-")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns a folder that every account can read, unlike pytest's own. All servers in it are ended."""
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir=memory())).resolve()
    folder.chmod(0o755)
    monkeypatch.setattr(binaries, "SHARED", folder / "shared")
    yield folder
    for lock in folder.rglob("postmaster.pid"):
        EmbeddedPostgres(lock.parent.parent, find_binaries()).kill()
    shutil.rmtree(folder)


@pytest.fixture
def pg(reachable: Path) -> EmbeddedPostgres:
    """Returns a Postgres whose cluster exists. It was not started yet."""
    return prepared_postgres(reachable / "postgres")


@pytest.fixture
def first(reachable: Path) -> EmbeddedPostgres:
    """Returns a Postgres that has no cluster yet."""
    return EmbeddedPostgres(reachable / "postgres", find_binaries())


@pytest.fixture
def bouncer(shared_postgres: EmbeddedPostgres, place: Path) -> Iterator[PgBouncer]:
    with PgBouncer(shared_postgres, place / "bouncer") as bouncer:
        yield bouncer


@pytest.fixture
def durable(shared_postgres: EmbeddedPostgres) -> Iterator[None]:
    """Turns fsync on in the shared server, because `doctor` requires it."""
    _set_fsync(shared_postgres.dsn, "on")
    yield
    _set_fsync(shared_postgres.dsn, "off")


def _set_fsync(dsn: str, value: str) -> None:
    asyncio.run(_admin(dsn, f"ALTER SYSTEM SET fsync = {value}", "SELECT pg_reload_conf()"))
    eventually(lambda: asyncio.run(_admin(dsn, "SHOW fsync")) == value, what=f"fsync is {value}")


async def _admin(dsn: str, *statements: str) -> object:
    """Runs the statements and returns the value of the last one."""
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        for statement in statements[:-1]:
            await connection.execute(statement)
        return await connection.fetchval(statements[-1])
    finally:
        await connection.close()
