"""Failed activations: the claim and its pool wait before the next try, and a claim that fails too often is refused."""

import msgspec
import pytest

from holdfast.model.activation import FAILING_CLAIMS, MAX_ACTIVATIONS
from holdfast.model.claim import Claim
from holdfast.model.effect import Done, Stale
from holdfast.model.pool import Pool
from holdfast.ports.store import FailedActivation, Pair
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, add_worker, apart, pool_with_worker
from postgres.store_steps import JOB, SESSION, acknowledge, agent_report, ask, assigned, deliver, make_pool, make_warm, match

CAUSE = "activate exited with 3: no such volume"


async def fail(store: PostgresStore, pair: Pair) -> FailedActivation:
    await deliver(store, pair)
    return await store.claims.activation_failed(pair.claim, pair.fence, CAUSE)


async def claim(store: PostgresStore, id_: str) -> Claim:
    [found] = await store.claims.get([id_])
    return found


async def troubled(store: PostgresStore) -> Pool:
    """Returns a pool in which three different claims failed, one after another."""
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 10)
    for n in range(FAILING_CLAIMS):
        await fail(store, await assigned(store, pool, ask(id=f"c-bad-{n}")))
    return pool


async def test_a_failed_activation_puts_the_claim_back_with_its_backoff_and_retires_the_worker(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    async with await Changes.of(store) as changes:
        pair = await assigned(store, pool, ask(id="c-1"))
        await deliver(store, pair)
        await clock.live(2)
        await changes.seen()
        failed = await store.claims.activation_failed(pair.claim, pair.fence, CAUSE)
        assert failed == FailedActivation(Done(), "linux")
        seen = await changes.seen()
        assert seen["claim c-1"] == {
            "state": "waiting",
            "reason": CAUSE,
            "offered": False,
            "delivered": False,
            "protected": None,
            "worker_id": None,
            "assigned_at": None,
            "progress_heard": None,
            "activation_failures": 1,
            "not_before_heard": 4.0,
        }
        assert seen["worker w-1"]["state"] == "retiring"
        assert seen["pool p-1"] == {"activation_failing": ["c-1"], "activation_trouble": CAUSE}
        assert seen["events"] == [f'102 claim.requeued worker.retiring p-1 w-1 c-1 acme "activation failed: {CAUSE}"']
        assert await store.claims.activation_failed(pair.claim, pair.fence, CAUSE) == FailedActivation(Stale(), "linux")


async def test_the_claim_is_given_out_again_only_after_its_backoff_which_doubles(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    await make_warm(store, pool, 9)
    [pair] = await match(store, pool, ask(id="c-1"))
    for backoff in (2, 4, 8, 16):
        await fail(store, pair)
        assert await match(store, pool) == []
        await clock.live(backoff - 1)
        assert await match(store, pool) == []
        await clock.live(1)
        [pair] = await match(store, pool)


async def test_a_claim_whose_activation_always_fails_is_refused_at_the_fifth_try_with_its_cause(
    store: PostgresStore,
) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    await make_warm(store, pool, 9)
    [pair] = await match(store, pool, ask(id="c-1", secrets={"A": "b"}))
    for _ in range(MAX_ACTIVATIONS - 1):
        assert (await fail(store, pair)).claim is None
        await clock.live(20)
        [pair] = await match(store, pool)
    last = await fail(store, pair)
    assert last.effect == Done()
    assert last.claim is not None
    assert (last.claim.state, last.claim.outcome) == ("ended", "refused")
    assert last.claim.reason == f"activation failed 5 times: {CAUSE}"
    assert await store.db.value("SELECT how FROM holdfast.claim") == "activation"
    assert await store.db.value("SELECT count(*) FROM holdfast.claim_secret") == 0
    assert await store.db.value("SELECT count(*) FROM holdfast.ending") == 0, "the brake does not count it"


async def test_a_claim_with_a_bad_payload_does_not_hold_up_the_others_and_keeps_its_place(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    [bad] = await match(store, pool, ask(id="c-bad"))
    await match(store, pool, ask(id="c-good"))  # no worker is free yet
    await fail(store, bad)
    await add_worker(store, pool, "w-2")
    [good] = await match(store, pool)
    assert good.claim == "c-good"
    await clock.live(2)
    await match(store, pool, ask(id="c-late"))
    await add_worker(store, pool, "w-3")
    [first] = await match(store, pool)
    assert first.claim == "c-bad", "its place in the queue is older"


async def test_a_parked_worker_is_not_given_to_a_claim_in_its_backoff(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, SESSION)
    await add_worker(store, pool, "w-2")
    bad = await assigned(store, pool, ask(id="c-bad"))
    held = await assigned(store, pool, ask(id="c-held"))
    await deliver(store, held)
    await acknowledge(store, held.worker, held.fence, None)
    await fail(store, bad)
    await store.claims.end("c-held", outcome="released", how="release", reason="", states=("active",))
    await store.workers.report(agent_report(held.worker, served_fence=held.fence))
    assert await match(store, pool) == []
    await clock.live(2)
    [pair] = await match(store, pool)
    assert (pair.claim, pair.worker) == ("c-bad", held.worker)


async def test_a_waiting_claim_shows_how_often_it_failed_and_when_it_is_tried_next(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    await add_worker(store, pool, "w-2")
    [pair] = await match(store, pool, ask(id="c-1"))
    await fail(store, pair)
    assert (await claim(store, "c-1")).reason == f"activation failed 1 of 5 times; the next try is in 2 s: {CAUSE}"
    await clock.live(2)
    assert (await claim(store, "c-1")).reason.endswith(f"; before: {CAUSE}")
    await match(store, pool)
    assert (await claim(store, "c-1")).reason == "activation failed 1 of 5 times, and is tried on another worker now"


async def test_if_different_claims_fail_the_pool_waits_and_then_tries_one_claim_at_a_time(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await troubled(store)
    assert await match(store, pool, ask(id="c-1"), ask(id="c-2")) == []
    reason = (await claim(store, "c-1")).reason
    assert reason.endswith("; activation fails, so claims are tried one at a time, the next in 2 s"), "not another tenant's lines"
    [event] = await store.db.rows("SELECT reason FROM holdfast.event WHERE kind = 'pool.troubled'")
    assert event["reason"] == f"activation fails: {CAUSE}"
    await store.db.rows("DELETE FROM holdfast.claim WHERE id LIKE 'c-bad%'")
    await clock.live(2)
    [probe] = await match(store, pool)
    assert probe.claim == "c-1"
    assert await match(store, pool) == [], "one at a time"
    await deliver(store, probe)
    await acknowledge(store, probe.worker, probe.fence, None)
    [pair] = await match(store, pool)
    assert pair.claim == "c-2"
    found = await store.pools.by_id(pool.id)
    assert found is not None
    assert (found.troubles, found.claims_failing, found.activation_retry_at) == (None, 0, None)


async def test_the_pools_backoff_doubles_with_each_failed_try_up_to_five_minutes(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await troubled(store)
    await store.db.rows("DELETE FROM holdfast.claim")
    for backoff in (2, 4, 8, 16, 32, 64, 128, 256, 300, 300):
        assert await store.db.value("SELECT @fn.seconds_until(activation_heard) FROM holdfast.pool") == backoff
        await clock.live(backoff)
        await make_warm(store, pool)
        await fail(store, await assigned(store, pool, ask(deadline=3600.0)))
        await store.db.rows("DELETE FROM holdfast.claim")


async def test_workers_that_fail_at_the_same_time_make_one_backoff(store: PostgresStore) -> None:
    await apart(store)
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 8)
    pairs = await match(store, pool, *(ask() for _ in range(8)))
    for pair in pairs:
        await fail(store, pair)
    assert await store.db.value("SELECT @fn.seconds_until(activation_heard) FROM holdfast.pool") == 2


async def test_one_claim_that_fails_again_and_again_counts_once_for_its_pool(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    await make_warm(store, pool, 9)
    [pair] = await match(store, pool, ask(id="c-1"))
    for _ in range(FAILING_CLAIMS):
        await fail(store, pair)
        await clock.live(16)
        [pair] = await match(store, pool)
    [other] = await match(store, pool, ask(id="c-2"))
    assert other.claim == "c-2"


async def test_a_hook_that_hangs_does_not_stop_its_pool_forever(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await troubled(store)
    await store.db.rows("DELETE FROM holdfast.claim")
    await clock.live(2)
    await assigned(store, pool, ask(id="c-hangs"))
    assert await match(store, pool, ask(id="c-next")) == []
    await clock.live(301)
    [pair] = await match(store, pool)
    assert pair.claim == "c-next"


async def test_a_new_revision_of_the_pool_is_tried_at_once(store: PostgresStore) -> None:
    await apart(store)
    pool = await troubled(store)
    worker = msgspec.structs.replace(JOB.worker, activate=["better"])
    changed, _ = await store.pools.put("p-x", pool.name, msgspec.structs.replace(JOB, worker=worker), "api")
    assert (changed.troubles, changed.claims_failing) == (None, 0)
    assert len(await match(store, pool, ask(id="c-1"), ask(id="c-2"))) == 2


async def test_an_acknowledged_claim_whose_worker_died_is_not_a_failed_activation(store: PostgresStore) -> None:
    await apart(store)
    pool = await pool_with_worker(store, JOB)
    pair = await assigned(store, pool, ask(id="c-1", retry="lost"))
    await deliver(store, pair)
    await acknowledge(store, pair.worker, pair.fence, None)
    assert (await store.claims.activation_failed("c-1", pair.fence, "it died", dead=True)).effect == Stale()


async def test_a_stalled_activation_counts_only_if_it_made_no_progress_for_so_long(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    pair = await assigned(store, pool, ask(id="c-1"))
    await deliver(store, pair)
    await clock.live(11)
    assert (await store.claims.activation_failed("c-1", pair.fence, "it hangs", idle=12.0)).effect == Stale()
    await clock.live(1)
    assert (await store.claims.activation_failed("c-1", pair.fence, "it hangs", idle=12.0)).effect == Done()


async def test_scale_starts_no_workers_for_claims_that_may_not_be_given_out(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    pair = await assigned(store, pool, ask(id="c-1"))
    assert pair.worker == worker
    await fail(store, pair)
    [load] = await store.pools.loads()
    assert (load.waiting, load.servable) == (1, 0)
    assert await store.pools.demand() == []
    await clock.live(2)
    [load] = await store.pools.loads()
    assert (load.waiting, load.servable) == (1, 1)
    await make_warm(store, pool, 1)
    assert await store.pools.demand() == [pool.id]


async def test_a_troubled_pool_may_serve_one_claim_after_its_backoff(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await troubled(store)
    await match(store, pool, ask(), ask())
    [load] = await store.pools.loads()
    assert (load.waiting, load.servable) == (5, 0)
    await clock.live(2)
    [load] = await store.pools.loads()
    assert (load.waiting, load.servable) == (5, 1)
    await match(store, pool)
    [load] = await store.pools.loads()
    assert load.servable == 0, "a try is in progress"


async def test_doctor_names_the_pool_whose_activations_fail_and_the_last_lines(store: PostgresStore) -> None:
    await apart(store)
    pool = await pool_with_worker(store, JOB)

    async def finding() -> dict[str, object]:
        return next(check for check in await store.check() if check["name"] == "activations succeed")

    assert (await finding())["ok"]
    await fail(store, await assigned(store, pool, ask(id="c-1")))
    found = await finding()
    assert not found["ok"]
    assert found["detail"] == f"pool linux: activation failed for 1 claims since the last success: {CAUSE}"
    await store.claims.end("c-1", outcome="cancelled", how="cancel", reason="", states=("waiting",))
    assert (await finding())["ok"], "one claim with a bad payload is over"


@pytest.mark.parametrize("failures", range(1, 40))
async def test_a_backoff_is_never_longer_than_five_minutes(store: PostgresStore, failures: int) -> None:
    seconds = await store.db.value("SELECT extract(epoch FROM @fn.activation_backoff($1))::integer", failures)
    assert seconds == min(300, 2**failures)


async def test_a_claim_whose_deadline_ends_between_two_tries_says_that_its_activation_failed(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    pair = await assigned(store, pool, ask(id="c-1", deadline=10.0))
    await fail(store, pair)
    await clock.live(11)
    ended = await store.claims.end("c-1", outcome="refused", how="deadline", reason="no worker was free", states=("waiting",))
    assert ended.effect == Done()
    assert (await claim(store, "c-1")).reason == f"activation failed 1 times before its deadline: {CAUSE}"


async def test_a_claim_that_waited_for_a_pool_whose_hook_fails_says_so_without_the_lines_of_other_tenants(
    store: PostgresStore,
) -> None:
    clock = await apart(store)
    pool = await troubled(store)
    assert await match(store, pool, ask(id="c-late", deadline=10.0)) == []
    await clock.live(11)
    await store.claims.end("c-late", outcome="refused", how="deadline", reason="no worker was free", states=("waiting",))
    assert (await claim(store, "c-late")).reason == "activations of its pool fail, and no worker was free before its deadline"
