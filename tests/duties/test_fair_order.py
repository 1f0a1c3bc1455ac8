"""Which claim is served next: shares by weight, no tenant starves, first come first served within a tenant, priorities first."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_on_store import Queue, ask, make_pool, make_warm

from holdfast.model.claim import epoch_of
from holdfast.model.tenant import TenantSpec
from holdfast.postgres.database import Database
from holdfast.postgres.store import PostgresStore

SMALL = settings(deadline=None, max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])


def on_a_store(dsn: str, check: Callable[[PostgresStore], Coroutine[Any, Any, None]]) -> None:
    """Runs one example. Hypothesis calls its tests synchronously, once per example."""

    async def run() -> None:
        store = PostgresStore(await Database.connect(dsn, size=16))
        try:
            await check(store)
        finally:
            await store.close()

    asyncio.run(run())


async def test_shares_of_a_saturated_pool_converge_to_the_weights(store: PostgresStore) -> None:
    weights = {"small": 1, "middle": 2, "large": 5}
    for name, weight in weights.items():
        await store.pools.put_tenant(name, TenantSpec(weight=weight))
    queue = await Queue.of(store)
    for name in weights:
        await queue.wait(name, 90)
    served = Counter(pair.tenant for pair in await queue.serve(80))
    for name, weight in weights.items():
        assert served[name] == pytest.approx(80 * weight / 8, abs=2), served


@SMALL
@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=4), turns=st.integers(10, 30))
def test_at_every_moment_no_tenant_is_more_than_a_turn_ahead_of_its_share(dsn: str, weights: list[int], turns: int) -> None:
    async def check(store: PostgresStore) -> None:
        queue = await Queue.of(store)
        names = {f"t{n}": weight for n, weight in enumerate(weights)}
        for name, weight in names.items():
            await store.pools.put_tenant(name, TenantSpec(weight=weight))
            await queue.wait(name, turns)
        served: Counter[str] = Counter()
        for pair in await queue.serve(turns):
            served[pair.tenant] += 1
            for one in names:
                for other in names:
                    # In units of their own cost, two tenants with waiting claims never differ by more than one claim each.
                    apart = served[one] / names[one] - served[other] / names[other]
                    assert apart <= 1 / names[one] + 1 / names[other] + 1e-6, (served, names)

    on_a_store(dsn, check)


async def test_a_late_tenant_behind_a_thousand_claims_is_served_within_a_few_turns(store: PostgresStore) -> None:
    queue = await Queue.of(store)
    await queue.wait("early", 1000)
    assert {pair.tenant for pair in await queue.serve(10)} == {"early"}
    await queue.wait("late", 1)
    assert "late" in [pair.tenant for pair in await queue.serve(3)]


async def test_a_tenant_gains_nothing_by_having_been_idle(store: PostgresStore) -> None:
    queue = await Queue.of(store)
    await queue.wait("busy", 60)
    await queue.serve(30)
    await queue.wait("idle", 30)
    served = Counter(pair.tenant for pair in await queue.serve(20))
    assert served["busy"] == pytest.approx(10, abs=1), served


async def test_a_tenant_pays_only_for_what_it_was_served(store: PostgresStore) -> None:
    """A hundred claims were cancelled or refused and used no worker, so the tenant's next claim must not wait a hundred turns."""

    queue = await Queue.of(store)
    await queue.wait("other", 200)
    for claim in await queue.wait("changed-its-mind", 100):
        await store.claims.end(claim, outcome="cancelled", how="cancel", reason="", states=("waiting",))
    await queue.wait("changed-its-mind", 1)
    assert "changed-its-mind" in [pair.tenant for pair in await queue.serve(10)]


@SMALL
@given(batches=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_within_a_tenant_first_come_is_first_served(dsn: str, batches: list[int]) -> None:
    async def check(store: PostgresStore) -> None:
        queue = await Queue.of(store)
        came: list[str] = []
        for size in batches:
            came += await queue.wait("acme", size)
            await queue.wait("other", size)
        served = await queue.serve(2 * len(came))
        assert [pair.claim for pair in served if pair.tenant == "acme"] == came

    on_a_store(dsn, check)


async def test_a_claim_that_goes_back_keeps_its_place(store: PostgresStore) -> None:
    pool = await make_pool(store)
    await make_warm(store, pool, ["w-1"])
    await store.claims.match(pool.id, [ask(f"c-{n}") for n in range(4)], 0)
    (pair,) = (await store.claims.match(pool.id, (), 8)).pairs
    assert pair.claim == "c-0"
    await store.claims.requeue("c-0", pair.fence, keep_worker=True, suspect=False, reason="not fetched")
    (again,) = (await store.claims.match(pool.id, (), 8)).pairs
    assert again.claim == "c-0"
    assert again.fence > pair.fence


async def test_priorities_come_strictly_first_and_each_is_its_own_fair_queue(store: PostgresStore) -> None:
    for name, weight in {"one": 1, "three": 3}.items():
        await store.pools.put_tenant(name, TenantSpec(weight=weight, max_priority=5))
    queue = await Queue.of(store)
    await queue.wait("one", 40)
    await queue.wait("three", 40)
    urgent = {*await queue.wait("one", 8, priority=5), *await queue.wait("three", 24, priority=5)}
    served = await queue.serve(56)
    assert {pair.claim for pair in served[:32]} == urgent
    for part, turns in ((served[:16], 16), (served[32:], 24)):
        shares = Counter(pair.tenant for pair in part)
        assert shares["three"] == pytest.approx(turns * 3 / 4, abs=1), shares


async def test_urgent_work_does_not_cost_a_tenant_its_share_of_the_rest(store: PostgresStore) -> None:
    await store.pools.put_tenant("urgent", TenantSpec(max_priority=9))
    queue = await Queue.of(store)
    await queue.wait("urgent", 20, priority=9)
    await queue.serve(20)
    await queue.wait("plain", 20)
    await queue.wait("urgent", 20)
    shares = Counter(pair.tenant for pair in await queue.serve(20))
    assert shares["urgent"] == pytest.approx(10, abs=1), shares


async def test_who_may_not_choose_a_priority_waits_with_everybody(store: PostgresStore) -> None:
    queue = await Queue.of(store)
    first = await queue.wait("plain", 3)
    await queue.wait("pushy", 3, priority=9)
    assert first[0] in [pair.claim for pair in await queue.serve(2)]


async def test_a_tenant_at_its_cap_does_not_stand_in_the_way_of_others(store: PostgresStore) -> None:
    await store.pools.put_tenant("capped", TenantSpec(weight=100, max_claims=2))
    queue = await Queue.of(store)
    await queue.wait("capped", 20)
    await queue.wait("other", 20)
    assert Counter(pair.tenant for pair in await queue.serve(12)) == {"capped": 2, "other": 10}


async def test_fences_grow_with_every_assignment_and_carry_the_epoch(store: PostgresStore) -> None:
    queue = await Queue.of(store)
    await queue.wait("acme", 10)
    fences = [pair.fence for pair in await queue.serve(10)]
    state = await store.recovery.state()
    assert all(before < after for before, after in pairwise(fences))
    assert {epoch_of(fence) for fence in fences} == {state.epoch}
    assert fences[-1] <= state.last_fence < 2**53
