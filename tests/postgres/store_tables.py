"""Reads the tables of the store: states, events, what is due, and whether P1 and P2 hold."""

from collections.abc import Sequence
from typing import Any

from holdfast.duties.deadlines import FIRST_STALL
from holdfast.postgres.store import PostgresStore


async def clear_away(store: PostgresStore) -> None:
    """Ends every claim and every worker, so that a new round can start."""
    await store.db.rows("UPDATE holdfast.claim SET state = 'ended', outcome = 'cancelled' WHERE state <> 'ended'")
    await store.db.rows("UPDATE holdfast.worker SET state = 'gone', claim_id = NULL WHERE state <> 'gone'")


async def state_of(store: PostgresStore, table: str, id_: str) -> str:
    found: str = await store.db.value(f"SELECT state FROM holdfast.{table} WHERE id = $1", id_)
    return found


async def column(store: PostgresStore, sql: str, *args: object) -> list[Any]:
    return [row[0] for row in await store.db.rows(sql, *args)]


async def kinds(store: PostgresStore, *, claim: str | None = None, worker: str | None = None) -> list[str]:
    """Returns the kinds of the events of a claim or a worker, oldest first, including the second kind in `also`."""
    rows = await store.db.rows(
        "SELECT kind, also FROM holdfast.event WHERE ($1::text IS NULL OR claim_id = $1) AND ($2::text IS NULL OR worker_id = $2)"
        " ORDER BY id",
        claim,
        worker,
    )
    return [kind for row in rows for kind in row if kind is not None]


async def broken(store: PostgresStore) -> list[str]:
    """Returns the violations of P1 and P2. It reads the tables directly, without the code under test."""
    return await column(
        store,
        """SELECT format('claim %s: %s on %s, which is %s for %s', c.id, c.state, c.worker_id, w.state, w.claim_id)
           FROM holdfast.claim c LEFT JOIN holdfast.worker w ON w.id = c.worker_id
           WHERE c.state IN ('assigned', 'active')
             AND (w.state, w.claim_id, w.fence, w.tenant) IS DISTINCT FROM ('held', c.id, c.fence, c.tenant)
           UNION ALL
           SELECT format('worker %s is held for %s, which is %s on %s', w.id, w.claim_id, c.state, c.worker_id)
           FROM holdfast.worker w LEFT JOIN holdfast.claim c ON c.id = w.claim_id
           WHERE w.state = 'held' AND (c.state IS NULL OR c.state NOT IN ('assigned', 'active') OR c.worker_id <> w.id)
           UNION ALL
           SELECT format('worker %s served %s tenants', worker_id, count(DISTINCT tenant)) FROM holdfast.event
           WHERE kind = 'claim.active' GROUP BY worker_id HAVING count(DISTINCT tenant) > 1""",
    )


async def due(store: PostgresStore) -> list[str]:
    return [one.claim for one in await store.claims.due(1000, FIRST_STALL)]


def only(values: Sequence[Any], kind: type) -> list[Any]:
    return [value for value in values if isinstance(value, kind)]
