"""Writes rows directly, because some states take many steps to reach through the store, and some must never be reached."""

from typing import Any

from holdfast.model.brake import BrakeLimits
from holdfast.postgres.store import PostgresStore


class Sql(str):
    """An expression that is written into a statement as it is. Other values are sent as literals."""


NOW, HEARD = Sql("holdfast.now()"), Sql("holdfast.heard()")
USUAL: dict[str, dict[str, Any]] = {
    "worker": {
        "pool_id": "p-1", "state": "warm", "revision": "r", "ready": True, "created_at": NOW, "state_since": NOW,
        "state_heard": HEARD,
    },
    "claim": {
        "pool_id": "p-1", "tenant": "acme", "request_hash": "h", "request": "{}", "state": "waiting", "tag": 0,
        "max_duration": "1 hour", "created_at": NOW, "deadline_heard": Sql("holdfast.heard() + interval '1 hour'"),
    },
    "replica": {"pid": 7, "host": "h", "url": "u", "version": "1", "functions": "f", "started_at": NOW, "seen_at": NOW},
    "token": {"name": "n", "role": "admin", "created_at": NOW},
    "ending": {"kind": "worker", "id": "w", "at": NOW},
    "fair": {"priority": 0, "tenant": "acme", "tag": 0},
    "heartbeat": {"doing": "idle", "beat_heard": HEARD},
}  # fmt: skip


def ago(seconds: float) -> Sql:
    """Returns a time of the database's clock. A negative number is in the future."""
    return Sql(f"holdfast.now() - interval '{seconds} s'")


def heard_ago(seconds: float) -> Sql:
    return Sql(f"holdfast.heard() - interval '{seconds} s'")


async def insert(store: PostgresStore, table: str, **columns: Any) -> None:
    values = USUAL[table] | columns
    written = ", ".join(value if isinstance(value, Sql) else _literal(value) for value in values.values())
    await store.db.rows(f"INSERT INTO holdfast.{table} ({', '.join(values)}) VALUES ({written})")


async def set_brake(store: PostgresStore, limit: int, share: float) -> None:
    """Stores the limits of the fleet's brake. One tenant may use all of it, so that its own brake does not trip before."""
    limits = BrakeLimits(workers=limit, claims=limit, share=share, tenant_share=1.0)
    await store.fleet.set_brake(limits)


async def add_held(store: PostgresStore, worker: str, claim: str, state: str = "active", **claims: Any) -> None:
    """Writes a live claim and the worker that it holds."""
    its = {"id": claim, "worker_id": worker, "fence": 7, "state": state, "max_heard": HEARD} | claims
    await insert(store, "claim", **its)
    about = {"pool_id": claims.get("pool_id", "p-1"), "tenant": claims.get("tenant", "acme"), "fence": its["fence"]}
    await insert(store, "worker", id=worker, state="held", held_from="warm", claim_id=claim, **about)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value).lower() if isinstance(value, bool | int) else f"'{value}'"
