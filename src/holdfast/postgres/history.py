"""The history: events in commit order, and what is pruned of it."""

import base64
from collections.abc import Mapping
from typing import Any, Unpack

import asyncpg
import msgspec

from ..model.event import FREQUENT, Actor
from ..ports.store import Event, EventFilters
from .conditions import OF_POOL, Conditions, filter_labels
from .database import Database

COLUMNS = """
e.xid::text AS xid, e.id, extract(epoch FROM e.at)::float8 AS at, e.kind, e.also, e.reason, p.name AS pool, e.worker_id AS worker,
e.claim_id AS claim, e.tenant, e.data, e.actor
"""
# The order of ids is not the order of commits, so a reader that remembers the last id would skip rows of slower transactions.
# Rows below the oldest running transaction (the edge) are complete, so this reads up to the edge. If nothing more matches, the
# reader continues from the edge and never reads the same part of the history twice.
EVENTS = f"""
WITH edge AS MATERIALIZED (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS x)
SELECT {COLUMNS}, edge.x::text AS edge FROM edge LEFT JOIN LATERAL (
    SELECT * FROM holdfast.event v WHERE v.xid < edge.x AND @where
    ORDER BY v.xid @order, v.id @order LIMIT $1) AS e ON true LEFT JOIN holdfast.pool p ON p.id = e.pool_id
ORDER BY e.xid, e.id
"""
OF_KINDS = "(v.kind = ANY ({0}::text[]) OR v.also = ANY ({0}::text[]))"
# The second condition is that of the index `event_kind`. Postgres uses the index only if the statement contains it.
OF_RARE_KINDS = f"v.kind = ANY ({{}}::text[]) AND v.kind NOT IN ({', '.join(repr(kind) for kind in FREQUENT)})"
NOTE = """
INSERT INTO holdfast.event (at, kind, reason, pool_id, worker_id, claim_id, tenant)
VALUES (holdfast.now(), $1, $2, $3, $4, $5, $6)
"""
# Rows are pruned in pieces, because a statement that always reaches its timeout would never finish.
PIECE = 5000
PRUNE = {
    # Heard time decides how long a claim is over, because a jump of the database's clock must not free its key. Both times are
    # compared: `ended_at` has an index, and the release before leaves `ended_heard` empty.
    "keys": """UPDATE holdfast.claim SET key_live = false WHERE id IN (SELECT id FROM holdfast.claim
               WHERE key_live AND state = 'ended' AND ended_at < holdfast.now() - make_interval(hours => @KEY_HOURS)
               AND coalesce(ended_heard < (SELECT holdfast.heard()) - make_interval(hours => @KEY_HOURS), true) LIMIT $1) RETURNING 1""",
    "claims": """DELETE FROM holdfast.claim WHERE id IN (SELECT id FROM holdfast.claim WHERE state = 'ended' AND NOT key_live
                 AND ended_at < holdfast.now() - make_interval(days => $2)
                 AND coalesce(ended_heard < (SELECT holdfast.heard()) - make_interval(days => $2), true) LIMIT $1) RETURNING 1""",
    # Ended claims of a tenant that has very many are kept only as long as their keys. Not shorter, because an agent that was cut off
    # may still report such a claim.
    "many_claims": """WITH RECURSIVE tenants AS (
                     (SELECT tenant FROM holdfast.claim ORDER BY tenant LIMIT 1)
                     UNION ALL
                     SELECT (SELECT c.tenant FROM holdfast.claim c WHERE c.tenant > tenants.tenant ORDER BY c.tenant LIMIT 1)
                     FROM tenants WHERE tenants.tenant IS NOT NULL)
                 DELETE FROM holdfast.claim WHERE id IN (SELECT old.id FROM tenants CROSS JOIN LATERAL (
                     SELECT c.id, c.ended_at, c.ended_heard FROM holdfast.claim c WHERE c.tenant = tenants.tenant AND c.state = 'ended'
                     AND NOT c.key_live ORDER BY c.created_at DESC, c.id DESC OFFSET @KEPT_CLAIMS LIMIT $1) AS old
                 WHERE old.ended_at < holdfast.now() - make_interval(hours => @KEY_HOURS)
                 AND coalesce(old.ended_heard < (SELECT holdfast.heard()) - make_interval(hours => @KEY_HOURS), true)
                 LIMIT $1) RETURNING 1""",
    "inputs": """DELETE FROM holdfast.claim_input WHERE claim_id IN (SELECT i.claim_id FROM holdfast.claim_input i WHERE NOT EXISTS
                 (SELECT FROM holdfast.claim c WHERE c.id = i.claim_id AND c.state <> 'ended') LIMIT $1) RETURNING 1""",
    "input_pieces": """DELETE FROM holdfast.claim_input_piece WHERE ctid = ANY (ARRAY(SELECT p.ctid FROM holdfast.claim_input_piece p
                 WHERE NOT EXISTS (SELECT FROM holdfast.claim_input i WHERE i.claim_id = p.claim_id) LIMIT $1)) RETURNING 1""",
    "workers": """DELETE FROM holdfast.worker WHERE id IN (SELECT id FROM holdfast.worker WHERE state = 'gone'
                  AND state_since < holdfast.now() - make_interval(days => $2) LIMIT $1) RETURNING 1""",
    "heartbeats": """DELETE FROM holdfast.heartbeat WHERE worker_id IN (SELECT u.worker_id FROM holdfast.heartbeat u WHERE NOT EXISTS
                 (SELECT FROM holdfast.worker w WHERE w.id = u.worker_id AND w.state <> 'gone')
                 AND u.beat_heard < holdfast.heard() - interval '10 min' LIMIT $1) RETURNING 1""",
    "logs": """DELETE FROM holdfast.worker_log WHERE worker_id IN (SELECT l.worker_id FROM holdfast.worker_log l WHERE l.at < holdfast.now()
               - make_interval(hours => @LOG_HOURS) AND NOT EXISTS (SELECT FROM holdfast.worker w WHERE w.id = l.worker_id AND (
               w.state <> 'gone' OR w.state_since > holdfast.now() - make_interval(hours => @LOG_HOURS))) LIMIT $1) RETURNING 1""",
    "replicas": """DELETE FROM holdfast.replica WHERE id IN (SELECT id FROM holdfast.replica
                   WHERE seen_at < holdfast.now() - interval '1 day' LIMIT $1) RETURNING 1""",
    "endings": """DELETE FROM holdfast.ending WHERE ctid = ANY (ARRAY(SELECT ctid FROM holdfast.ending
                  WHERE at < holdfast.now() - interval '1 hour' LIMIT $1)) RETURNING 1""",
    "tokens": """DELETE FROM holdfast.token WHERE id IN (SELECT id FROM holdfast.token
                 WHERE expires_at < holdfast.now() - interval '1 day' LIMIT $1) RETURNING 1""",
    "pools": """DELETE FROM holdfast.pool WHERE id IN (SELECT id FROM holdfast.pool p WHERE p.state = 'gone'
                AND p.updated_at < holdfast.now() - make_interval(days => $2)
                AND NOT EXISTS (SELECT FROM holdfast.claim c WHERE c.pool_id = p.id)
                AND NOT EXISTS (SELECT FROM holdfast.worker w WHERE w.pool_id = p.id) LIMIT $1) RETURNING 1""",
    "shares": """DELETE FROM holdfast.fair WHERE ctid = ANY (ARRAY(SELECT f.ctid FROM holdfast.fair f WHERE NOT EXISTS
                 (SELECT FROM holdfast.pool p WHERE p.id = f.pool_id AND p.state <> 'gone') LIMIT $1)) RETURNING 1""",
}
RELEASES = "SELECT @fn.drop_old_releases($1)"
PARTITIONS = "SELECT @fn.event_partitions($1)"
OUTPUTS = """
SELECT id FROM holdfast.claim WHERE state <> 'ended' OR ended_at > holdfast.now() - make_interval(hours => @KEY_HOURS)
    OR ended_heard > (SELECT holdfast.heard()) - make_interval(hours => @KEY_HOURS)
"""
EXCESS_OUTPUTS = """
SELECT id FROM (
    SELECT c.id, sum(o.bytes) OVER (PARTITION BY c.tenant ORDER BY c.ended_at DESC, c.id) AS bytes,
           coalesce(t.max_output_bytes, @MAX_OUTPUT_BYTES) AS most
    FROM unnest($1::text[], $2::bigint[]) AS o(id, bytes) JOIN holdfast.claim c ON c.id = o.id AND c.state = 'ended'
    LEFT JOIN holdfast.tenant t ON t.name = c.tenant) AS kept
WHERE bytes > most
"""


