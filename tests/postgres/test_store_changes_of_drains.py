"""What the deletion, the freeze, the trouble and the end of a pool write, and which pools and tenants are shown."""

import msgspec
import pytest

from holdfast.model.effect import Done, Stale
from holdfast.model.pool import Pool
from holdfast.model.tenant import Tenant, TenantSpec
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_clock import Clock
from postgres.store_rows import NOW, add_held, insert
from postgres.store_steps import JOB, make_tenant


async def two_pools(store: PostgresStore) -> Clock:
    """Makes the pools p-1 and p-2, at 100 s of the test's clock. It is 101 s then, so that a changed time is seen."""
    clock = await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    await store.pools.put("p-2", "other", JOB, "api")
    await clock.live(1)
    return clock


def named(pool: Pool | None) -> tuple[str, str, str | None]:
    assert pool is not None
    return pool.id, pool.state, pool.frozen


async def test_a_deleted_pool_drains_and_thaws_and_its_name_is_free(store: PostgresStore) -> None:
    await two_pools(store)
    await store.pools.freeze("linux", "hands off")
    async with await Changes.of(store) as changes:
        assert await store.pools.delete("none") is None
        assert await store.pools.delete("linux", "p-2") is None, "another pool has this name"
        assert await changes.seen() == {}
        assert named(await store.pools.delete("linux", "p-1")) == ("p-1", "draining", None)
        assert await changes.seen() == {
            "pool p-1": {"state": "draining", "frozen": None},
            "events": ['101 pool.draining p-1 "deleted: free workers go, busy ones finish"'],
            "notices": ["p p-1"],
        }
        assert await store.pools.delete("linux") is None, "it drains already"
        assert await store.pools.get("linux") is None
        assert await changes.seen() == {}
    assert [named(pool) for pool in await store.pools.all()] == [("p-1", "draining", None), ("p-2", "live", None)]
    assert await store.pools.finish("p-1") == Done()
    assert [pool.id for pool in await store.pools.all()] == ["p-2"]
    assert await store.pools.by_id("p-1") is None


async def test_pools_of_one_name_are_listed_by_their_age(store: PostgresStore) -> None:
    clock = await apart(store)
    for pool in ("p-3", "p-2", "p-1"):
        await store.pools.put(pool, "linux", JOB, "api")
        await store.pools.delete("linux")
        await clock.jump(1)
    await store.pools.put("p-9", "a-name", JOB, "api")
    assert [pool.id for pool in await store.pools.all()] == ["p-9", "p-3", "p-2", "p-1"]


async def test_a_pool_is_frozen_and_thawed_with_the_reason(store: PostgresStore) -> None:
    await two_pools(store)
    async with await Changes.of(store) as changes:
        assert named(await store.pools.freeze("linux", "hands off")) == ("p-1", "live", "hands off")
        assert await changes.seen() == {
            "pool p-1": {"frozen": "hands off", "updated_at": 101.0},
            "events": ['101 pool.frozen p-1 "hands off"'],
        }
        assert named(await store.pools.freeze("linux", None)) == ("p-1", "live", None)
        assert await changes.seen() == {"pool p-1": {"frozen": None}, "events": ["101 pool.thawed p-1"]}
        assert await store.pools.freeze("none", "hands off") is None
        await store.pools.delete("linux")
        await changes.seen()
        assert await store.pools.freeze("linux", "hands off") is None, "a pool that drains must not be stopped in it"
        assert await changes.seen() == {}


@pytest.mark.parametrize(
    ("left", "finished"),
    [
        ("nothing", True), ("a worker", False), ("a worker that is gone", True), ("another pool's worker", True),
        ("a claim", False), ("a claim that ended", True), ("another pool's claim", True), ("it is live", False),
    ],
)  # fmt: skip
async def test_a_drained_pool_is_gone_when_nothing_of_it_is_left(store: PostgresStore, left: str, finished: bool) -> None:
    await two_pools(store)
    if left != "it is live":
        await store.pools.delete("linux")
    if "worker" in left:
        state = "gone" if "gone" in left else "retiring"
        await insert(store, "worker", id="w-1", pool_id="p-2" if "another" in left else "p-1", state=state)
    if "claim" in left:
        ended = {"state": "ended", "outcome": "lost"} if "ended" in left else {}
        await insert(store, "claim", id="c-1", pool_id="p-2" if "another" in left else "p-1", **ended)
    await store.db.rows("UPDATE holdfast.pool SET updated_at = created_at")
    async with await Changes.of(store) as changes:
        assert await store.pools.finish("p-1") == (Done() if finished else Stale())
        gone = {"pool p-1": {"state": "gone", "updated_at": 101.0}, "events": ["101 pool.gone p-1"]}
        assert await changes.seen() == (gone if finished else {})


