"""The history: a reader that follows it by cursor gets every event exactly once, in whatever order transactions commit."""

import asyncio

import pytest

from holdfast.postgres.store import PostgresStore
from postgres.store_clock import DAY, Clock
from postgres.store_locks import another, replicas
from postgres.store_steps import JOB, active, ask, end, make_pool, make_warm
from postgres.store_tables import column

INSERT = "INSERT INTO holdfast.event (at, kind, reason) VALUES (holdfast.now(), 'test.slow', $1)"


class Follower:
    """Reads events from its cursor on, in small pages."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.cursor: str | None = None
        self.seen: list[str] = []

    async def read(self) -> list[str]:
        new: list[str] = []
        while True:
            events, self.cursor = await self._store.history.events(after=self.cursor, limit=3)
            new += [event.reason for event in events]
            if len(events) < 3:
                self.seen += new
                return new


async def test_a_slow_transactions_event_is_neither_skipped_nor_read_twice(store: PostgresStore) -> None:
    follower = Follower(store)
    await store.history.note("test", "before")
    assert await follower.read() == ["before"]
    async with another(store) as connection, another(store) as quitter:
        slow, never = connection.transaction(), quitter.transaction()
        await slow.start()
        await connection.execute(INSERT, "slow")
        await never.start()
        await quitter.execute(INSERT, "never")
        for n in range(5):
            await store.history.note("test", f"fast {n}")
        assert await follower.read() == [], "complete is only what is older than the oldest that still runs"
        await never.rollback()
        await slow.commit()
    assert await follower.read() == ["slow", *(f"fast {n}" for n in range(5))]
    assert await follower.read() == []


async def test_a_follower_of_racing_writers_sees_each_event_once(store: PostgresStore) -> None:
    follower = Follower(store)
    written: list[str] = []

    async def write(peer: PostgresStore, writer: int) -> None:
        for n in range(25):
            await peer.history.note("test", f"{writer}.{n}")
            written.append(f"{writer}.{n}")

    async def dawdle(writer: int) -> None:
        async with another(store) as connection:
            for n in range(8):
                async with connection.transaction():
                    await connection.execute(INSERT, f"slow {writer}.{n}")
                    # this writer is slow on purpose; the test does not wait for it
                    await connection.execute("SELECT pg_sleep(0.02)")
                    await connection.execute(INSERT, f"slower {writer}.{n}")
                written.extend((f"slow {writer}.{n}", f"slower {writer}.{n}"))

    async with replicas(store, 3) as peers:
        writers = asyncio.gather(*(write(peer, n) for n, peer in enumerate(peers)), *(dawdle(n) for n in range(3)))
        while not writers.done():
            await follower.read()
        await writers
        await follower.read()
    assert len(follower.seen) == len(set(follower.seen)), "none twice"
    assert set(follower.seen) == set(written), "none skipped"


async def test_the_newest_events_end_where_a_follower_may_go_on(store: PostgresStore) -> None:
    for n in range(7):
        await store.history.note("test", str(n))
    events, cursor = await store.history.events(after=None, limit=3, newest=True)
    assert [event.reason for event in events] == ["4", "5", "6"]
    await store.history.note("test", "7")
    events, _ = await store.history.events(after=cursor, limit=3)
    assert [event.reason for event in events] == ["7"]
    for nonsense in ("", "x", "MTIz", "!!!", "MS4tMQ"):
        if nonsense:
            with pytest.raises(ValueError, match="cursor"):
                await store.history.events(after=nonsense, limit=3)


async def test_events_are_found_by_what_they_are_about(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 2)
    mine, theirs = await active(store, pool, ask("a")), await active(store, pool, ask("b"))
    await end(store, mine.claim)

    async def kinds(**about: str) -> list[str]:
        events, _ = await store.history.events(after=None, limit=100, **about)
        return [event.kind for event in events]

    journey = ["claim.created", "claim.assigned", "claim.active", "claim.ended"]
    assert await kinds(claim=mine.claim) == journey
    assert await kinds(tenant="a") == journey
    assert await kinds(claim=theirs.claim) == journey[:3]
    assert await kinds(worker=mine.worker) == ["worker.spawning", "worker.warm", *journey[1:]]
    assert len(await kinds(pool="linux")) == len(await kinds())
    assert await kinds(pool="mac") == []


async def test_old_days_are_dropped_and_young_ones_kept(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    for day in range(6):
        await store.history.note("test", f"day {day}")
        await store.history.prune(3)
        await clock.jump(DAY)
    assert await store.history.prune(3)
    kept = await column(store, "SELECT reason FROM holdfast.event ORDER BY id")
    assert kept == ["day 3", "day 4", "day 5"]
    partitions = await column(store, "SELECT tableoid::regclass::text FROM holdfast.event")
    assert len(set(partitions)) == 3, "a day has a table of its own, which is dropped whole"


async def test_pruning_goes_on_after_the_clock_jumped_forward_and_back(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    await store.history.prune(30)
    await clock.jump(5 * DAY)
    await store.history.note("test", "written while the clock was wrong")
    await clock.jump(-5 * DAY)
    for _ in range(7):
        await store.history.prune(30)  # if the duty fails here, it fails until that day has come
        await clock.jump(DAY)
    assert await column(store, "SELECT count(*) FROM holdfast.event") == [1]
