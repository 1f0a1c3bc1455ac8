"""Which claims and workers a match considers, in which order, and for which lock it does not have to wait."""

from typing import Any

import pytest

from holdfast.ports.store import Batch
from holdfast.postgres.claims import MATCH
from holdfast.postgres.store import PostgresStore
from postgres.changes import apart
from postgres.store_locks import another
from postgres.store_rows import NOW, add_held, ago, insert
from postgres.store_steps import JOB, ask, make_tenant

CAPS = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast.caps', 0))"


async def two_pools(store: PostgresStore) -> str:
    """Makes the pools p-1 and p-2. Returns their revision."""
    await apart(store)
    pool, _ = await store.pools.put("p-1", "linux", JOB, "api")
    await store.pools.put("p-2", "other", JOB, "api")
    return pool.revision


async def add_parked(store: PostgresStore, worker: str, tenant: str, **columns: Any) -> None:
    await insert(store, "worker", **({"id": worker, "state": "parked", "tenant": tenant, "parked_since": NOW} | columns))


async def pairs(store: PostgresStore, *new: Any, limit: int = 9) -> list[tuple[str, str]]:
    return [(pair.claim, pair.worker) for pair in (await store.claims.match("p-1", new, limit)).pairs]


async def first(store: PostgresStore, full: str, limit: int) -> list[str]:
    rows = await store.db.rows("SELECT o_id FROM @fn.first_waiting('p-1', $1::text[], $2)", full.split(), limit)
    return [row[0] for row in rows]


async def test_the_queue_is_read_by_priority_then_tag_then_id(store: PostgresStore) -> None:
    await two_pools(store)
    for claim, tenant, priority, tag in [
        ("c-7", "b", 0, 5), ("c-6", "a", 0, 5), ("c-5", "c", 0, 4), ("c-4", "b", 0, 9), ("c-3", "a", 2, 9), ("c-2", "c", 1, 1),
        ("c-1", "a", 2, 8), ("c-0", "full", 9, 0), ("c-8", "z", 0, 9),
    ]:  # fmt: skip
        await insert(store, "claim", id=claim, tenant=tenant, priority=priority, tag=tag)
    await insert(store, "claim", id="other", pool_id="p-2", tenant="a", priority=9)
    await insert(store, "claim", id="ended", tenant="y", priority=9, state="ended", outcome="lost")
    await insert(store, "claim", id="elsewhere", pool_id="p-2", tenant="only-there", priority=9)
    order = ["c-1", "c-3", "c-2", "c-5", "c-6", "c-7", "c-4", "c-8"]
    for limit in (1, 3, 4, 6, 8, 20):
        assert await first(store, "", limit) == ["c-0", *order][:limit]
        assert await first(store, "full", limit) == order[:limit], "in the same order beside a tenant at its cap"
    assert await first(store, "full a z", 9) == ["c-2", "c-5", "c-7", "c-4"]
    assert await first(store, "full a b c z", 9) == []


async def test_of_workers_that_are_free_for_the_same_time_the_lowest_id_is_given_first(store: PostgresStore) -> None:
    revision = await two_pools(store)
    for worker in ("w-3", "w-1", "w-2"):
        await insert(store, "worker", id=worker, revision=revision)
    for worker in ("v-2", "v-1"):
        await insert(store, "worker", id=worker, revision="old")
    assert [worker for _, worker in await pairs(store, *(ask(id=f"c-{n}") for n in range(4)))] == ["w-1", "w-2", "w-3", "v-1"]


@pytest.mark.parametrize("revision", ["current", "old"])
@pytest.mark.parametrize(
    "obstacle",
    [{"ready": False}, {"terminating": True}, {"schedulable": False}, {"suspect_since": NOW}, {"unconfirmed_since": NOW}],
)
async def test_a_warm_worker_of_any_revision_is_given_only_if_it_is_free(
    store: PostgresStore, revision: str, obstacle: dict[str, Any]
) -> None:
    current = await two_pools(store)
    its = current if revision == "current" else "old"
    await insert(store, "worker", id="w-1", revision=its, **obstacle)
    await insert(store, "worker", id="w-2", revision=its, pool_id="p-2")
    await insert(store, "worker", id="w-3", revision=its, state="retiring")
    await insert(store, "worker", id="w-4", revision=its, state="spawning")
    assert await pairs(store, ask(id="c-1")) == []


