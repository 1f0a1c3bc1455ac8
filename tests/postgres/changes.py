"""Shows everything that a statement wrote: columns of rows, events and notifications."""

import json
from datetime import datetime
from typing import Any

import asyncpg

from holdfast.model.pool import Pool, PoolSpec
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_steps import SESSION, agent_report

KEYS = {
    "installation": "''",
    "hearing": "''",
    "replica": "id",
    "term": "duty",
    "pool": "id",
    "tenant": "name",
    "claim": "id",
    "claim_secret": "claim_id",
    "worker": "id",
    "heartbeat": "worker_id",
    "worker_log": "worker_id",
    "fair": "pool_id || ' ' || priority || ' ' || tenant",
    "ending": "kind || ' ' || id",
}
NOON = "2030-01-01 12:00:00+00:00"  # the start of the test's clock


class Changes:
    """Compares all tables before and after a statement. Times are seconds since the start of the test's clock."""

    def __init__(self, store: PostgresStore, listener: asyncpg.Connection) -> None:
        self._store, self._listener = store, listener
        self._notices: list[str] = []
        self._before: dict[str, dict[str, Any]] = {}
        self._event = 0

    @classmethod
    async def of(cls, store: PostgresStore) -> "Changes":
        listener = await asyncpg.connect(store.db.dsn, timeout=10)
        changes = cls(store, listener)
        await listener.add_listener("holdfast", lambda *received: changes._notices.append(received[-1]))
        await changes.seen()
        return changes

    async def __aenter__(self) -> "Changes":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._listener.close()

    async def seen(self) -> dict[str, Any]:
        """Returns the changes since the last call: new values per row (None for a deleted row), events and notifications."""
        after = await self._tables()
        found: dict[str, Any] = {}
        for row in sorted(self._before.keys() | after.keys()):
            old, new = self._before.get(row, {}), after.get(row)
            if new is None:
                found[row] = None
            elif changed := {column: value for column, value in new.items() if old.get(column) != value}:
                found[row] = changed
        self._before = after
        if events := await self._events():
            found["events"] = events
        await self._listener.fetchval("SELECT 1")  # when this returns, all earlier notifications have arrived
        if self._notices:
            found["notices"] = sorted(self._notices)
            self._notices.clear()
        return found

    async def _tables(self) -> dict[str, dict[str, Any]]:
        union = " UNION ALL ".join(
            f"SELECT '{table} ' || {key} AS key, to_jsonb(t) AS j FROM holdfast.{table} t" for table, key in KEYS.items()
        )
        rows = await self._store.db.rows(union)
        return {row["key"].strip(): {k: _plain(v) for k, v in json.loads(row["j"]).items()} for row in rows}

    async def _events(self) -> list[str]:
        rows = await self._store.db.rows(
            f"""SELECT id, concat_ws(' ', extract(epoch FROM at - '{NOON}')::integer, kind, also, pool_id, worker_id, claim_id,
                       tenant, nullif('"' || reason || '"', '""'), data) AS event
                FROM holdfast.event WHERE id > $1 ORDER BY id""",
            self._event,
        )
        self._event = max([self._event, *(row["id"] for row in rows)])
        return [row["event"] for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("20") and "T" in value:
        return (datetime.fromisoformat(value) - datetime.fromisoformat(NOON)).total_seconds()
    return value


async def apart(store: PostgresStore) -> Clock:
    """Returns a clock whose heard time is 100 s behind, so that a test notices a column that stores the wrong time of the two."""
    clock = await Clock.of(store)
    await clock.outage(100)
    return clock


async def pool_with_worker(store: PostgresStore, spec: PoolSpec = SESSION, worker: str = "w-1") -> Pool:
    pool, _ = await store.pools.put("p-1", "linux", spec, "api")
    await add_worker(store, pool, worker)
    return pool


async def add_worker(store: PostgresStore, pool: Pool, worker: str) -> None:
    assert len(await store.workers.spawn(pool.id, [worker], 1000, 1000)) == 1
    await store.workers.spawned(worker, f"uid-{worker}")
    if pool.spec.worker.agent:
        await store.workers.report(agent_report(worker))
    else:
        await store.workers.warm(worker, 2, None)
