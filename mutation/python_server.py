"""Keeps one Postgres server per copy running while mutants are judged, because a server per mutant costs more than its tests."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

TEMPLATE = "migrated"  # the database that tests copy
# Both are read by tests/conftest.py.
SERVER_FOLDER, SERVER_TEMPLATE = "HOLDFAST_TEST_POSTGRES", "HOLDFAST_TEST_TEMPLATE"


class Server:
    """A running server and the variables with which tests find it."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self._dsn = dsn
        self.variables = {SERVER_FOLDER: str(folder), SERVER_TEMPLATE: TEMPLATE}

    def sweep(self) -> None:
        """Drops the databases that tests left behind, because a test process that is ended early does not drop its own."""
        asyncio.run(_drop_all_but_the_template(self._dsn))


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Starts a server with a migrated template. The template is made once, because no mutant changes a migration."""
    from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries
    from holdfast.postgres.migrate import migrate

    # In memory if possible, because no data here must survive a crash.
    memory = Path("/dev/shm")
    home = Path(tempfile.mkdtemp(prefix="hf-mutants-", dir=memory if os.access(memory, os.W_OK) else None))
    home.chmod(0o755)  # as root, Postgres runs as another account
    server = EmbeddedPostgres(home / "postgres", find_binaries())
    try:
        server.start()
        asyncio.run(_execute(server.dsn, *(f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "full_page_writes"))))
        asyncio.run(_execute(server.dsn, "SELECT pg_reload_conf()", f"CREATE DATABASE {TEMPLATE}"))
        asyncio.run(migrate(server.dsn.replace("@/holdfast?", f"@/{TEMPLATE}?"), "i-test"))
        yield Server(home / "postgres", server.dsn)
    finally:
        server.kill()
        shutil.rmtree(home, ignore_errors=True)


async def _execute(dsn: str, *statements: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _drop_all_but_the_template(dsn: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        kept = ["holdfast", "postgres", "template0", "template1", TEMPLATE]
        for row in await connection.fetch("SELECT datname FROM pg_database WHERE datname <> ALL($1::text[])", kept):
            await connection.execute(f'DROP DATABASE "{row[0]}" WITH (FORCE)')
    finally:
        await connection.close()
