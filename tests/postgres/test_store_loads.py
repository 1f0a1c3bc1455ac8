"""What `scale` reads: the counts and the lists of each pool, what its claims need, and how much the brake still allows."""

from typing import Any

import msgspec
import pytest

from holdfast.model.pool import Pool
from holdfast.ports.store import PoolLoad
from holdfast.postgres.store import PostgresStore
from postgres.changes import NOON, apart
from postgres.store_rows import NOW, Sql, add_held, ago, heard_ago, insert, set_brake
from postgres.store_steps import JOB, make_tenant

LISTS = ("outdated_starting", "outdated_warm", "current_warm", "starting", "parked_free", "parked_expired")
COUNTS = ("spawning", "warm", "unusable", "held", "parked", "retiring", "free_ready", "waiting", "servable")


async def make_pools(store: PostgresStore, *ids: str) -> list[Pool]:
    return [(await store.pools.put(id_, f"pool-of-{id_}", JOB, "api"))[0] for id_ in ids]


async def load_of(store: PostgresStore, pool: str) -> PoolLoad:
    [load] = [load for load in await store.pools.loads() if load.pool.id == pool]
    return load


def counts(load: PoolLoad) -> dict[str, int]:
    return {name: getattr(load, name) for name in COUNTS if getattr(load, name)}


def lists(load: PoolLoad) -> dict[str, list[str]]:
    return {name: [worker for worker, _ in getattr(load, name)] for name in LISTS if getattr(load, name)}


async def test_each_worker_is_counted_once_by_its_state_and_listed_where_it_could_be_ended(store: PostgresStore) -> None:
    await apart(store)
    [pool, *_] = await make_pools(store, "p-1", "p-2", "p-3", "p-4")
    current = {"revision": pool.revision}
    parked: dict[str, Any] = {"state": "parked", "tenant": "acme", "park_ttl": "5 s"}
    for worker, columns in {
        "s-1": current | {"state": "spawning", "state_since": ago(2)},
        "s-2": current | {"state": "spawning", "state_since": ago(3)},
        "o-1": {"state": "spawning", "state_since": ago(2)},
        "o-2": {"state": "spawning", "state_since": ago(3), "version": 9},
        "w-1": current | {"state_since": ago(2)},
        "w-2": current | {"state_since": ago(4)},
        "w-3": {"state_since": ago(2)},
        "w-4": {"state_since": ago(3)},
        "not-ready": current | {"state_since": ago(3), "ready": False},
        "terminating": current | {"state_since": ago(1), "terminating": True},
        "unconfirmed": current | {"unconfirmed_since": NOW},
        "unconfirmed-old": {"unconfirmed_since": NOW},
        "k-1": parked | {"parked_since": ago(4), "parked_heard": heard_ago(4)},
        "k-2": parked | {"parked_since": ago(5), "parked_heard": heard_ago(5)},
        "k-3": parked | {"parked_since": ago(6), "parked_heard": heard_ago(6)},
        "k-4": parked | {"parked_since": ago(7), "parked_heard": heard_ago(7), "unconfirmed_since": NOW},
        "r-1": {"state": "retiring"},
        "gone": {"state": "gone"},
    }.items():
        await insert(store, "worker", id=worker, **columns)
    await add_held(store, "h-1", "c-1")
    # A parked worker that serves a claim keeps its TTL, in case it goes back unused.
    parked_before = f"held_from = 'parked', parked_since = {ago(9)}, parked_heard = {heard_ago(9)}, park_ttl = '5 s'"
    await store.db.rows(f"UPDATE holdfast.worker SET {parked_before} WHERE id = 'h-1'")
    await insert(store, "worker", id="z-1", pool_id="p-2", state_since=ago(9))
    await insert(store, "worker", id="z-2", pool_id="p-2", state="spawning", state_since=ago(9))
    await store.pools.delete("pool-of-p-4")
    await store.pools.finish("p-4")

    loads = {load.pool.id: load for load in await store.pools.loads()}
    assert loads.keys() == {"p-1", "p-2", "p-3"}, "a pool that is gone needs nothing"
    assert counts(loads["p-1"]) == {
        "spawning": 4, "warm": 5, "unusable": 3, "held": 1, "parked": 4, "retiring": 1, "free_ready": 4,
    }  # fmt: skip
    assert lists(loads["p-1"]) == {
        "starting": ["s-2", "s-1"],
        "outdated_starting": ["o-2", "o-1"],
        "current_warm": ["w-2", "not-ready", "w-1", "terminating"],
        "outdated_warm": ["w-4", "w-3"],
        "parked_free": ["k-3", "k-2", "k-1"],
        "parked_expired": ["k-3", "k-2"],
    }
    assert loads["p-1"].outdated_starting[0] == ("o-2", 9), "with its version"
    assert counts(loads["p-2"]) == {"spawning": 1, "warm": 1, "free_ready": 1}
    assert lists(loads["p-2"]) == {"outdated_warm": ["z-1"], "outdated_starting": ["z-2"]}
    assert [getattr(loads["p-3"], name) for name in COUNTS] == [0] * len(COUNTS)
    assert lists(loads["p-3"]) == {}
    assert (loads["p-3"].oldest_wait, loads["p-3"].shrunk_ago, loads["p-3"].stopping) == (0.0, None, False)


