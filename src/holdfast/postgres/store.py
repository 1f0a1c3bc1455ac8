"""Assemble the store on Postgres from its parts."""

from typing import Any

from . import report
from .claims import PostgresClaims
from .database import Database
from .fleet import PostgresFleet
from .history import PostgresHistory
from .logs import PostgresLogs
from .notices import PolledNotices, PostgresNotices
from .pools import PostgresPools
from .recovery import PostgresRecovery
from .tokens import PostgresTokens
from .workers import PostgresWorkers


class PostgresStore:
    def __init__(self, db: Database) -> None:
        self.db = db
        self.claims = PostgresClaims(db)
        self.workers = PostgresWorkers(db)
        self.pools = PostgresPools(db)
        self.fleet = PostgresFleet(db)
        self.history = PostgresHistory(db)
        self.logs = PostgresLogs(db)
        self.tokens = PostgresTokens(db)
        self.recovery = PostgresRecovery(db)

    async def now(self) -> float:
        return float(await self.db.value("SELECT extract(epoch FROM holdfast.now())::float8"))

    async def listen(self) -> PolledNotices | PostgresNotices:
        return PolledNotices(self.db) if self.db.pooled else PostgresNotices(self.db.dsn, self.db.pids)

    async def metrics(self) -> dict[str, Any]:
        return await report.metrics(self.db)

    async def check(self) -> list[dict[str, Any]]:
        return await report.check(self.db)

    async def close(self) -> None:
        await self.db.close()
