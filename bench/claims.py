"""Claims over HTTP beside the same single-claim SQL on the same Postgres: rate, median and tail at 1, 16 and 64 clients."""

import statistics
from collections.abc import AsyncIterator, Callable

from . import limit, load
from .figure import Figure
from .spread import Spread
from .stage import Stage

# Clients, and free workers: more than one side can use up within its seconds.
CLIENTS = {1: 5_000, 16: 10_000, 64: 15_000}
ROUNDS = 3  # the median of so many, side and side about: what else runs on the machine then hits both
SECONDS = 3.0
SPREAD = 16  # pools


async def claims(stage: Stage) -> AsyncIterator[Figure]:
    await measure(stage, 64, CLIENTS[64])  # warm up: plans, caches, the replica's connections
    for clients, workers in CLIENTS.items():
        rounds = [await measure(stage, clients, workers) for _ in range(ROUNDS)]

        def median(of: Callable[[Spread, Spread], float], rounds: list[tuple[Spread, Spread]] = rounds) -> tuple[float, float]:
            """The middle round by its ratio: value and limit belong to the same moment."""
            pairs = [(of(http, sql), of(sql, http)) for http, sql in rounds]
            middle = statistics.median_low(value / base for value, base in pairs)
            return next((value, base) for value, base in pairs if value / base == middle)

        at = f"{clients} client{'s' if clients > 1 else ''}"
        value, base = median(lambda mine, _: mine.rate)
        target = 0.6 if clients > 1 else None  # a lone claim is judged by its p50
        yield Figure(f"claims over HTTP, {at}", value, "claims/s", "the same SQL by pgbench", base, target, least=True)
        value, base = median(lambda mine, _: mine.p50 * 1000)
        target = 3.0 if clients == 1 else None
        yield Figure(f"claim p50, {at}", value, "ms", "the same SQL by pgbench, p50", base, target)
        tails = sorted(((http.p99, http.p50) for http, _ in rounds), key=lambda pair: pair[0] / pair[1])
        p99, p50 = tails[len(tails) // 2]
        yield Figure(f"claim p99, {at}", p99 * 1000, "ms", "its own p50", p50 * 1000, 5.0)
        value, base = median(lambda mine, _: mine.p99 * 1000)
        yield Figure(f"claim p99, {at}", value, "ms", "the same SQL by pgbench, p99", base)

    yield await widest(stage)


async def widest(stage: Stage) -> Figure:
    """The harder limit: pgbench on many pools at once, where no claim waits for another's lock. Ours still come to one."""
    rounds = []
    for _ in range(ROUNDS):
        name, _ = await stage.pool(CLIENTS[64])
        http = load.run(stage.port, stage.token, name, clients=64, count=CLIENTS[64], seconds=SECONDS)
        await stage.clear()
        pools = [(await stage.pool(CLIENTS[64] // SPREAD))[1] for _ in range(SPREAD)]
        sql = limit.run(stage, pools, clients=64, seconds=SECONDS)
        assert len(sql.latencies) < CLIENTS[64] * 0.9, "pgbench used up the free workers: give it more"
        await stage.clear()
        rounds.append((http.rate, sql.rate))
    value, base = sorted(rounds, key=lambda pair: pair[0] / pair[1])[len(rounds) // 2]
    limited = f"the same SQL by pgbench over {SPREAD} pools"
    return Figure("claims over HTTP to one pool, 64 clients", value, "claims/s", limited, base, 0.6, least=True)


async def measure(stage: Stage, clients: int, workers: int) -> tuple[Spread, Spread]:
    """One round: first over HTTP, then by SQL alone; each on a pool of its own with as many free workers."""
    name, _ = await stage.pool(workers)
    http = load.run(stage.port, stage.token, name, clients=clients, count=workers, seconds=SECONDS)
    await stage.clear()
    _, pool_id = await stage.pool(workers)
    sql = limit.run(stage, [pool_id], clients=clients, seconds=SECONDS)
    assert len(sql.latencies) < workers, "pgbench used up the free workers: give it more"
    await stage.clear()
    return http, sql
