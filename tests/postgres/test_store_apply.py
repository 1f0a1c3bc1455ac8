"""`apply` stores several pools and tenants in one statement: all of them, or none if a pool is not as it was seen."""

import asyncio

import msgspec
import pytest

from holdfast.model.pool import Pool, PoolSpec
from holdfast.model.tenant import TenantSpec
from holdfast.ports.store import PoolChange
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_locks import queued, replicas, row_lock
from postgres.store_steps import JOB

LARGER = msgspec.structs.replace(JOB, max=7)
LIMITS = {"acme": TenantSpec(weight=2, park_ttl="7s")}


def change(name: str, spec: PoolSpec = JOB, seen: Pool | None = None) -> PoolChange:
    return PoolChange(id=f"p-{name}" if seen is None else seen.id, name=name, spec=spec, seen=seen)


async def test_all_objects_are_stored_each_with_its_event(store: PostgresStore) -> None:
    clock = await apart(store)
    linux, _ = await store.pools.put("p-1", "linux", JOB, "api")
    same, _ = await store.pools.put("p-2", "same", JOB, "api")
    await clock.live(1)
    async with await Changes.of(store) as changes:
        did = await store.pools.apply([change("new"), change("linux", LARGER, linux), change("same", JOB, same)], LIMITS)
        assert did == {
            ("WorkerPool", "new"): "created",
            ("WorkerPool", "linux"): "changed",
            ("WorkerPool", "same"): "same",
            ("Tenant", "acme"): "created",
        }
        found = await changes.seen()
        assert found["events"] == ["101 pool.changed p-1", "101 pool.created p-new", "101 tenant.created acme"]
        assert found["notices"] == ["p p-1", "p p-new"]
        assert (found["pool p-1"]["generation"], "pool p-2" in found) == (2, False)
        assert (found["tenant acme"]["weight"], found["tenant acme"]["park_ttl"]) == (2, "00:00:07")
        assert await store.pools.limits(["acme", "unknown"]) == LIMITS


@pytest.mark.parametrize("since", ["created", "changed", "deleted", "created again"])
async def test_nothing_is_stored_if_a_pool_is_not_as_it_was_seen(store: PostgresStore, since: str) -> None:
    seen = None if since == "created" else (await store.pools.put("p-1", "linux", JOB, "api"))[0]
    if since in ("deleted", "created again"):
        await store.pools.delete("linux")
    if since in ("created", "created again"):
        await store.pools.put("p-2", "linux", JOB, "api")
    if since == "changed":
        await store.pools.put("p-1", "linux", LARGER, "api")
    async with await Changes.of(store) as changes:
        assert await store.pools.apply([change("a-first"), change("linux", LARGER, seen)], LIMITS) is None
        assert await changes.seen() == {}


async def test_nothing_is_stored_if_a_pool_belongs_to_an_object_of_the_cluster(store: PostgresStore) -> None:
    declared, _ = await store.pools.put("p-1", "linux", JOB, "cr")
    async with await Changes.of(store) as changes:
        assert await store.pools.apply([change("a-first"), change("linux", LARGER, declared)], LIMITS) is None
        assert await changes.seen() == {}


async def test_a_pool_that_is_deleted_while_apply_waits_for_it_is_noticed(store: PostgresStore) -> None:
    linux, _ = await store.pools.put("p-1", "linux", JOB, "api")
    async with replicas(store, 1) as (other,):
        deleted, did = await queued(
            store,
            row_lock("pool", "p-1"),
            other.pools.delete("linux"),
            store.pools.apply([change("a-first"), change("linux", LARGER, linux)], {}),
        )
    assert (deleted.state, did) == ("draining", None)
    assert [pool.name for pool in await store.pools.all()] == ["linux"]


async def test_two_calls_with_the_same_pools_in_another_order_do_not_deadlock(store: PostgresStore) -> None:
    names = [f"pool-{n}" for n in range(8)]
    async with replicas(store, 2) as (one, other):
        for turn in range(10):
            seen = {pool.name: pool for pool in await store.pools.all()}
            spec = msgspec.structs.replace(JOB, max=20 + turn)
            changes = [change(name, spec, seen.get(name)) for name in names]
            tenants = {name: TenantSpec(weight=turn + 1) for name in names}
            backwards = dict(reversed(tenants.items()))
            did = await asyncio.gather(one.pools.apply(changes, tenants), other.pools.apply(changes[::-1], backwards))
            stored = [each for each in did if each is not None]
            assert len(stored) == 1, "exactly one of them saw the pools as they were"
            assert len(stored[0]) == 16