@pytest.mark.parametrize("of", LISTS)
async def test_a_list_holds_at_most_fifty_workers(store: PostgresStore, of: str) -> None:
    [pool] = await make_pools(store, "p-1")
    state = "spawning" if "starting" in of else "warm" if "warm" in of else "parked"
    revision = "old" if of.startswith("outdated") else pool.revision
    await store.db.rows(
        f"""INSERT INTO holdfast.worker (id, pool_id, state, revision, tenant, created_at, state_since, state_heard, parked_since,
                                         parked_heard, park_ttl)
            SELECT 'w-' || n, 'p-1', '{state}', '{revision}', CASE WHEN '{state}' = 'parked' THEN 'acme' END, t, t, t, t, t,
                   '-1 s'
            FROM generate_series(1, 52) AS n, holdfast.heard() AS t"""
    )
    assert len(getattr(await load_of(store, "p-1"), of)) == 50


async def test_a_claim_is_servable_as_long_as_its_tenants_cap_leaves_room(store: PostgresStore) -> None:
    await apart(store)
    await make_pools(store, "p-1", "p-2")
    for tenant, cap in {"free": None, "partly": 3, "full": 1, "idle": 9}.items():
        await make_tenant(store, tenant, max_claims=cap)
    live = [("partly", "assigned", "p-1"), ("partly", "active", "p-2"), ("full", "active", "p-1"), ("full", "active", "p-2")]
    for n, (tenant, state, pool) in enumerate(live):
        await add_held(store, f"w-{n}", f"l-{n}", state, tenant=tenant, pool_id=pool, fence=n)
    waiting = ["unknown", "free", "free", "partly", "partly", "partly", "partly", "partly", "full", "idle", "idle"]
    for n, tenant in enumerate(waiting):
        await insert(store, "claim", id=f"c-{n}", tenant=tenant, created_at=ago(50 - n))
    await insert(store, "claim", id="c-90", pool_id="p-2", tenant="free", created_at=ago(7))
    await insert(store, "claim", id="c-91", tenant="partly", state="ended", outcome="lost", created_at=ago(99))
    load = await load_of(store, "p-1")
    assert (load.waiting, load.servable, load.oldest_wait) == (11, 3 + 1 + 0 + 2, 50.0)
    load = await load_of(store, "p-2")
    assert (load.waiting, load.servable, load.oldest_wait) == (1, 1, 7.0)