async def test_a_batch_takes_no_more_workers_of_the_old_revision_than_it_needs(store: PostgresStore) -> None:
    revision = await two_pools(store)
    await insert(store, "worker", id="w-1", revision=revision)
    for n in range(3):
        await insert(store, "worker", id=f"v-{n}", revision="old")
    async with another(store) as other, other.transaction():
        await other.execute("SELECT FROM holdfast.worker WHERE id IN ('v-1', 'v-2') FOR UPDATE")
        assert await pairs(store, ask(id="c-1"), ask(id="c-2")) == [("c-1", "w-1"), ("c-2", "v-0")]


async def test_parked_workers_are_taken_by_id_up_to_the_limit_and_each_for_its_own_tenant(store: PostgresStore) -> None:
    await two_pools(store)
    for worker, tenant in {"w-3": "c", "w-2": "b", "w-1": "a"}.items():
        await add_parked(store, worker, tenant)
    for claim, tenant in {"c-1": "c", "c-2": "b", "c-3": "a"}.items():
        await insert(store, "claim", id=claim, tenant=tenant)
    assert sorted(await pairs(store, limit=2)) == [("c-2", "w-2"), ("c-3", "w-1")]
    assert await pairs(store) == [("c-1", "w-3")]


async def test_a_tenants_last_parked_worker_gets_its_first_claim(store: PostgresStore) -> None:
    await two_pools(store)
    for worker, seconds in {"w-1": 9, "w-2": 5, "w-3": 5}.items():
        await add_parked(store, worker, "acme", parked_since=ago(seconds))
    for claim, priority, tag in [("c-1", 0, 1), ("c-2", 0, 0), ("c-3", 5, 9), ("c-4", 0, 2)]:
        await insert(store, "claim", id=claim, priority=priority, tag=tag)
    assert sorted(await pairs(store)) == [("c-1", "w-1"), ("c-2", "w-3"), ("c-3", "w-2")]


async def test_a_parked_worker_whose_tenant_does_not_wait_here_takes_no_place_in_the_batch(store: PostgresStore) -> None:
    await two_pools(store)
    await add_parked(store, "w-1", "busy")
    await add_held(store, "w-9", "c-9", tenant="busy")
    await add_parked(store, "w-2", "elsewhere")
    await insert(store, "claim", id="c-8", tenant="elsewhere", pool_id="p-2")
    await add_parked(store, "w-3", "acme", pool_id="p-2")
    await add_parked(store, "w-4", "acme")
    await insert(store, "claim", id="c-1")
    await insert(store, "claim", id="c-7", pool_id="p-2", priority=9)
    assert await pairs(store, limit=1) == [("c-1", "w-4")]


@pytest.mark.parametrize("beside", ["a held worker", "another pool's parked worker", "a tenant that does not wait"])
async def test_a_batch_without_a_capped_tenant_does_not_wait_for_the_caps(store: PostgresStore, beside: str) -> None:
    await two_pools(store)
    await make_tenant(store, "capped", max_claims=1)
    await make_tenant(store, "acme")
    if beside == "a held worker":
        await add_held(store, "w-9", "c-9", tenant="capped")
    elif beside == "another pool's parked worker":
        await add_parked(store, "w-9", "capped", pool_id="p-2")
    await add_parked(store, "w-1", "acme")
    await insert(store, "worker", id="w-2")
    for claim in ("c-1", "c-2"):
        await insert(store, "claim", id=claim, tag=int(claim[-1]))
    await insert(store, "claim", id="c-3", tenant="capped", tag=9)
    async with another(store) as other, other.transaction():
        await other.execute(CAPS)
        assert await pairs(store) == [("c-1", "w-1"), ("c-2", "w-2")]


@pytest.mark.parametrize("cap", [1, 2, 3])
async def test_parked_workers_are_given_up_to_the_cap(store: PostgresStore, cap: int) -> None:
    await two_pools(store)
    await make_tenant(store, "acme", max_claims=cap)
    for n in range(3):
        await add_parked(store, f"w-{n}", "acme", parked_since=ago(n))
        await insert(store, "claim", id=f"c-{n}", tag=n)
    assert sorted(await pairs(store)) == [(f"c-{n}", f"w-{n}") for n in range(cap)]


async def test_a_batch_serves_what_its_limit_leaves_after_parked_workers(store: PostgresStore) -> None:
    await two_pools(store)
    await add_parked(store, "w-1", "acme")
    for n in (2, 3, 4):
        await insert(store, "worker", id=f"w-{n}")
    for n in range(4):
        await insert(store, "claim", id=f"c-{n}", tag=n)
    assert await pairs(store, limit=1) == [("c-0", "w-1")]
    assert await pairs(store, limit=2) == [("c-1", "w-2"), ("c-2", "w-3")]
    assert await pairs(store, limit=0) == []


