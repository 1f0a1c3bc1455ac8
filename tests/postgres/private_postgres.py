"""Sends statements to a private Postgres that a test has started."""

import asyncio

import asyncpg


def ask(dsn: str, *statements: str) -> object:
    """Returns the first value of the last statement."""

    async def run() -> object:
        connection = await asyncpg.connect(dsn, timeout=60)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    return asyncio.run(run())
