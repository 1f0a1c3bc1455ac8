"""Replaces the clock of the database by one that only the test moves."""

from databases import CLOCK_TABLE
from holdfast.postgres.store import PostgresStore

DAY = 86_400.0


class Clock:
    """The clock of the database, which only the test moves."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    @classmethod
    async def of(cls, store: PostgresStore) -> "Clock":
        rows = store.db.rows
        for statement in (*CLOCK_TABLE, "TRUNCATE kept.clock"):
            await rows(statement)
        await rows("INSERT INTO kept.clock VALUES ('2030-01-01 12:00:00+00')")
        await rows(
            "CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT t FROM kept.clock'"
        )
        await rows("UPDATE holdfast.hearing SET last_heard = holdfast.now(), deaf = '0'")
        return cls(store)

    async def jump(self, seconds: float) -> None:
        """Moves the clock forward or back. No beat arrives in this time, so it does not count as heard time."""
        await self._store.db.rows("UPDATE kept.clock SET t = t + make_interval(secs => $1)", float(seconds))

    async def beat(self, elapsed: float | None) -> None:
        await self._store.fleet.beat("r-1", elapsed, 10.0, [])

    async def live(self, seconds: int) -> None:
        """Lets time pass as in normal operation, with one beat per second."""
        for _ in range(seconds):
            await self.jump(1)
            await self.beat(1.0)

    async def elapse(self, seconds: float) -> None:
        """Lets time pass as in normal operation, in one step. So days of heard time can pass in a test."""
        await self.jump(seconds)
        later = "UPDATE holdfast.hearing SET last_heard = last_heard + make_interval(secs => $1)"
        await self._store.db.rows(later, float(seconds))

    async def outage(self, seconds: float) -> None:
        """Lets time pass without any beat. Then the first beat of a replica arrives."""
        await self.jump(seconds)
        await self.beat(seconds)

    async def heard(self) -> float:
        return float(await self._store.db.value("SELECT extract(epoch FROM holdfast.heard())::float8"))
