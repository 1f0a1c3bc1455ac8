"""Two changes of one claim, in both orders: the first one wins, the second one detects it, and the worker changes once."""

import pytest

from holdfast.model.effect import Done, Stale
from holdfast.model.pool import PoolSpec
from holdfast.ports.store import Batch
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_locks import in_order, queued, replicas, row_lock
from postgres.store_steps import (
    BARE,
    JOB,
    SESSION,
    acknowledge,
    active,
    ask,
    assigned,
    deliver,
    end,
    lone_active,
    lone_assigned,
    make_active,
    make_pool,
    make_warm,
    match,
)
from postgres.store_tables import broken, kinds, state_of

both_orders = pytest.mark.parametrize("first", [True, False], ids=["first", "second"])


@both_orders
async def test_a_stored_renewal_wins_over_the_leases_end(store: PostgresStore, first: bool) -> None:
    clock = await Clock.of(store)
    pair = await lone_active(store, SESSION, ask(lease=10.0))
    await clock.live(11)
    renew, expire = store.claims.renew(pair.claim, pair.fence), end(store, pair.claim, "lease", fence=pair.fence)
    answers = await in_order(store, pair.claim, first, renew, expire)
    renewed, expired = answers if first else reversed(answers)
    assert (renewed is not None, expired) == ((True, Stale()) if first else (False, Done()))
    assert await state_of(store, "claim", pair.claim) == ("active" if first else "ended")
    assert await broken(store) == []


@both_orders
async def test_release_and_lease_end_a_claim_once(store: PostgresStore, first: bool) -> None:
    clock = await Clock.of(store)
    pair = await lone_active(store, SESSION, ask(lease=10.0))
    await clock.live(11)
    release, expire = end(store, pair.claim, "release"), end(store, pair.claim, "lease")
    answers = await in_order(store, pair.claim, first, release, expire)
    assert answers == [Done(), Stale()]
    [claim] = await store.claims.get([pair.claim])
    assert claim.outcome == ("released" if first else "expired")
    assert (await kinds(store, claim=pair.claim)).count("claim.ended") == 1
    assert (await kinds(store, worker=pair.worker)).count("worker.parked") == 1
    assert await store.db.value("SELECT count(*) FROM holdfast.ending") == (0 if first else 1)


@both_orders
async def test_result_and_longest_duration_end_a_claim_once(store: PostgresStore, first: bool) -> None:
    clock = await Clock.of(store)
    pair = await lone_active(store, JOB, ask(max_duration=10.0))
    await clock.live(11)
    result = end(store, pair.claim, "result", fence=pair.fence, exit_code=0)
    stop = end(store, pair.claim, "max_duration", fence=pair.fence)
    answers = await in_order(store, pair.claim, first, result, stop)
    assert answers == [Done(), Stale()]
    [claim] = await store.claims.get([pair.claim])
    assert (claim.outcome, claim.exit_code) == (("completed", 0) if first else ("expired", None))
    assert await store.claims.ended_by(pair.worker, pair.fence) == (pair.claim if first else None)
    assert (await kinds(store, claim=pair.claim)).count("claim.ended") == 1


@both_orders
async def test_cancel_and_assign(store: PostgresStore, first: bool) -> None:
    pool = await make_pool(store, JOB)
    new = ask()
    await match(store, pool, new)
    [worker] = await make_warm(store, pool)
    cancel, assign = end(store, new.id, "cancel"), store.claims.match(pool.id, (), 9)
    answers = await in_order(store, new.id, first, cancel, assign)
    batch = next(answer for answer in answers if isinstance(answer, Batch))
    assert Done() in answers
    assert len(batch.pairs) == (0 if first else 1)
    assert await state_of(store, "claim", new.id) == "ended"
    assert await state_of(store, "worker", worker) == "warm", "nothing was delivered: it is as good as before"
    assert await broken(store) == []
    later = await active(store, pool, ask("b"))
    assert later.worker == worker


@both_orders
async def test_acknowledge_and_requeue(store: PostgresStore, first: bool) -> None:
    pair = await lone_assigned(store, JOB)
    await deliver(store, pair)
    accept = acknowledge(store, pair.worker, pair.fence, None)
    requeue = store.claims.requeue(pair.claim, pair.fence, reason="stalled")
    answers = await in_order(store, pair.claim, first, accept, requeue)
    assert answers == ([pair.claim, Stale()] if first else [Done(), None])
    assert await state_of(store, "claim", pair.claim) == ("active" if first else "waiting")
    assert await state_of(store, "worker", pair.worker) == ("held" if first else "retiring"), "it may have seen the tenant"
    assert await broken(store) == []


