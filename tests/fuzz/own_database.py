"""An empty database for one run."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg


@contextmanager
def own_database(runner: asyncio.Runner, server: str) -> Iterator[str]:
    """Yields the DSN of a new database on this server, and drops the database afterwards."""
    name = f"fuzz_{os.getpid()}"
    runner.run(_execute(server, f"CREATE DATABASE {name}"))
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        runner.run(_execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(server: str, statement: str) -> None:
    connection = await asyncpg.connect(server, timeout=60)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
