"""The queue: places, priorities, caps, keys, secrets and retries (P1, P8)."""

import pytest

from holdfast.model.effect import Done, Stale
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import DAY, Clock
from postgres.store_steps import (
    DIRECT,
    JOB,
    SESSION,
    acknowledge,
    active,
    agent_report,
    ask,
    assigned,
    deliver,
    end,
    make_pool,
    make_tenant,
    make_warm,
    match,
)
from postgres.store_tables import broken, column, kinds, state_of

HOUR = 3600.0


async def test_a_claim_is_lost_and_retried_twice_at_most(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    new = ask(retry="lost")
    await match(store, pool, new)
    workers = []
    for time in range(3):
        await make_warm(store, pool)
        pair = await active(store, pool, new)
        workers.append(pair.worker)
        lost = await store.claims.requeue(pair.claim, pair.fence, dead=True, reason="its pod is gone")
        assert lost == (Done() if time < 2 else Stale()), "a command runs three times at most"
    assert len(set(workers)) == 3
    assert await end(store, new.id, "death") == Done()
    [claim] = await store.claims.get([new.id])
    assert (claim.outcome, claim.attempts) == ("lost", 3)
    assert (await kinds(store, claim=new.id)).count("claim.retried") == 2
    assert await column(store, "SELECT DISTINCT state FROM holdfast.worker") == ["retiring"]


@pytest.mark.parametrize("how", ["acknowledge", "cancel", "release", "deadline", "death"])
async def test_secrets_are_erased_as_soon_as_they_are_not_needed(store: PostgresStore, how: str) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    new = ask(secrets="1.c2VjcmV0", deadline=5.0)
    await match(store, pool, new)
    kept = "SELECT count(*) FROM holdfast.claim_secret"
    assert await store.db.value(kept) == 1
    if how == "deadline":
        await clock.live(6)
    elif how != "cancel":
        await make_warm(store, pool)
        [pair] = await match(store, pool)
        delivered = await deliver(store, pair)
        again = await store.claims.deliver(pair.worker, f"uid-{pair.worker}")  # the answer may be lost, so it is delivered again
        assert again == delivered
        assert delivered.secrets == "1.c2VjcmV0"
    assert await store.db.value(kept) == 1
    if how == "acknowledge":
        assert await acknowledge(store, pair.worker, pair.fence, None) == new.id
    else:
        assert await end(store, new.id, how) == Done()
    assert await store.db.value(kept) == 0


async def test_a_requeued_claims_secrets_reach_its_next_worker(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 2)
    pair = await assigned(store, pool, ask(secrets="1.c2VjcmV0"))
    await store.claims.requeue(pair.claim, pair.fence, reason="its pod was gone")
    [again] = await match(store, pool)
    assert (await deliver(store, again)).secrets == "1.c2VjcmV0"


async def test_a_key_names_its_claim_while_it_lives_and_24_hours_after(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, DIRECT)

    async def again() -> tuple[str, str]:
        await store.history.prune(7)
        new = ask(key="k")
        return (await store.claims.match(pool.id, [new], 0)).answers[new.id]

    what, claim = await again()
    assert what == "new"
    await clock.jump(2 * DAY)
    assert await again() == ("same", claim), "live for two days"
    assert await end(store, claim, "cancel") == Done()
    await clock.elapse(DAY - 60)
    assert await again() == ("same", claim), "ended, and still within 24 h"
    await clock.elapse(120)
    assert (await again())[0] == "new"


async def test_pruning_takes_only_what_is_old_and_over(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool, 2)
    ended, live = await active(store, pool, ask("a", key="k")), await active(store, pool, ask("b", key="k"))
    waiting = ask("c")
    await match(store, pool, waiting)
    await end(store, ended.claim, "death")
    assert await store.workers.bury(ended.worker, "its pod is gone") == Done()
    await store.workers.beat([agent_report(live.worker)])
    await clock.elapse(8 * DAY)
    await store.history.prune(7)
    await store.history.prune(7)
    assert sorted(await column(store, "SELECT id FROM holdfast.claim")) == sorted([live.claim, waiting.id])
    assert await column(store, "SELECT id FROM holdfast.worker") == [live.worker]
    assert await column(store, "SELECT worker_id FROM holdfast.heartbeat") == [live.worker]
    assert await broken(store) == []


async def test_pruning_keeps_the_heartbeats_of_agents_without_a_row(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    stranger = agent_report("w-stranger", doing="running", claim="c-9", fence=1 << 40, tenant="acme")
    await store.workers.beat([stranger])
    await clock.live(2)
    await store.history.prune(7)
    # Only this report tells a busy pod without a row from an idle one, which may be deleted.
    assert [heartbeat.claim for heartbeat in await store.workers.heartbeats(["w-stranger"])] == ["c-9"]


async def test_a_requeued_claim_keeps_its_place(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    asked = [ask() for _ in range(4)]
    await match(store, pool, *asked)
    [worker] = await make_warm(store, pool)
    [pair] = await match(store, pool)
    assert pair.claim == asked[0].id
    tag = "SELECT tag FROM holdfast.claim WHERE id = $1"
    before = await store.db.value(tag, pair.claim)
    kept = await store.claims.requeue(pair.claim, pair.fence, keep_worker=True, suspect=True, reason="it did not fetch it")
    assert kept == Done()
    assert await store.db.value(tag, pair.claim) == before
    assert await state_of(store, "worker", worker) == "warm"
    assert await match(store, pool, ask()) == [], "its worker is suspect and gets nothing"
    await make_warm(store, pool, 2)
    assert {again.claim for again in await match(store, pool)} == {asked[0].id, asked[1].id}


async def test_priorities_reach_as_far_as_the_tenant_may(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_tenant(store, "vip", max_priority=5)
    await make_tenant(store, "plain")
    asked = [ask("unknown", priority=9), ask("plain", priority=9), ask("vip", priority=0), ask("vip", priority=9)]
    await match(store, pool, *asked)
    granted = {claim.id: claim.priority for claim in await store.claims.get([new.id for new in asked])}
    assert [granted[new.id] for new in asked] == [0, 0, 0, 5]
    await make_warm(store, pool)
    assert [pair.claim for pair in await match(store, pool)] == [asked[3].id]


async def test_two_thousand_claims_of_a_capped_tenant_block_no_other_tenant(store: PostgresStore) -> None:
    pool = await make_pool(store, DIRECT)
    await make_tenant(store, "greedy", max_claims=2, max_priority=9, max_waiting=5000)
    await make_warm(store, pool, 8)
    pairs = await match(store, pool, *(ask("greedy", priority=9 if n % 2 else 0) for n in range(2000)))
    assert len(pairs) == 2
    # After all of them, and with a lower priority than half of them.
    served = await match(store, pool, *(ask(tenant) for tenant in ("b", "c", "b")))
    assert [pair.tenant for pair in served].count("b") == 2
    assert len(served) == 3
    assert await match(store, pool) == [], "three workers are free, and no claim may have them"
    [load] = await store.pools.loads()
    assert (load.waiting, load.servable, load.free_ready) == (1998, 0, 3)
    assert await end(store, pairs[0].claim) == Done()
    assert [pair.tenant for pair in await match(store, pool)] == ["greedy"], "a place became free"
    await make_tenant(store, "greedy", max_claims=4)
    assert len(await match(store, pool)) == 2


async def test_a_tenant_at_its_cap_keeps_its_parked_workers_and_gets_no_more(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    await make_tenant(store, "a", max_claims=2)
    await make_warm(store, pool, 3)
    held = [await active(store, pool, ask("a", lease=60.0)) for _ in range(2)]
    for pair in held:
        assert await end(store, pair.claim) == Done()
        await store.workers.report(agent_report(pair.worker, served_fence=pair.fence))
    await make_tenant(store, "a", max_claims=1)
    pairs = await match(store, pool, *(ask("a", lease=60.0) for _ in range(3)))
    assert len(pairs) == 1
    assert pairs[0].worker in {pair.worker for pair in held}


async def test_a_worker_that_was_not_reset_is_not_given_out(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool)
    first = await active(store, pool, ask("a", lease=60.0))
    assert await end(store, first.claim) == Done()
    assert await match(store, pool, ask("a", lease=60.0)) == [], "its agent has not reported that it was reset"
    await store.workers.report(agent_report(first.worker, served_fence=first.fence - 1))
    await store.workers.report(agent_report(first.worker))
    assert await match(store, pool) == [], "an old reset is not this one"
    await store.db.rows("UPDATE holdfast.worker SET suspect_since = holdfast.now() WHERE id = $1", first.worker)
    await store.workers.report(agent_report(first.worker))
    assert await match(store, pool) == [], "nor is it one to have been silent"
    await store.workers.report(agent_report(first.worker, served_fence=first.fence))
    assert [pair.worker for pair in await match(store, pool)] == [first.worker]


@pytest.mark.parametrize("in_front", ["nothing", "a tenant at its cap"])
async def test_a_claim_past_its_deadline_gets_no_warm_worker(store: PostgresStore, in_front: str) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    if in_front != "nothing":
        await make_tenant(store, "full", max_claims=0)
        await match(store, pool, ask("full", deadline=HOUR))
    late, patient = ask(deadline=5.0), ask(deadline=HOUR)
    await match(store, pool, late, patient)
    await clock.live(6)
    await make_warm(store, pool, 2)
    assert [pair.claim for pair in await match(store, pool)] == [patient.id]
    assert await end(store, late.id, "deadline") == Done()


async def test_a_claim_past_its_deadline_does_not_get_its_tenants_parked_worker(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    [worker] = await make_warm(store, pool)
    pair = await active(store, pool, ask())
    assert await end(store, pair.claim) == Done()
    late, patient = ask(deadline=5.0), ask(deadline=HOUR)
    await match(store, pool, late, patient)
    await clock.live(6)
    await store.workers.report(agent_report(worker, served_fence=pair.fence))
    assert [(found.claim, found.worker) for found in await match(store, pool)] == [(patient.id, worker)]


async def test_a_key_finds_its_claim_only_with_the_same_request(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    new = ask(key="build-7")
    await match(store, pool, new)
    await store.pools.delete(pool.name)
    assert await store.claims.by_key("acme", "build-7", new.hash) == new.id
    assert await store.claims.by_key("acme", "build-7", "another") is None
    assert await store.claims.by_key("rival", "build-7", new.hash) is None
    assert await store.claims.by_key("acme", "build-8", new.hash) is None