@pytest.mark.parametrize(
    ("limit", "share", "ended", "released", "room"),
    [
        (9, 0.0, [], None, 9), (9, 0.0, [1, 599, 600], None, 7), (2, 0.0, [1, 2, 3], None, 0), (9, 0.0, [1, 50, 99], 50, 8),
        (1, 0.5, [], None, 10), (1, 0.5, [1, 2], None, 9), (0, 0.5, [], None, 10),
    ],
)  # fmt: skip
async def test_what_the_brake_still_allows_is_what_the_brake_itself_would_allow(
    store: PostgresStore, limit: int, share: float, ended: list[int], released: int | None, room: int
) -> None:
    await apart(store)
    await make_pools(store, "p-1", "p-2")
    await set_brake(store, limit, share)
    if released is not None:
        await store.db.rows(f"UPDATE holdfast.installation SET brake_released_at = {ago(released)}")
    for n, seconds in enumerate(ended):
        await insert(store, "ending", id=f"e-{n}", at=ago(seconds))
        await insert(store, "ending", id=f"f-{n}", at=ago(seconds), kind="claim")
        await insert(store, "ending", id=f"g-{n}", at=ago(seconds), kind="claim")
    states = ["spawning"] * 3 + ["warm"] * 4 + ["retiring"] * 5 + ["parked"] * 3 + ["gone"] * 9
    for n, state in enumerate(states):
        parked: dict[str, Any] = {"tenant": "acme", "parked_since": NOW} if state == "parked" else {}
        await insert(store, "worker", id=f"w-{n}", state=state, pool_id="p-2" if n % 2 else "p-1", **parked)
    await insert(store, "worker", id="unusable-1", terminating=True)
    await insert(store, "worker", id="unusable-2", terminating=True)
    for n in range(3):
        await add_held(store, f"h-{n}", f"c-{n}", fence=n)
    assert {load.brake_room for load in await store.pools.loads()} == {room}, "of the whole installation: twenty workers live"


async def test_a_load_shows_its_pool_the_time_and_the_last_shrink(store: PostgresStore) -> None:
    await apart(store)
    await make_pools(store, "p-1", "p-2")
    await store.pools.shrunk("p-1")
    await store.fleet.stop_workers(True)
    await store.db.rows("UPDATE kept.clock SET t = t + interval '33 s'")
    loads = {load.pool.id: load for load in await store.pools.loads()}
    noon = float(await store.db.value(f"SELECT extract(epoch FROM timestamptz '{NOON}')::float8"))
    assert [(loads[p].shrunk_ago, loads[p].now - noon, loads[p].stopping) for p in ("p-1", "p-2")] == [
        (33.0, 133.0, True),
        (None, 133.0, True),
    ]
    await store.fleet.stop_workers(False)
    assert not (await load_of(store, "p-1")).stopping
    assert loads["p-1"].pool == msgspec.structs.replace(await _pool(store, "p-1"))


async def _pool(store: PostgresStore, id_: str) -> Pool:
    found = await store.pools.by_id(id_)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("pool", "claim", "worker", "demand"),
    [
        ("", "", "", True), ("state = 'draining'", "", "", False), ("", "pool_id = 'p-2'", "", False),
        ("", "state = 'ended', outcome = 'lost'", "", False), ("", "", "pool_id = 'p-2'", False),
        ("", "", "ready = false", False),
        ("", "", "state = 'spawning'", False), ("", "", "state = 'parked', tenant = 'acme', parked_since = holdfast.now()", True),
    ],
)  # fmt: skip
async def test_a_pool_has_demand_if_a_claim_waits_beside_a_free_worker(
    store: PostgresStore, pool: str, claim: str, worker: str, demand: bool
) -> None:
    await make_pools(store, "p-1", "p-2")
    await insert(store, "claim", id="c-1")
    await insert(store, "worker", id="w-1")
    for table, change in {"pool": pool, "claim": claim, "worker": worker}.items():
        if change:
            await store.db.rows(Sql(f"UPDATE holdfast.{table} SET {change} WHERE id IN ('p-1', 'c-1', 'w-1')"))
    assert await store.pools.demand() == (["p-1"] if demand else [])