async def test_each_failed_start_doubles_the_backoff_up_to_five_minutes(store: PostgresStore) -> None:
    await two_pools(store)
    async with await Changes.of(store) as changes:
        await store.pools.trouble("p-1", "no room", 2.0)
        assert await changes.seen() == {"pool p-1": {"failures": 1, "trouble": "no room", "backoff_until": 103.0}}
        await store.pools.trouble("p-1", "still no room", 2.0)
        assert await changes.seen() == {"pool p-1": {"failures": 2, "trouble": "still no room", "backoff_until": 105.0}}
        await store.db.rows("UPDATE holdfast.pool SET failures = 8")
        await store.pools.trouble("p-1", "still no room", 1.0)
        assert (await changes.seen())["pool p-1"]["backoff_until"] == 101.0 + 256.0
        await store.pools.trouble("p-1", "still no room", 1.0)
        assert (await changes.seen())["pool p-1"] == {"failures": 10}, "no more than the eighth power"
        await store.pools.trouble("p-1", "still no room", 2.0)
        assert (await changes.seen())["pool p-1"]["backoff_until"] == 101.0 + 300.0, "and five minutes at most"


async def test_a_start_that_does_not_progress_is_trouble_without_backoff_and_one_event(store: PostgresStore) -> None:
    await two_pools(store)
    async with await Changes.of(store) as changes:
        await store.pools.start_blocked("p-1", "unschedulable")
        assert await changes.seen() == {
            "pool p-1": {"trouble": "unschedulable"},
            "events": ['101 pool.troubled p-1 "unschedulable"'],
        }
        await store.pools.start_blocked("p-1", "unschedulable")
        assert await changes.seen() == {}, "the same reason again is no news"
        await store.pools.start_blocked("p-1", "no image")
        assert (await changes.seen())["pool p-1"] == {"trouble": "no image"}
        await store.pools.delete("other")
        await changes.seen()
        await store.pools.start_blocked("p-2", "unschedulable")
        assert await changes.seen() == {}, "a pool that drains starts nothing"


async def test_a_shrink_is_noted_for_its_own_pool(store: PostgresStore) -> None:
    await two_pools(store)
    async with await Changes.of(store) as changes:
        await store.pools.shrunk("p-1")
        assert await changes.seen() == {"pool p-1": {"shrunk_at": 101.0}}


async def test_a_tenant_is_written_again_with_every_field(store: PostgresStore) -> None:
    clock = await apart(store)
    await make_tenant(store, "other")
    async with await Changes.of(store) as changes:
        spec = TenantSpec(weight=4, max_claims=5, max_priority=6, park_ttl="7s", max_waiting=8, max_output_bytes=9)
        assert await store.pools.put_tenant("acme", spec) == Tenant(name="acme", spec=spec, live=0, waiting=0)
        assert await changes.seen() == {
            "tenant acme": {
                "name": "acme", "weight": 4, "max_claims": 5, "max_priority": 6, "park_ttl": "00:00:07", "max_waiting": 8,
                "max_output_bytes": 9, "updated_at": 100.0,
            },
            "events": ["100 tenant.created acme"],
        }  # fmt: skip
        await clock.live(1)
        await changes.seen()
        assert (await store.pools.put_tenant("acme", TenantSpec(weight=2))).spec == TenantSpec(weight=2)
        assert await changes.seen() == {
            "tenant acme": {
                "weight": 2,
                "max_claims": None,
                "max_priority": 0,
                "park_ttl": None,
                "max_waiting": 1000,
                "max_output_bytes": 2**30,
                "updated_at": 101.0,
            },
            "events": ["101 tenant.changed acme"],
        }
        await clock.live(1)
        await changes.seen()
        await store.pools.put_tenant("acme", TenantSpec(weight=2))
        assert await changes.seen() == {}, "equal limits change nothing"


async def test_tenants_are_shown_with_their_claims_whether_or_not_they_were_written(store: PostgresStore) -> None:
    await store.pools.put("p-1", "linux", JOB, "api")
    await make_tenant(store, "idle", weight=3)
    await make_tenant(store, "busy", max_claims=2)
    await add_held(store, "w-1", "c-1", tenant="busy", fence=1)
    await add_held(store, "w-2", "c-2", "assigned", tenant="busy", fence=2)
    for claim, tenant in {"c-3": "busy", "c-4": "unknown", "c-5": "unknown", "c-6": "unknown"}.items():
        await insert(store, "claim", id=claim, tenant=tenant)
    for claim in ("c-7", "c-8", "c-9"):
        await insert(store, "claim", id=claim, tenant="busy", state="ended", outcome="lost", ended_at=NOW)
    shown = {tenant.name: (tenant.live, tenant.waiting, tenant.spec) for tenant in await store.pools.tenants()}
    assert list(shown) == ["busy", "idle", "unknown"], "in the order of their names"
    assert shown == {
        "busy": (2, 1, TenantSpec(max_claims=2)),
        "idle": (0, 0, TenantSpec(weight=3)),
        "unknown": (0, 3, msgspec.structs.replace(TenantSpec(), weight=1)),
    }
