"""A real Postgres for simulations. Databases are copies of a migrated template, and statements take no virtual time."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import uvloop

from ..postgres.embedded import EmbeddedPostgres, find_binaries
from ..postgres.migrate import migrate

T = TypeVar("T")

INSTALL = "i-sim"
TEMPLATE = "sim_template"
DATA = "postgres"  # the server's folder
# We do not simulate durability. Autovacuum is off, because query plans and the order of rows must not depend on when it ran.
SETTINGS = ("fsync = off", "synchronous_commit = off", "full_page_writes = off", "autovacuum = off", "max_connections = 50")
VIRTUAL_NOW = """
CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
$$SELECT to_timestamp(current_setting('holdfast.now')::float8)$$;
"""


class Inner:
    """A second event loop, which runs one query to its end while the virtual loop stands still."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return self._loop.run_until_complete(work)
        finally:
            asyncio._set_running_loop(outer)

    def close(self) -> None:
        self._loop.close()


def launch(folder: Path) -> EmbeddedPostgres:
    """Start a server that contains a migrated template."""
    server = EmbeddedPostgres(folder / DATA, find_binaries())
    server.start()
    asyncio.run(_prepare(server.dsn))
    server.stop()  # some of the settings are read only at the start
    server.start()
    return server


async def _prepare(dsn: str) -> None:
    admin = await asyncpg.connect(dsn, timeout=10)
    try:
        for setting in SETTINGS:
            name, _, value = setting.partition(" = ")
            await admin.execute(f"ALTER SYSTEM SET {name} = {value}")
        await admin.execute(f"CREATE DATABASE {TEMPLATE}")
        await migrate(named(dsn, TEMPLATE), INSTALL)
        inside = await asyncpg.connect(named(dsn, TEMPLATE), timeout=10)
        try:
            await inside.execute(VIRTUAL_NOW)
            await inside.execute("ANALYZE")
        finally:
            await inside.close()
    finally:
        await admin.close()


def named(dsn: str, database: str) -> str:
    return dsn.replace("@/holdfast?", f"@/{database}?")


class Postgres:
    """The database of one run, queried from the virtual loop."""

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn = dsn
        self._name = name
        self._inner = Inner()
        self._copies = 0
        self._now = 0.0
        self.heard: list[str] = []  # notifications of the last statement
        self._admin(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')
        self._connection = self._inner.run(self._connect())

    def ask(self, now: float, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement at this virtual time."""
        return self._inner.run(self._ask(now, sql, args))

    def copy(self) -> str:
        """Copy the database as it is now. Returns the copy's name."""
        self._copies += 1
        aside = f"{self._name}_{self._copies}"
        self._inner.run(self._connection.close())
        self._admin(f'DROP DATABASE IF EXISTS "{aside}"', f'CREATE DATABASE "{aside}" TEMPLATE "{self._name}"')
        self._connection = self._inner.run(self._connect())
        return aside

    def put_back(self, aside: str) -> None:
        """Replace the database by this copy. Everything written since then is lost."""
        self._inner.run(self._connection.close())
        self._admin(f'DROP DATABASE "{self._name}" WITH (FORCE)', f'ALTER DATABASE "{aside}" RENAME TO "{self._name}"')
        self._connection = self._inner.run(self._connect())

    def close(self) -> None:
        self._inner.run(self._connection.close())
        names = [self._name, *(f"{self._name}_{n + 1}" for n in range(self._copies))]
        self._admin(*(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)' for name in names))
        self._inner.close()

    async def _ask(self, now: float, sql: str, args: tuple[object, ...]) -> list[asyncpg.Record]:
        if now != self._now:
            await self._connection.fetch("SELECT set_config('holdfast.now', $1, false)", repr(now))
            self._now = now
        self.heard = []
        rows: list[asyncpg.Record] = await self._connection.fetch(sql, *args)
        return rows

    async def _connect(self) -> asyncpg.Connection:
        self._now = 0.0
        # The settings of the real pool, so that statements which it refuses are refused here too.
        settings = {"jit": "off", "statement_timeout": "10s", "lock_timeout": "5s"}
        connection = await asyncpg.connect(
            named(self._dsn, self._name), timeout=10, statement_cache_size=1000, server_settings=settings
        )
        # Postgres delivers a session's own notifications before it is ready for the next statement, so none arrives late.
        await connection.add_listener("holdfast", lambda _c, _p, _n, payload: self.heard.append(payload))
        return connection

    def _admin(self, *statements: str) -> None:
        async def run() -> None:
            admin = await asyncpg.connect(self._dsn, timeout=10)
            try:
                for statement in statements:
                    await admin.execute(statement)
            finally:
                await admin.close()

        self._inner.run(run())
