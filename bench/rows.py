"""Workers that are only rows, for limits and for measurements without a replica."""

import secrets

import msgspec

from holdfast.model.pool import PoolSpec

from .stage import Stage

# They have the names that `HollowPods` would give. The UID is made from the name, so that a limit can act for the agent.
WARM = """
INSERT INTO holdfast.worker (id, pool_id, state, revision, created_at, state_since, state_heard, pod_uid, node, ready)
SELECT format('w-%s-%s', p.name, n), p.id, 'warm', p.revision, holdfast.now(), holdfast.now(), holdfast.heard(),
       format('u-%s-%s', p.name, n), 'node', true
FROM holdfast.pool p, generate_series(1, $2::int) AS n WHERE p.id = $1
"""


async def make_pool(stage: Stage, workers: int, mode: str = "job", *, warm: int = 0, dsn: str | None = None) -> tuple[str, str]:
    """Makes a pool with so many warm workers; returns its name and id. `warm` is what its specification asks for."""
    name = f"b{secrets.token_hex(4)}"
    store = await stage.store(dsn)
    try:
        spec = msgspec.convert({"mode": mode, "warm": warm, "max": 100_000, "park": {"ttl": "10m"}}, PoolSpec)
        pool, _ = await store.pools.put(f"p-{name}", name, spec, "api")
    finally:
        await store.close()
    await grow(stage, pool.id, workers, dsn=dsn)
    return name, pool.id


async def grow(stage: Stage, pool_id: str, workers: int, *, dsn: str | None = None) -> None:
    await stage.sql(WARM, pool_id, workers, dsn=dsn)
    await stage.sql("VACUUM (ANALYZE) holdfast.worker", dsn=dsn)


async def clear(stage: Stage, *, dsn: str | None = None) -> None:
    """Removes everything that a measurement left behind, because it would slow down the next one."""
    await stage.sql("UPDATE holdfast.pool SET state = 'gone'", dsn=dsn)
    tables = "holdfast.claim, holdfast.claim_secret, holdfast.worker, holdfast.heartbeat, holdfast.fair, holdfast.event"
    await stage.sql(f"TRUNCATE {tables}", dsn=dsn)
