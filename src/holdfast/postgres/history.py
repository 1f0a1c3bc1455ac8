"""The history: events in commit order, and what is pruned of it."""

import base64
from typing import Any

import asyncpg
import msgspec

from ..ports.store import Event
from .database import Database

COLUMNS = """
e.xid::text AS xid, e.id, extract(epoch FROM e.at)::float8 AS at, e.kind, e.also, e.reason, p.name AS pool, e.worker_id AS worker,
e.claim_id AS claim, e.tenant, e.data
"""
# Ids are not commit order: a reader that remembered the last id would skip rows of slower transactions. Rows below the oldest
# running transaction are complete, so reading up to there skips nothing.
EVENTS = f"""
SELECT {COLUMNS} FROM holdfast.event e LEFT JOIN holdfast.pool p ON p.id = e.pool_id
WHERE e.xid < pg_snapshot_xmin(pg_current_snapshot()) AND (e.xid, e.id) > ($1::text::xid8, $2::bigint)
  AND ($3::text IS NULL OR e.claim_id = $3) AND ($4::text IS NULL OR e.worker_id = $4) AND ($5::text IS NULL OR p.name = $5)
  AND ($7::text IS NULL OR e.tenant = $7)
ORDER BY e.xid, e.id LIMIT $6
"""
NEWEST = f"""
SELECT * FROM (
    SELECT {COLUMNS}, e.xid AS x FROM holdfast.event e LEFT JOIN holdfast.pool p ON p.id = e.pool_id
    WHERE e.xid < pg_snapshot_xmin(pg_current_snapshot()) AND (e.xid, e.id) > ($1::text::xid8, $2::bigint)
      AND ($3::text IS NULL OR e.claim_id = $3) AND ($4::text IS NULL OR e.worker_id = $4) AND ($5::text IS NULL OR p.name = $5)
      AND ($7::text IS NULL OR e.tenant = $7)
    ORDER BY e.xid DESC, e.id DESC LIMIT $6) n ORDER BY x, id
"""
NOTE = """
INSERT INTO holdfast.event (at, kind, reason, pool_id, worker_id, claim_id, tenant)
VALUES (holdfast.now(), $1, $2, $3, $4, $5, $6)
"""
PRUNE = """
WITH clock AS (SELECT holdfast.now() AS t),
keys AS (UPDATE holdfast.claim SET key_live = false FROM clock
         WHERE key_live AND state = 'ended' AND ended_at < clock.t - interval '24 h' RETURNING 1),
claims AS (DELETE FROM holdfast.claim USING clock
           WHERE state = 'ended' AND NOT key_live AND ended_at < clock.t - make_interval(days => $1) RETURNING 1),
workers AS (DELETE FROM holdfast.worker USING clock
            WHERE state = 'gone' AND state_since < clock.t - make_interval(days => $1) RETURNING 1),
pulses AS (DELETE FROM holdfast.pulse WHERE NOT EXISTS
           (SELECT FROM holdfast.worker w WHERE w.id = pulse.worker_id AND w.state <> 'gone') RETURNING 1),
replicas AS (DELETE FROM holdfast.replica USING clock WHERE seen_at < clock.t - interval '1 day' RETURNING 1),
endings AS (DELETE FROM holdfast.ending USING clock WHERE at < clock.t - interval '1 hour' RETURNING 1),
tokens AS (DELETE FROM holdfast.token USING clock WHERE expires_at < clock.t - interval '1 day' RETURNING 1),
pools AS (DELETE FROM holdfast.pool USING clock WHERE state = 'gone' AND updated_at < clock.t - make_interval(days => $1)
          AND NOT EXISTS (SELECT FROM holdfast.claim c WHERE c.pool_id = pool.id) RETURNING 1),
shares AS (DELETE FROM holdfast.fair WHERE NOT EXISTS
           (SELECT FROM holdfast.pool p WHERE p.id = fair.pool_id AND p.state <> 'gone') RETURNING 1)
SELECT (SELECT count(*) FROM keys) AS keys, (SELECT count(*) FROM claims) AS claims, (SELECT count(*) FROM workers) AS workers,
       (SELECT count(*) FROM pulses) AS pulses, (SELECT count(*) FROM replicas) AS replicas,
       (SELECT count(*) FROM endings) AS endings, (SELECT count(*) FROM tokens) AS tokens, (SELECT count(*) FROM pools) AS pools,
       (SELECT count(*) FROM shares) AS shares
"""
PARTITIONS = "SELECT @fn.event_partitions($1)"
OUTPUTS = "SELECT id FROM holdfast.claim WHERE state <> 'ended' OR ended_at > holdfast.now() - interval '24 h'"


class PostgresHistory:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def events(
        self,
        *,
        after: str | None,
        limit: int,
        claim: str | None = None,
        worker: str | None = None,
        pool: str | None = None,
        tenant: str | None = None,
        newest: bool = False,
    ) -> tuple[list[Event], str]:
        xid, number = decode_cursor(after) if after else ("0", 0)
        sql = NEWEST if newest else EVENTS
        rows = await self._db.rows(sql, xid, number, claim, worker, pool, limit, tenant)
        events = [_event(row) for row in rows]
        return events, events[-1].cursor if events else (after or encode_cursor("0", 0))

    async def note(self, kind: str, reason: str, **about: str | None) -> None:
        keys = ("pool_id", "worker", "claim", "tenant")
        await self._db.rows(NOTE, kind, reason, *(about.get(key) for key in keys))

    async def prune(self, days: int) -> dict[str, int]:
        row = await self._db.row(PRUNE, days)
        assert row is not None
        dropped = await self._db.value(PARTITIONS, days)
        return {**dict(row), "event_days": dropped}

    async def live_outputs(self) -> set[str]:
        return {row["id"] for row in await self._db.rows(OUTPUTS)}

    async def prepare_partitions(self) -> None:
        await self._db.value(PARTITIONS, 3650)


def encode_cursor(xid: str, number: int) -> str:
    return base64.urlsafe_b64encode(f"{xid}.{number}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> tuple[str, int]:
    """ValueError: not a cursor of ours."""
    try:
        xid, _, number = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(".")
        if not (xid.isascii() and xid.isdigit() and int(xid) < 2**64 and 0 <= int(number) < 2**63):
            raise ValueError(cursor)
        return xid, int(number)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError("not a cursor of this list") from error


def _event(row: asyncpg.Record) -> Event:
    data: dict[str, Any] | None = msgspec.json.decode(row["data"]) if row["data"] else None
    return Event(
        cursor=encode_cursor(row["xid"], row["id"]),
        **{k: row[k] for k in ("at", "kind", "also", "reason", "pool", "worker", "claim", "tenant")},
        data=data,
    )