class PostgresHistory:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def events(
        self,
        *,
        limit: int,
        after: str | None = None,
        before: str | None = None,
        newest: bool = False,
        **about: Unpack[EventFilters],
    ) -> tuple[list[Event], str]:
        conditions = Conditions(limit)
        if after is not None:
            conditions.add("(v.xid, v.id) > ({}::text::xid8, {}::bigint)", *decode_cursor(after))
        if before is not None:
            conditions.add("(v.xid, v.id) < ({}::text::xid8, {}::bigint)", *decode_cursor(before))
        _filter(conditions, about)
        backwards = newest or before is not None
        sql = EVENTS.replace("@where", conditions.where).replace("@order", "DESC" if backwards else "ASC")
        rows = await self._db.rows(sql, *conditions.args)
        events = [_event(row) for row in rows if row["kind"] is not None]
        if before is not None:
            return events, events[-1].cursor if events else _just_before(before)
        return events, events[-1].cursor if len(events) == limit else encode_cursor(rows[0]["edge"], 0)

    async def note(self, kind: str, reason: str, **about: str | None) -> None:
        keys = ("pool_id", "worker", "claim", "tenant")
        await self._db.rows(NOTE, kind, reason, *(about.get(key) for key in keys))

    async def prune(self, days: int) -> dict[str, int]:
        pruned = {"event_days": int(await self._db.value(PARTITIONS, days))}
        for noun, sql in PRUNE.items():
            args = (PIECE, days) if "$2" in sql else (PIECE,)
            pruned[noun] = 0
            while (count := len(await self._db.rows(sql, *args))) > 0:
                pruned[noun] += count
        pruned["releases"] = int(await self._db.value(RELEASES, self._db.functions))
        return pruned

    async def live_outputs(self) -> set[str]:
        return {row["id"] for row in await self._db.rows(OUTPUTS)}

    async def excess_outputs(self, sizes: Mapping[str, int]) -> set[str]:
        return {row["id"] for row in await self._db.rows(EXCESS_OUTPUTS, list(sizes), list(sizes.values()))}


