"""The last output of workers in Postgres: one text per worker, which each report replaces."""

import asyncpg

from ..ports.logs import LOG_LIMIT, WorkerLog
from .database import Database

# The row of the worker proves that this agent may write this log. A worker that has ended may still send its last output.
KEEP = """
INSERT INTO holdfast.worker_log AS log (worker_id, at, text)
SELECT w.id, holdfast.now(), $3 FROM holdfast.worker w WHERE w.id = $1 AND w.pod_uid = $2
ON CONFLICT (worker_id) DO UPDATE SET at = excluded.at, text = excluded.text
RETURNING 1
"""
COLUMNS = "l.worker_id, extract(epoch FROM l.at)::float8 AS at, l.text"
GET = f"SELECT {COLUMNS} FROM holdfast.worker_log l WHERE l.worker_id = $1"
NEWEST = f"""
SELECT {COLUMNS} FROM holdfast.worker_log l JOIN holdfast.worker w ON w.id = l.worker_id
WHERE w.pool_id = $1 AND w.state IN ('retiring', 'gone') ORDER BY l.at DESC LIMIT 1
"""


class PostgresLogs:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def keep(self, worker: str, uid: str, text: str) -> bool:
        return await self._db.value(KEEP, worker, uid, text[-LOG_LIMIT:]) is not None

    async def get(self, worker: str) -> WorkerLog | None:
        return _log(await self._db.row(GET, worker))

    async def newest(self, pool_id: str) -> WorkerLog | None:
        return _log(await self._db.row(NEWEST, pool_id))


def _log(row: asyncpg.Record | None) -> WorkerLog | None:
    return None if row is None else WorkerLog(row["worker_id"], row["at"], row["text"])
