"""A tenant that is created again under a deleted tenant's name never gets the workers that were parked for the deleted one."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.duties.converge import Converge
from holdfast.model.effect import Done
from holdfast.model.event import Actor
from holdfast.model.pool import ParkSpec, Pool
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, passed
from postgres.store_clock import Clock
from postgres.store_steps import SESSION, active, agent_report, ask, end, make_pool, make_tenant, make_warm, match, name
from postgres.store_tables import state_of

KEEPS_ONE = msgspec.structs.replace(SESSION, park=ParkSpec(min=1))
ADMIN = Actor(id="t-1", role="admin", name="root")


class Parked:
    """A worker that is parked for the tenant acme, reset and ready for it. Its pool keeps at least one parked worker."""

    def __init__(self, store: PostgresStore, clock: Clock, pool: Pool, worker: str, fence: int) -> None:
        self.store, self.clock, self.pool, self.worker, self.fence = store, clock, pool, worker, fence
        self.cluster = RecordedCluster(pool, [worker])

    @classmethod
    async def of(cls, store: PostgresStore) -> "Parked":
        clock = await Clock.of(store)
        pool = await make_pool(store, KEEPS_ONE)
        await make_tenant(store, "acme")
        await make_warm(store, pool)
        pair = await active(store, pool, ask("acme", lease=60.0))
        assert await end(store, pair.claim) == Done()
        here = cls(store, clock, pool, pair.worker, pair.fence)
        await here.report(served_fence=pair.fence)
        assert await state_of(store, "worker", here.worker) == "parked"
        return here

    async def report(self, **reported: Any) -> str:
        """Stores what the agent reports now, as a poll and the next flush do. Returns what the agent is to do."""
        report = agent_report(self.worker, **reported)
        directive = await self.store.workers.report(report)
        await self.store.workers.beat([report])
        return directive.do

    async def replace_tenant(self) -> None:
        """Deletes the tenant, and creates another one under its name."""
        assert (await self.store.pools.delete_tenant("acme", ADMIN)).deleted
        await make_tenant(self.store, "acme")

    async def given(self) -> list[str]:
        """Returns the workers that the tenant's next claim gets."""
        return [pair.worker for pair in await match(self.store, self.pool, ask("acme", lease=60.0))]

    async def pod_is_kept(self) -> bool:
        """Runs some passes of `converge` with time between them. Returns whether the worker still has its pod."""
        for _ in range(3):
            await passed(Converge(), self.store, self.cluster)
            await self.clock.live(3)
        return self.worker in self.cluster.kept


async def test_a_worker_of_a_deleted_tenant_ends_although_its_pool_keeps_parked_workers(store: PostgresStore) -> None:
    here = await Parked.of(store)
    await here.replace_tenant()
    assert await here.given() == []
    assert await state_of(store, "worker", here.worker) == "retiring"
    event = await store.db.row("SELECT * FROM holdfast.event WHERE worker_id = $1 ORDER BY id DESC LIMIT 1", here.worker)
    assert event is not None
    assert (event["kind"], event["tenant"], event["reason"]) == ("worker.retiring", "acme", "its tenant was deleted")
    assert (json.loads(event["data"]), json.loads(event["actor"])["name"]) == ({"from": "parked"}, "root")
    assert not await here.pod_is_kept()


async def test_a_worker_of_a_deleted_tenant_in_a_frozen_pool_is_given_to_nobody_and_ends_after_the_thaw(
    store: PostgresStore,
) -> None:
    here = await Parked.of(store)
    await store.pools.freeze("linux", "an operator looks at it")
    await here.replace_tenant()
    assert await here.given() == []
    assert await here.report(served_fence=here.fence) == "nothing", "its agent must not exit while the pool is frozen"
    assert await here.given() == [], "the report of its idle agent does not make it free again"
    assert await here.pod_is_kept()
    await store.pools.freeze("linux", None)
    assert not await here.pod_is_kept()


@pytest.mark.parametrize("doubt", ["unconfirmed", "its agent reports an unknown claim"])
async def test_a_worker_of_a_deleted_tenant_that_may_be_busy_keeps_its_pod_and_is_given_to_nobody(
    store: PostgresStore, doubt: str
) -> None:
    # Given a parked worker whose agent may hold a claim that was in lost commits
    here = await Parked.of(store)
    if doubt == "unconfirmed":
        await store.recovery.begin("restored", 0)
        assert await store.recovery.end() == Done()
        await here.clock.live(2)
    else:
        await store.workers.beat(
            [agent_report(here.worker, doing="running", claim=name("c"), fence=here.fence - 1, tenant="acme")]
        )
    # When its tenant is deleted
    await here.replace_tenant()
    # Then it serves nobody, and its pod is kept until its agent is idle and exits
    assert await here.given() == []
    assert await state_of(store, "worker", here.worker) == "retiring"
    assert await here.pod_is_kept()
    assert await here.report(served_fence=here.fence) == "exit"
    here.cluster.kept[here.worker] = msgspec.structs.replace(here.cluster.kept[here.worker], phase="ended")
    await here.pod_is_kept()
    assert await state_of(store, "worker", here.worker) == "gone"