async def test_a_batch_that_goes_on_behind_a_cap_keeps_to_its_limit(store: PostgresStore) -> None:
    await two_pools(store)
    await make_tenant(store, "a", max_claims=1)
    for n in range(5):
        await insert(store, "worker", id=f"w-{n}")
    for n, tenant in enumerate(["a", "a", "b", "b", "b"]):
        await insert(store, "claim", id=f"c-{n}", tenant=tenant, tag=n)
    assert [claim for claim, _ in await pairs(store, limit=2)] == ["c-0", "c-2"]


async def test_a_tenant_below_its_cap_is_served_again_behind_one_that_is_at_it(store: PostgresStore) -> None:
    await two_pools(store)
    await make_tenant(store, "a", max_claims=1)
    await make_tenant(store, "b", max_claims=9)
    for n in range(5):
        await insert(store, "worker", id=f"w-{n}")
    for n, tenant in enumerate(["a", "b", "a", "b", "b", "b"]):
        await insert(store, "claim", id=f"c-{n}", tenant=tenant, tag=n)
    assert [claim for claim, _ in await pairs(store, limit=4)] == ["c-0", "c-1", "c-3", "c-4"]


async def test_while_the_installation_stops_requests_are_stored_and_wait(store: PostgresStore) -> None:
    await two_pools(store)
    await insert(store, "worker", id="w-1")
    await store.fleet.stop_workers(True)
    batch = await store.claims.match("p-1", [ask(id="c-1")], 9)
    assert (batch.answers, batch.pairs) == ({"c-1": ("new", "c-1")}, [])
    await store.fleet.stop_workers(False)
    assert await pairs(store) == [("c-1", "w-1")]


async def answers(store: PostgresStore, *new: Any) -> list[tuple[str, str]]:
    import msgspec

    requests = [{"ord": n, **msgspec.structs.asdict(one)} for n, one in enumerate(new)]
    rows = await store.db.act(MATCH, "p-1", msgspec.json.encode(requests).decode(), 0)
    return [(row["o_what"], row["o_worker"]) for row in rows]


async def test_each_request_is_answered_once(store: PostgresStore) -> None:
    await two_pools(store)
    await insert(store, "claim", id="old", key="k", key_live=False, state="ended", outcome="lost")
    await insert(store, "claim", id="keyless")
    assert await answers(store, ask(id="c-1", key="k")) == [("new", "c-1")], "the old claim's key is free again"
    assert await answers(store, ask(id="c-1", key="k")) == [("new", "c-1")], "the same batch again"
    assert await answers(store, ask(id="c-2", key="k")) == [("same", "c-1")]
    assert await answers(store, ask(id="c-3")) == [("new", "c-3")], "without a key"
    assert await answers(store) == []


async def test_a_claim_waits_behind_the_claims_of_its_tenant_that_wait_in_this_pool(store: PostgresStore) -> None:
    await two_pools(store)
    turn = 1_000_000
    await make_tenant(store, "acme", max_priority=5)
    await insert(store, "claim", id="here", tag=3 * turn)
    await insert(store, "claim", id="first-here", tag=turn)
    await insert(store, "claim", id="there", pool_id="p-2", tag=50 * turn)
    await insert(store, "claim", id="higher", priority=5, tag=60 * turn)
    await insert(store, "claim", id="served", state="ended", outcome="lost", tag=70 * turn)
    await insert(store, "claim", id="theirs", tenant="other", tag=80 * turn)
    for pool, priority, tenant, tag in [
        ("p-2", 0, "acme", 91), ("p-1", 5, "acme", 92), ("p-1", 0, "other", 93), ("p-2", 0, "", 94), ("p-1", 5, "", 95),
    ]:  # fmt: skip
        await insert(store, "fair", pool_id=pool, priority=priority, tenant=tenant, tag=tag * turn)
    batch = await store.claims.match("p-1", [ask(id="c-1"), ask("new", id="c-2"), ask(id="c-3")], 0)
    assert isinstance(batch, Batch)
    tags = dict(await store.db.rows("SELECT id, tag FROM holdfast.claim WHERE id LIKE 'c-_'"))
    assert tags == {"c-1": 4 * turn, "c-2": 0, "c-3": 5 * turn}
    await insert(store, "fair", pool_id="p-1", priority=0, tenant="", tag=9 * turn)
    await store.claims.match("p-1", [ask("newer", id="c-4")], 0)
    await insert(store, "fair", pool_id="p-1", priority=0, tenant="newest", tag=10 * turn)
    await store.claims.match("p-1", [ask("newest", id="c-5")], 0)
    tags = dict(await store.db.rows("SELECT id, tag FROM holdfast.claim WHERE id IN ('c-4', 'c-5')"))
    assert tags == {"c-4": 9 * turn, "c-5": 10 * turn}