def encode_cursor(xid: str, number: int) -> str:
    return base64.urlsafe_b64encode(f"{xid}.{number}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> tuple[str, int]:
    """Returns the transaction and the id in the cursor. Raises ValueError if the cursor is not from `encode_cursor`."""
    try:
        xid, _, number = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(".")
        if not (xid.isascii() and xid.isdigit() and int(xid) < 2**64 and 0 <= int(number) < 2**63):
            raise ValueError(cursor)
        return xid, int(number)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError("not a cursor of this list") from error


def _just_before(cursor: str) -> str:
    """Returns a cursor after which the event of `cursor` is the next."""
    xid, number = decode_cursor(cursor)
    return encode_cursor(xid, max(0, number - 1))


def _filter(conditions: Conditions, about: EventFilters) -> None:
    conditions.given("v.claim_id = {}", about.get("claim"))
    conditions.given("v.worker_id = {}", about.get("worker"))
    conditions.given(OF_POOL.format("v"), about.get("pool"))
    conditions.given("v.tenant = {}", about.get("tenant"))
    conditions.given("v.at >= to_timestamp({}::float8)", about.get("since"))
    conditions.given("v.at < to_timestamp({}::float8)", about.get("until"))
    if labels := about.get("labels"):
        of_claim = Conditions(*conditions.args)
        filter_labels(of_claim, labels)
        conditions.add(f"EXISTS (SELECT FROM holdfast.claim c WHERE c.id = v.claim_id AND {of_claim.where})")
        conditions.args = of_claim.args
    if kinds := about.get("kinds"):
        conditions.add(OF_KINDS if set(kinds) & set(FREQUENT) else OF_RARE_KINDS, list(kinds))


def _event(row: asyncpg.Record) -> Event:
    data: dict[str, Any] | None = msgspec.json.decode(row["data"]) if row["data"] else None
    return Event(
        cursor=encode_cursor(row["xid"], row["id"]),
        **{k: row[k] for k in ("at", "kind", "also", "reason", "pool", "worker", "claim", "tenant")},
        data=data,
        actor=msgspec.json.decode(row["actor"], type=Actor) if row["actor"] else None,
    )
