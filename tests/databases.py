"""One migrated database that tests use one after the other. It is emptied between tests, which is quicker than a new one."""

import asyncio
import os

import asyncpg

from holdfast.ports.recovery import Mark
from holdfast.postgres.database import Database
from holdfast.postgres.migrate import migrate

# The table of the tests' clock. Every reused database has it, because a test that changes the schema costs a new database.
CLOCK_TABLE = ("CREATE SCHEMA IF NOT EXISTS kept", "CREATE TABLE IF NOT EXISTS kept.clock (t timestamptz NOT NULL)")

# Everything that a test may change and that emptying the tables does not restore. The clock is left out: it is put back.
SCHEMA = """
SELECT md5(string_agg(line, ',' ORDER BY line)) FROM (
    SELECT 'n' || nspname AS line FROM pg_namespace WHERE nspname !~ '^pg_'
    UNION ALL SELECT concat('f', oid, hashtext(prosrc)) FROM pg_proc WHERE oid >= 16384 AND oid <> 'holdfast.now()'::regprocedure
    UNION ALL SELECT concat('r', oid, relkind) FROM pg_class WHERE oid >= 16384
        AND relnamespace <> 'pg_toast'::regnamespace AND relpersistence <> 't'
    UNION ALL SELECT concat('a', attrelid, attnum, attname, atttypid, attnotnull, attisdropped)
        FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT concat('t', oid, tgname, tgenabled) FROM pg_trigger
    UNION ALL SELECT concat('c', oid, conname) FROM pg_constraint WHERE oid >= 16384
    UNION ALL SELECT concat('s', setrole, setconfig) FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
) lines
"""
TABLES = """
SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'r' ORDER BY 1
"""
SEQUENCES = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'S' ORDER BY 1"
# Drops the partitions that pruning makes. A migrated database has none of them.
PARTITIONS = """
DO $$ DECLARE made regclass; BEGIN
    FOR made IN SELECT oid FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relname ~ '^event_[0-9]{8}$' LOOP
        EXECUTE format('DROP TABLE %s', made);
    END LOOP;
END $$
"""
# Ends all connections but our own and those that are kept for the next test. A kept one ends too if a test left a statement or a
# lock in it. The statement does not wait for their ends, because Postgres would look for them only every 100 ms.
OTHERS = """
SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity a
WHERE datname = $1 AND pid <> pg_backend_pid() AND (pid <> ALL ($2::integer[]) OR state <> 'idle'
    OR EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory'))
"""


class ReusedDatabase:
    """A migrated database on a server. `use` and `clean` surround each test."""

    def __init__(self, server: str, template: str | None = None) -> None:
        """`template` names a migrated database on this server that is copied instead of migrating again."""
        self._server = server
        self._template = template
        self._name = f"test_{os.getpid()}"  # because several processes may use one server
        self._runner = asyncio.Runner()
        self._connection: asyncpg.Connection | None = None
        self._schema = ""
        self._clean = ""
        self._kept: dict[asyncio.AbstractEventLoop, Database] = {}

    @property
    def dsn(self) -> str:
        return self._server.replace("@/holdfast?", f"@/{self._name}?")

    def use(self) -> str:
        """Returns the DSN of the empty database, which is made if there is none."""
        if self._connection is None:
            self._runner.run(self._make())
        return self.dsn

    async def connect(self) -> Database:
        """Returns a Database whose connections are kept for the next test in this event loop, because a new connection plans
        every statement again. A test that changes the session of a connection needs one of its own."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(loop)
        if kept is None or kept._pool.is_closing():
            kept = self._kept[loop] = await Database.connect(self.dsn, size=16)
        return Database(kept._pool, self.dsn, Mark(), pids=kept.pids)

    async def disconnect(self) -> None:
        """Closes the connections that were kept for this event loop."""
        if (kept := self._kept.pop(asyncio.get_running_loop(), None)) is not None:
            await kept.close()

    def clean(self) -> None:
        """Ends all other connections and empties the database, or drops it if the test has changed its schema."""
        self._runner.run(self._empty())

    def close(self) -> None:
        """Drops the database and ends the connection."""
        if self._connection is not None:
            self._runner.run(self._drop())
        self._runner.close()

    async def _make(self) -> None:
        if self._template is not None:
            await self._on_server(f"CREATE DATABASE {self._name} TEMPLATE {self._template} STRATEGY FILE_COPY")
        else:
            await self._on_server(f"CREATE DATABASE {self._name}")
            await migrate(self.dsn, "i-test")
        self._connection = connection = await asyncpg.connect(self.dsn, timeout=60)
        clock = await connection.fetchval("SELECT pg_get_functiondef('holdfast.now()'::regprocedure)")
        # The rows that a migration makes are kept, because emptying a table removes them too.
        tables = [row[0] for row in await connection.fetch(TABLES)]
        filled = [name for name in tables if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {name})")]
        for statement in CLOCK_TABLE:
            await connection.execute(statement)
        for name in filled:
            await connection.execute(f"CREATE TABLE {_kept(name)} AS TABLE {name}")
        sequences = [row[0] for row in await connection.fetch(SEQUENCES)]
        # Triggers and foreign keys are off in this connection, so that the tables can be emptied in any order.
        await connection.execute("SET session_replication_role = replica")
        self._clean = ";\n".join(
            (
                *(f"DELETE FROM {name}" for name in tables),
                *(f"INSERT INTO {name} SELECT * FROM {_kept(name)}" for name in filled),
                *(f"SELECT setval('{name}', 1, false)" for name in sequences),
                clock,
            )
        )
        self._schema = await connection.fetchval(SCHEMA)

    async def _empty(self) -> None:
        assert self._connection is not None
        kept = {pid for database in self._kept.values() for pid in database.pids}
        while ended := {row["pid"] for row in await self._connection.fetch(OTHERS, self._name, list(kept))}:
            if ended & kept:
                self._kept.clear()  # the ended connections do not know yet that they have ended
            await asyncio.sleep(0.002)
        await self._connection.execute(PARTITIONS)
        if await self._connection.fetchval(SCHEMA) != self._schema:
            await self._drop()
            return
        await self._connection.execute(self._clean)

    async def _drop(self) -> None:
        assert self._connection is not None
        await self._connection.close()
        self._connection = None
        self._kept.clear()
        await self._on_server(f"DROP DATABASE {self._name} WITH (FORCE)")

    async def _on_server(self, statement: str) -> None:
        connection = await asyncpg.connect(self._server, timeout=60)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def _kept(table: str) -> str:
    return "kept." + table.rpartition(".")[2]
