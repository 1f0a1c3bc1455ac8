"""Costs that grow: a claim's SQL from 1,000 to 10,000 free workers, and a queue that grows to 100,000 claims and drains."""

import statistics
import time
from collections.abc import AsyncIterator

from holdfast.claimpath.path import BATCH
from holdfast.postgres.store import PostgresStore

from . import rows
from .duties import staged
from .figure import Figure
from .part import Part
from .request import request
from .sizes import Sizes
from .stage import Stage

# The tags are set as if the tenants had sent their claims in turn.
QUEUE = """
INSERT INTO holdfast.claim (id, pool_id, tenant, request_hash, request, state, tag, max_duration, created_at, deadline_heard)
SELECT format('c-%s-%s', $1::text, n), $1, format('tenant-%s', n % $3::int), '', '{}', 'waiting', (n / $3::int) * 1000000::bigint,
       interval '6 h', holdfast.now(), holdfast.heard() + interval '1 day'
FROM generate_series(0, $2::int - 1) AS n
"""


def names(sizes: Sizes) -> list[str]:
    return [_lone(sizes), _behind(sizes), _last(sizes), _drained(sizes)]


def _lone(sizes: Sizes) -> str:
    return f"one claim's batch, {sizes.many:,} free workers"


def _behind(sizes: Sizes) -> str:
    return f"one claim's batch behind {sizes.waiting:,} waiting"


def _last(sizes: Sizes) -> str:
    return f"draining the last {sizes.waiting // 10:,} of {sizes.waiting:,}"


def _drained(sizes: Sizes) -> str:
    return f"draining {sizes.waiting:,} waiting claims"


async def growth(here: Stage, sizes: Sizes) -> AsyncIterator[Figure]:
    store = await here.store()
    try:
        few = await lone(here, store, sizes.few, sizes)
        many = await lone(here, store, sizes.many, sizes)
        yield Figure(_lone(sizes), many * 1000, "ms", f"with {sizes.few:,} free workers", few * 1000, 1.5)
        async for figure in queue(here, store, sizes):
            yield figure
    finally:
        await store.close()


async def lone(here: Stage, store: PostgresStore, workers: int, sizes: Sizes) -> float:
    _, pool_id = await rows.make_pool(here, workers)
    await one_by_one(store, pool_id, f"warm-up-{workers}", min(20, workers // 2))
    took = await one_by_one(store, pool_id, f"lone-{workers}", sizes.tries)
    await rows.clear(here)
    return took


async def queue(here: Stage, store: PostgresStore, sizes: Sizes) -> AsyncIterator[Figure]:
    tenth = sizes.waiting // 10
    _, pool_id = await rows.make_pool(here, 0)
    empty = await one_by_one(store, pool_id, "first", sizes.tries)
    await here.sql(QUEUE, pool_id, sizes.waiting, sizes.queue_tenants)
    await here.sql("VACUUM (ANALYZE) holdfast.claim")
    full = await one_by_one(store, pool_id, "behind", sizes.tries)
    yield Figure(_behind(sizes), full * 1000, "ms", "with no claim waiting", empty * 1000, 1.5)
    await rows.grow(here, pool_id, sizes.waiting + 2 * sizes.tries)
    first = await drain(store, pool_id, tenth)
    middle = await drain(store, pool_id, sizes.waiting - 2 * tenth)
    last = await drain(store, pool_id, tenth)
    yield Figure(_last(sizes), last, "s", f"draining the first {tenth:,}", first, 1.5)
    rate, once = sizes.waiting / (first + middle + last), tenth / first
    yield Figure(_drained(sizes), rate, "claims/s", f"the rate of the first {tenth:,}", once, 0.67, least=True)
    await rows.clear(here)


async def one_by_one(store: PostgresStore, pool_id: str, name: str, count: int) -> float:
    """Returns the median time of a batch with one request in it."""
    times = []
    for n in range(count):
        new = [request(f"c-{pool_id}-{name}-{n}")]
        started = time.perf_counter()
        await store.claims.match(pool_id, new, 1)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


async def drain(store: PostgresStore, pool_id: str, count: int) -> float:
    """Returns the seconds in which so many waiting claims are paired, batch after batch."""
    started, done = time.perf_counter(), 0
    while done < count:
        served = len((await store.claims.match(pool_id, (), min(BATCH, count - done))).pairs)
        assert served, f"nothing was served after {done}"
        done += served
    return time.perf_counter() - started


GROWTH = Part("growth", staged, growth, names)
