"""What stories about the store are told with: pools, workers, requests, other replicas, a queue at a lock, and a clock."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import asyncpg

from holdfast.duties.deadlines import FIRST_STALL
from holdfast.model.pool import Pool, PoolSpec, ProtectionSpec, WorkerSpec
from holdfast.model.tenant import TenantSpec
from holdfast.ports.store import AgentReport, Assignment, NewClaim, Pair
from holdfast.postgres.database import Database
from holdfast.postgres.store import PostgresStore

OnStore = Callable[..., None]  # the fixture `on_store`: runs a story

PATIENCE = 20.0  # seconds until a condition that never comes fails its test
DAY = 86_400.0

# Nothing to hand over: a claim is active in the statement that picked its worker.
DIRECT = PoolSpec(max=1000, worker=WorkerSpec(run=["true"], agent=False), protection=ProtectionSpec(mode="off"))
# No agent, but a protection: active once it was offered.
BARE = PoolSpec(max=1000, worker=WorkerSpec(run=["true"], agent=False))
JOB = PoolSpec(max=1000)
SESSION = PoolSpec(mode="session", max=1000, worker=WorkerSpec(serve=["true"]))

_numbers = itertools.count(1)


def name(prefix: str) -> str:
    return f"{prefix}-{next(_numbers):05d}"


async def make_pool(store: PostgresStore, spec: PoolSpec = DIRECT, called: str = "linux") -> Pool:
    pool, what = await store.pools.put(name("p"), called, spec, "api")
    assert what == "created"
    return pool


async def make_tenant(store: PostgresStore, tenant: str, **spec: Any) -> None:
    await store.pools.put_tenant(tenant, TenantSpec(**spec))


def ask(tenant: str = "acme", **asked: Any) -> NewClaim:
    """A request as the doors would make it; anything may be asked differently."""
    usual: dict[str, Any] = {
        "id": name("c"),
        "tenant": tenant,
        "key": None,
        "hash": "same",
        "request": {"command": ["true"]},
        "priority": 0,
        "lease": None,
        "max_duration": 3600.0,
        "deadline": 3600.0,
        "park_ttl": None,
        "retry": None,
        "secrets": None,
    }
    return NewClaim(**(usual | asked))


def word(worker: str, **said: Any) -> AgentReport:
    return AgentReport(**({"worker": worker, "uid": f"uid-{worker}", "doing": "idle"} | said))


async def make_warm(store: PostgresStore, pool: Pool, count: int = 1) -> list[str]:
    """Workers that went the whole way: row, pod, ready."""
    ids = [name("w") for _ in range(count)]
    made = await store.workers.spawn(pool.id, ids, 1000, 1000)
    assert len(made) == count, "the pool would not spawn"
    for worker in ids:
        await store.workers.spawned(worker, f"uid-{worker}")
        if pool.spec.worker.agent:
            await store.workers.report(word(worker))
        else:
            await store.workers.warm(worker, 2, None)
    return ids


async def match(store: PostgresStore, pool: Pool, *new: NewClaim) -> list[Pair]:
    return (await store.claims.match(pool.id, new, 1000)).pairs


async def assigned(store: PostgresStore, pool: Pool, new: NewClaim | None = None) -> Pair:
    """A claim on its way to its worker (or there already, where nothing is to be handed over)."""
    new = new or ask()
    return next(pair for pair in await match(store, pool, new) if pair.claim == new.id)


async def active(store: PostgresStore, pool: Pool, new: NewClaim | None = None) -> Pair:
    """A claim that its worker serves."""
    pair = await assigned(store, pool, new)
    if not pair.active:
        await hand_over(store, pool, pair)
    return pair


async def lone_assigned(store: PostgresStore, spec: PoolSpec, new: NewClaim | None = None) -> Pair:
    """A new pool's only worker, which is being handed over."""
    pool = await make_pool(store, spec)
    await make_warm(store, pool)
    return await assigned(store, pool, new)


async def lone_active(store: PostgresStore, spec: PoolSpec, new: NewClaim | None = None) -> Pair:
    """A new pool's only worker, which serves a claim."""
    pool = await make_pool(store, spec)
    await make_warm(store, pool)
    return await active(store, pool, new)


async def hand_over(store: PostgresStore, pool: Pool, pair: Pair) -> None:
    if pool.spec.worker.agent:
        await tell(store, pair)
        assert await store.claims.acknowledge(pair.worker, pair.fence, None) == pair.claim
    else:
        assert [claim.id for claim in await store.claims.offer([(pair.claim, pair.fence, True)])] == [pair.claim]


async def tell(store: PostgresStore, pair: Pair) -> Assignment:
    """The worker is offered the claim, and its agent fetches it; it has not acknowledged."""
    assert [claim.id for claim in await store.claims.offer([(pair.claim, pair.fence, True)])] == [pair.claim]
    assert pair.uid is not None
    told = await store.claims.deliver(pair.worker, pair.uid)
    assert told is not None
    return told


