"""The limit: the store's own statements of a claim, over as many connections as a replica has, without HTTP.

`Journey` is the one place that knows which statements a claim needs. A change of the store's port breaks it here, and the test
of the benchmark shows it.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.model.effect import Done as Stored
from holdfast.ports.store import AgentReport, Pair
from holdfast.postgres.store import PostgresStore
from holdfast.wiring import Settings, connect

from . import aside, load, rows
from .request import request
from .sizes import Sizes
from .stage import Stage

LEASE = 60.0  # seconds, the default of sessions
CONNECTIONS = 8  # what a replica has for requests (`wiring.connect`)
WARM_UP = 8  # journeys per connection: Postgres plans the statements of a new connection five times before it keeps a plan


class Task(msgspec.Struct, kw_only=True):
    what: Literal["jobs", "sessions", "renew", "release"]
    dsn: str
    data_dir: str
    install: str
    pools: list[str]
    clients: int
    seconds: float
    tenants: int = 1
    leases: int = 0


class Journey:
    """Takes a claim through the store, with the calls that a replica makes for the holder and for the agent."""

    def __init__(self, store: PostgresStore, pool_id: str) -> None:
        self._store, self._pool_id = store, pool_id

    async def to_active(self, claim: str, tenant: str = "default", lease: float | None = None) -> Pair:
        claims = self._store.claims
        batch = await claims.match(self._pool_id, [request(claim, tenant, lease)], 1)
        assert batch.pairs, "the limit used up its free workers: give it more"
        pair = batch.pairs[0]
        assert pair.uid is not None
        assert await claims.offer([(pair.claim, pair.fence, True)])
        assert await claims.deliver(pair.worker, pair.uid) is not None
        assert await claims.acknowledge(pair.worker, pair.fence, None) is not None
        return pair

    async def renew(self, pair: Pair) -> None:
        assert await self._store.claims.renew(pair.claim, pair.fence)

    async def end(self, pair: Pair, how: Literal["result", "release"]) -> None:
        outcome = "completed" if how == "result" else "released"
        ended = await self._store.claims.end(
            pair.claim, outcome=outcome, how=how, reason="bench", states=("active",), fence=pair.fence
        )
        assert isinstance(ended.effect, Stored), ended

    async def reset(self, pair: Pair) -> None:
        """Stores the agent's report that its session was reset, so that the parked worker is free for its tenant."""
        assert pair.uid is not None
        report = AgentReport(
            worker=pair.worker,
            uid=pair.uid,
            doing="idle",
            claim=None,
            fence=None,
            tenant=None,
            served_fence=pair.fence,
            endpoint=None,
        )
        await self._store.workers.report(report)


class Limit:
    def __init__(self, task: Task, store: PostgresStore) -> None:
        self.task, self.store = task, store
        self.done = load.Done(seconds=0.0)
        self._ids = (f"c-limit-{n}" for n in itertools.count())

    async def run(self) -> load.Done:
        journeys = [Journey(self.store, self.task.pools[n % len(self.task.pools)]) for n in range(self.task.clients)]
        await asyncio.gather(*(self._warm_up(journey) for journey in journeys[:CONNECTIONS]))
        held = await self._hold(journeys) if self.task.what in ("renew", "release") else {}
        each = {"jobs": self._jobs, "sessions": self._sessions}
        started = time.perf_counter()
        self._end = started + self.task.seconds
        if held:
            act = self._renew if self.task.what == "renew" else self._release
            await asyncio.gather(*(act(journey, pairs) for journey, pairs in held.items()))
        else:
            await asyncio.gather(*(each[self.task.what](n, journey) for n, journey in enumerate(journeys)))
        self.done.seconds = time.perf_counter() - started
        return self.done

    async def _warm_up(self, journey: Journey) -> None:
        for _ in range(WARM_UP):
            pair = await journey.to_active(next(self._ids), f"tenant-{next(self._ids)}", LEASE)
            await journey.renew(pair)
            await journey.end(pair, "release")
            await journey.reset(pair)

    async def _hold(self, journeys: list[Journey]) -> dict[Journey, list[Pair]]:
        """Makes sessions active, which is not part of what is measured."""
        held: dict[Journey, list[Pair]] = {journey: [] for journey in journeys}
        for n, journey in zip(range(self.task.leases), itertools.cycle(journeys), strict=False):
            held[journey].append(await journey.to_active(next(self._ids), f"tenant-{n}", LEASE))
        return held

    async def _jobs(self, n: int, journey: Journey) -> None:
        while time.perf_counter() < self._end:
            async with self._timed(self.done.claims):
                pair = await journey.to_active(next(self._ids))
            await journey.end(pair, "result")

    async def _sessions(self, n: int, journey: Journey) -> None:
        tenants = itertools.cycle(f"tenant-{n}-{m}" for m in range(self.task.tenants))
        while time.perf_counter() < self._end:
            async with self._timed(self.done.claims):
                pair = await journey.to_active(next(self._ids), next(tenants), LEASE)
            async with self._timed(self.done.releases):
                await journey.end(pair, "release")
            await journey.reset(pair)

    async def _renew(self, journey: Journey, pairs: list[Pair]) -> None:
        mine = itertools.cycle(pairs)
        while time.perf_counter() < self._end:
            async with self._timed(self.done.renewals):
                await journey.renew(next(mine))

    async def _release(self, journey: Journey, pairs: list[Pair]) -> None:
        for pair in pairs:
            async with self._timed(self.done.releases):
                await journey.end(pair, "release")

    @contextlib.asynccontextmanager
    async def _timed(self, into: list[float]) -> AsyncIterator[None]:
        started = time.perf_counter()
        yield
        into.append(time.perf_counter() - started)


async def measure(stage: Stage, what: Literal["jobs", "sessions", "renew", "release"], clients: int, sizes: Sizes) -> load.Done:
    """Measures one limit in a process and a database of its own, on the same Postgres server as what is compared with it."""
    count = min(sizes.limit_pools, clients)
    mode = "job" if what == "jobs" else "session"
    workers = sizes.limit_workers if what == "jobs" else 2 * clients * sizes.tenants + sizes.leases
    workers += CONNECTIONS * WARM_UP
    pools = [(await rows.make_pool(stage, -(-workers // count), mode, dsn=stage.limit_dsn))[1] for _ in range(count)]
    task = Task(
        what=what,
        dsn=stage.limit_dsn,
        data_dir=str(stage.layout.root),
        install=stage.install,
        pools=pools,
        clients=clients,
        seconds=sizes.seconds,
        tenants=sizes.tenants,
        leases=sizes.leases,
    )
    done = aside.run("bench.limit", task, load.Done, sizes.seconds + load.MORE_SECONDS)
    await rows.clear(stage, dsn=stage.limit_dsn)
    return done


async def _run(task: Task) -> load.Done:
    store = await connect(Settings(dsn=task.dsn, data_dir=Path(task.data_dir)), task.install, size=CONNECTIONS)
    try:
        return await Limit(task, store).run()
    finally:
        await store.close()


if __name__ == "__main__":
    aside.main(Task, _run)
