"""Fills a real store with a pool, warm workers and claims, from short descriptions."""

import zlib
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from holdfast.model.effect import Done
from holdfast.model.pool import Pool, PoolSpec
from holdfast.ports.store import AgentReport, NewClaim, Pair
from holdfast.postgres.store import PostgresStore

# A claim of such a pool is active as soon as it is paired, because there is no agent that must report and no protection to write.
DIRECT = {"worker": {"agent": False}, "protection": {"mode": "off"}}


async def make_pool(store: PostgresStore, name: str = "etl", **fields: Any) -> Pool:
    spec = msgspec.convert({"warm": 0, "max": 5000, **fields}, PoolSpec)
    return (await store.pools.put(f"p-{name}", name, spec, "api"))[0]


async def make_warm(store: PostgresStore, pool: Pool, names: Sequence[str]) -> None:
    """Creates ready workers that have not served any tenant."""
    made = await store.workers.spawn(pool.id, list(names), 5000, 5000)
    assert [name for name, _ in made] == list(names)
    for name in names:
        assert await store.workers.spawned(name, f"uid-{name}") == Done()
        if pool.spec.worker.agent:
            await store.workers.report(AgentReport(worker=name, uid=f"uid-{name}", doing="idle"))
        else:
            assert await store.workers.warm(name, 2, None) == Done()


def ask(id_: str, tenant: str = "acme", **fields: Any) -> NewClaim:
    known = {
        "key": None,
        "hash": "h",
        "request": {},
        "priority": 0,
        "lease": None,
        "max_duration": 3600.0,
        "deadline": 600.0,
        "park_ttl": None,
        "retry": None,
        "secrets": None,
    }
    return NewClaim(**{**known, "id": id_, "tenant": tenant, **fields})


NUMBERS = count()  # The examples of one test share a database, so every name must be new.


class Queue:
    """A saturated pool: claims wait, and workers become free one at a time."""

    def __init__(self, store: PostgresStore, pool: Pool) -> None:
        self._store = store
        self._pool = pool

    @classmethod
    async def of(cls, store: PostgresStore) -> "Queue":
        return cls(store, await make_pool(store, f"q{next(NUMBERS)}", **DIRECT))

    async def wait(self, tenant: str, claims: int, priority: int = 0) -> list[str]:
        """Queues so many claims of one tenant and returns their ids in this order, which cannot be derived from the ids."""
        names = [f"c-{zlib.crc32(bytes(str(number := next(NUMBERS)), 'ascii')):08x}-{number}" for _ in range(claims)]
        new = [ask(name, tenant, priority=priority) for name in names]
        batch = await self._store.claims.match(self._pool.id, new, 0)
        assert all(what == "new" for what, _ in batch.answers.values())
        return [claim.id for claim in new]

    async def serve(self, turns: int) -> list[Pair]:
        """Makes `turns` workers free, one after the other. Returns which claims got them."""
        await make_warm(self._store, self._pool, [f"w-{next(NUMBERS)}" for _ in range(turns)])
        served = []
        for _ in range(turns):
            batch = await self._store.claims.match(self._pool.id, (), 1)
            served += batch.pairs
        return served