async def end(store: PostgresStore, claim: str, how: str = "release", **other: Any) -> Any:
    """End a claim in one of P2's ways."""
    outcome = {
        "release": "released",
        "cancel": "cancelled",
        "lease": "expired",
        "max_duration": "expired",
        "result": "completed",
        "death": "lost",
        "deadline": "refused",
        "force": "released",
        "pool_deleted": "refused",
    }[how]
    usual: dict[str, Any] = {"outcome": outcome, "how": how, "reason": how, "states": ("waiting", "assigned", "active")}
    return await store.claims.end(claim, **(usual | other))


async def clear_away(store: PostgresStore) -> None:
    """Every claim ends, every worker goes: a new round may begin."""
    await store.db.rows("UPDATE holdfast.claim SET state = 'ended', outcome = 'cancelled' WHERE state <> 'ended'")
    await store.db.rows("UPDATE holdfast.worker SET state = 'gone', claim_id = NULL WHERE state <> 'gone'")


async def state_of(store: PostgresStore, table: str, id_: str) -> str:
    found: str = await store.db.value(f"SELECT state FROM holdfast.{table} WHERE id = $1", id_)
    return found


async def column(store: PostgresStore, sql: str, *args: object) -> list[Any]:
    return [row[0] for row in await store.db.rows(sql, *args)]


async def kinds(store: PostgresStore, *, claim: str | None = None, worker: str | None = None) -> list[str]:
    """What the history says of a claim or a worker, `also` included, oldest first."""
    rows = await store.db.rows(
        "SELECT kind, also FROM holdfast.event WHERE ($1::text IS NULL OR claim_id = $1) AND ($2::text IS NULL OR worker_id = $2)"
        " ORDER BY id",
        claim,
        worker,
    )
    return [kind for row in rows for kind in row if kind is not None]


async def broken(store: PostgresStore) -> list[str]:
    """P1 and P2 asked of the tables, not of the code under test: what is wrong."""
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


@contextlib.asynccontextmanager
async def replicas(store: PostgresStore, count: int, label: str = "replica") -> AsyncIterator[list[PostgresStore]]:
    """Other replicas on the same database, each with connections of its own."""
    dsn = f"{store.db.dsn}&application_name={label}"
    made = [PostgresStore(await Database.connect(dsn, size=8, pooled=store.db.pooled)) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            await one.close()


@contextlib.asynccontextmanager
async def another(store: PostgresStore) -> AsyncIterator[asyncpg.Connection]:
    """A connection that may keep a transaction open."""
    connection = await asyncpg.connect(store.db.dsn, timeout=10, statement_cache_size=0)
    try:
        yield connection
    finally:
        await connection.close()


async def queued(store: PostgresStore, lock: str, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Let calls line up, in this order, behind a lock; then let go of it. What each answered or raised."""
    async with another(store) as holder:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(lock)
        tasks: list[asyncio.Task[Any]] = []
        for call in calls:
            tasks.append(asyncio.create_task(call))
            await waiting(store, len(tasks), tasks[-1])
        await transaction.commit()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def in_order(store: PostgresStore, claim: str, first: bool, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Two changes of one claim, in this order or in the other."""
    return await queued(store, row_lock("claim", claim), *(calls if first else reversed(calls)))


async def waiting(store: PostgresStore, count: int, task: asyncio.Task[Any]) -> None:
    """Until so many statements wait for locks. A call that did not wait tells no story about order."""
    await until_waiting_or_done(store, count, task)
    assert not task.done(), f"it did not wait: {task}"


async def until_waiting_or_done(store: PostgresStore, count: int, task: asyncio.Task[Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not task.done() and await store.db.value(sql) < count:
        assert time.monotonic() < deadline, "it never came to wait"
        await asyncio.sleep(0.01)


def row_lock(table: str, id_: str) -> str:
    return f"SELECT FROM holdfast.{table} WHERE id = '{id_}' FOR UPDATE"


class Clock:
    """The database's clock, moved by the test alone."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    @classmethod
    async def of(cls, store: PostgresStore) -> "Clock":
        rows = store.db.rows
        await rows("CREATE TABLE holdfast.test_clock AS SELECT timestamptz '2030-01-01 12:00:00+00' AS t")
        await rows(
            "CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " AS 'SELECT t FROM holdfast.test_clock'"
        )
        await rows("UPDATE holdfast.hearing SET last_heard = holdfast.now(), deaf = '0'")
        return cls(store)

    async def jump(self, seconds: float) -> None:
        """Forward or back, without anybody being heard."""
        await self._store.db.rows("UPDATE holdfast.test_clock SET t = t + make_interval(secs => $1)", float(seconds))

    async def beat(self, elapsed: float | None) -> None:
        await self._store.fleet.beat("r-1", elapsed, 10.0, [])

    async def live(self, seconds: int) -> None:
        """Ordinary time: a beat a second."""
        for _ in range(seconds):
            await self.jump(1)
            await self.beat(1.0)

    async def outage(self, seconds: float) -> None:
        """Nobody could be heard for so long; then a replica's first beat that arrives."""
        await self.jump(seconds)
        await self.beat(seconds)

    async def heard(self) -> float:
        return float(await self._store.db.value("SELECT extract(epoch FROM holdfast.heard())::float8"))


async def due(store: PostgresStore) -> list[str]:
    return [one.claim for one in await store.claims.due(1000, FIRST_STALL)]


def only(values: Sequence[Any], kind: type) -> list[Any]:
    return [value for value in values if isinstance(value, kind)]
