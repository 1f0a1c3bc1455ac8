"""Bring the schema up to date: tables by numbered migrations, functions by release. Replicas may do this at the same time."""

import asyncpg

from ..ports.store import StoreUnavailable, WrongInstallation
from .database import UNAVAILABLE
from .dsn import REFUSALS, WrongDsn, reason_of, server_of
from .rendering import HERE, functions_schema, functions_text, render

LOCK = 7_413_000_001  # one advisory lock for all of Holdfast's schema changes
LONGEST = 120  # seconds for one statement; a replica may wait 60 of them until another has migrated


async def migrate(dsn: str, install: str | None) -> list[str]:
    """Applies what is missing and returns the names of what was applied. If two replicas start at the same time, the second waits
    and finds it done. The first installation that migrates the database owns it. A replica of another installation is refused,
    because it would see none of the pods and would take every worker for dead. Raises WrongDsn if trying again is of no use."""
    server = server_of(dsn)
    try:
        return await _migrate(dsn, install)
    except asyncpg.exceptions.ClientConfigurationError as error:
        raise WrongDsn(str(error)) from None  # an option such as `sslmode` has a wrong value
    except REFUSALS as error:
        raise WrongDsn(f"Postgres at {server} refused it: {error}") from None
    except UNAVAILABLE as error:
        raise StoreUnavailable(f"Postgres at {server} is not available ({reason_of(error)})") from error


async def _migrate(dsn: str, install: str | None) -> list[str]:
    # One transaction, and a lock that ends with it, because this also works behind PgBouncer in transaction mode.
    connection = await asyncpg.connect(dsn, timeout=10, command_timeout=LONGEST, statement_cache_size=0)
    try:
        version = connection.get_server_version()
        if version.major < 15:
            raise StoreUnavailable(f"Postgres {version.major} is too old: Holdfast needs 15 or newer")
        async with connection.transaction():
            await connection.execute(f"SET LOCAL statement_timeout = '{LONGEST}s'")  # the role's limit is for short statements
            await connection.execute("SET LOCAL lock_timeout = '60s'")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            applied = await _tables(connection)
            applied += await _functions(connection)
            if install is not None:
                owner = "INSERT INTO holdfast.installation (install_id) VALUES ($1) ON CONFLICT (one) DO NOTHING"
                await connection.execute(owner, install)
                owned = await connection.fetchval("SELECT install_id FROM holdfast.installation")
                if owned != install:
                    raise WrongInstallation(
                        f"this database belongs to installation {owned}, and this data directory to {install}"
                    )
        return applied
    finally:
        await connection.close(timeout=5)


async def _tables(connection: asyncpg.Connection) -> list[str]:
    await connection.execute("CREATE SCHEMA IF NOT EXISTS holdfast")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS holdfast.migration (name text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"
    )
    done = {row["name"] for row in await connection.fetch("SELECT name FROM holdfast.migration")}
    applied = []
    for path in sorted((HERE / "migrations").glob("*.sql")):
        if path.stem not in done:
            await connection.execute(path.read_text())
            await connection.execute("INSERT INTO holdfast.migration (name) VALUES ($1)", path.stem)
            applied.append(path.stem)
    return applied


async def _functions(connection: asyncpg.Connection) -> list[str]:
    schema = functions_schema()
    if await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema):
        return []
    await connection.execute(f"CREATE SCHEMA {schema}")
    await connection.execute(render(functions_text(), schema))
    return [schema]
