"""What grows: a claim's SQL from 1,000 to 10,000 free workers, and the queue to 100,000 waiting claims and back to none."""

import statistics
import time
from collections.abc import AsyncIterator

from holdfast.postgres.store import PostgresStore

from .figure import Figure
from .request import request
from .stage import Stage

WAITING, TENANTS = 100_000, 500
TENTH = WAITING // 10
TRIES = 300
# Tagged as if they had come in turn, each tenant's one after the other.
QUEUE = """
INSERT INTO holdfast.claim (id, pool_id, tenant, request_hash, request, state, tag, max_duration, created_at, deadline_heard)
SELECT format('c-%s-%s', $1::text, n), $1, format('tenant-%s', n % $3::int), '', '{}', 'waiting', (n / $3::int) * 1000000::bigint,
       interval '6 h', holdfast.now(), holdfast.heard() + interval '1 day'
FROM generate_series(0, $2::int - 1) AS n
"""


async def growth(stage: Stage) -> AsyncIterator[Figure]:
    store = await stage.store()
    try:
        few = await lone(stage, store, 1_000)
        many = await lone(stage, store, 10_000)
        yield Figure("one claim's batch, 10,000 free workers", many * 1000, "ms", "with 1,000 free workers", few * 1000, 1.5)
        async for figure in queue(stage, store):
            yield figure
    finally:
        await store.close()


async def lone(stage: Stage, store: PostgresStore, workers: int) -> float:
    _, pool_id = await stage.pool(workers)
    await one_by_one(store, pool_id, f"warm-up-{workers}", 20)
    took = await one_by_one(store, pool_id, f"lone-{workers}", TRIES)
    await stage.clear()
    return took


async def queue(stage: Stage, store: PostgresStore) -> AsyncIterator[Figure]:
    _, pool_id = await stage.pool(0)
    empty = await one_by_one(store, pool_id, "first", TRIES)
    await stage.sql(QUEUE, pool_id, WAITING, TENANTS)
    await stage.sql("VACUUM (ANALYZE) holdfast.claim")
    full = await one_by_one(store, pool_id, "behind", TRIES)
    yield Figure(f"one claim's batch behind {WAITING:,} waiting", full * 1000, "ms", "with nobody waiting", empty * 1000, 1.5)
    await stage.grow(pool_id, WAITING + 2 * TRIES)
    first = await drain(store, pool_id, TENTH)
    middle = await drain(store, pool_id, WAITING - 2 * TENTH)
    last = await drain(store, pool_id, TENTH)
    yield Figure(f"draining the last {TENTH:,} of {WAITING:,}", last, "s", f"draining the first {TENTH:,}", first, 1.5)
    rate, once = WAITING / (first + middle + last), TENTH / first
    yield Figure(
        f"draining {WAITING:,} waiting claims", rate, "claims/s", f"the rate of the first {TENTH:,}", once, 0.67, least=True
    )
    await stage.clear()


async def one_by_one(store: PostgresStore, pool_id: str, name: str, count: int) -> float:
    """The median time of a batch with one request in it."""
    times = []
    for n in range(count):
        new = [request(f"c-{pool_id}-{name}-{n}")]
        started = time.perf_counter()
        await store.claims.match(pool_id, new, 1)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


async def drain(store: PostgresStore, pool_id: str, count: int) -> float:
    """Seconds to serve so many of those who wait, batch after batch."""
    started, done = time.perf_counter(), 0
    while done < count:
        served = len((await store.claims.match(pool_id, (), 100)).pairs)
        assert served, f"nothing was served after {done}"
        done += served
    return time.perf_counter() - started