@both_orders
async def test_deliver_and_cancel(store: PostgresStore, first: bool) -> None:
    pair = await lone_assigned(store, JOB, ask(secrets={"token": "hunter2"}))
    await store.claims.offer([(pair.claim, pair.fence, True)])
    assert pair.uid is not None
    deliver, cancel = store.claims.deliver(pair.worker, pair.uid), end(store, pair.claim, "cancel")
    answers = await in_order(store, pair.claim, first, deliver, cancel)
    accepted, ended = answers if first else reversed(answers)
    assert ended == Done()
    assert (accepted is not None) == first
    assert await state_of(store, "worker", pair.worker) == ("retiring" if first else "warm")


async def test_an_acknowledgement_sent_twice_at_once_is_accepted_twice(store: PostgresStore) -> None:
    pair = await lone_assigned(store, JOB)
    await deliver(store, pair)
    async with replicas(store, 1) as (other,):
        # The agent's first call timed out and still runs when the agent repeats it at another replica.
        calls = [acknowledge(peer, pair.worker, pair.fence, None) for peer in (store, other)]
        answers = await queued(store, row_lock("claim", pair.claim), *calls)
    assert answers == [pair.claim, pair.claim], "with the answer stale, the agent would drop a claim that is active"
    assert (await kinds(store, claim=pair.claim)).count("claim.active") == 1


async def test_a_late_offer_takes_nothing_back_from_a_worker_that_got_the_claim(store: PostgresStore) -> None:
    pair = await lone_assigned(store, JOB)
    # Another replica took over a slow hand-over, offered and delivered. Then the slow replica offers as well.
    await deliver(store, pair)
    await store.claims.offer([(pair.claim, pair.fence, True)])
    assert await store.db.value("SELECT delivered FROM holdfast.claim WHERE id = $1", pair.claim)
    assert await acknowledge(store, pair.worker, pair.fence, None) == pair.claim


@pytest.mark.parametrize(("spec", "state"), [(BARE, "active"), (JOB, "assigned")], ids=["no agent", "agent"])
async def test_offers_in_one_batch_answer_what_a_look_shows_and_leave_out_the_stale(
    store: PostgresStore, spec: PoolSpec, state: str
) -> None:
    pool = await make_pool(store, spec)
    await make_warm(store, pool, 3)
    pairs = [await assigned(store, pool) for _ in range(3)]
    offers = [(pair.claim, pair.fence - (n == 1), n == 0) for n, pair in enumerate(pairs)]
    accepted = {claim.id: claim for claim in await store.claims.offer(list(reversed(offers)))}
    assert sorted(accepted) == sorted([pairs[0].claim, pairs[2].claim])
    for pair, protected in ((pairs[0], True), (pairs[2], False)):
        assert [accepted[pair.claim]] == await store.claims.get([pair.claim])
        assert (accepted[pair.claim].state, accepted[pair.claim].protected) == (state, protected)
    assert await state_of(store, "claim", pairs[1].claim) == "assigned"
    assert await store.claims.offer(offers[:1]) == []  # once only
    assert await broken(store) == []


async def test_an_offer_of_an_old_fence_changes_nothing(store: PostgresStore) -> None:
    pool = await make_pool(store, BARE)
    await make_warm(store, pool, 2)
    old = await assigned(store, pool)
    await store.claims.requeue(old.claim, old.fence, reason="its pod was gone")
    [new] = await match(store, pool)
    assert (new.claim, new.worker) != (old.claim, old.worker)
    assert new.fence > old.fence
    assert await store.claims.offer([(old.claim, old.fence, True)]) == []
    assert await state_of(store, "claim", old.claim) == "assigned"
    await make_active(store, pool, new)
    assert not await store.claims.renew(old.claim, old.fence)
    assert await acknowledge(store, old.worker, old.fence, None) is None
    assert await broken(store) == []


async def test_one_too_many_is_judged_by_what_its_pool_has_when_it_goes(store: PostgresStore) -> None:
    """A claim is served between the read that found a surplus and the action. Then there is no surplus any more."""

    pool = await make_pool(store, BARE)
    workers = await make_warm(store, pool, 4)

    async def let_go(worker: str) -> object:
        row = await store.workers.get(worker)
        assert row is not None
        return await store.workers.condemn(worker, row.version, "the pool wants 2", counted=True, floor=2)

    assert await let_go(workers[-1]) == Done(), "three are left"
    pair = await assigned(store, pool)
    assert pair.worker != workers[-2]
    assert await let_go(workers[-2]) == Stale(), "two are left, and one is busy"
    assert await state_of(store, "worker", workers[-2]) == "warm"
