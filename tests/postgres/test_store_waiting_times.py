"""How long a claim waited is the time in the queue, also after its worker died and it was served again."""

import pytest
from store_clock import Clock
from store_steps import JOB, ask, make_active, make_pool, make_warm, match

from holdfast.model.claim import Claim
from holdfast.model.effect import Done
from holdfast.postgres.store import PostgresStore


async def read(store: PostgresStore, claim: str) -> Claim:
    (found,) = await store.claims.get([claim])
    return found


@pytest.mark.parametrize("untouched", [False, True], ids=["its command ran", "its command never started"])
async def test_after_a_retry_the_wait_of_a_claim_is_its_second_wait(store: PostgresStore, untouched: bool) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    new = ask(retry="lost")
    await match(store, pool, new)
    await clock.live(3)
    await make_warm(store, pool)
    [pair] = await match(store, pool)
    await make_active(store, pool, pair)
    first = await read(store, new.id)
    assert (first.waited, first.retried_at) == (3.0, None)

    await clock.live(40)  # its worker is held, so the claim does not wait
    again = await store.claims.requeue(pair.claim, pair.fence, dead=True, untouched=untouched, reason="its pod is gone")
    assert again == Done()
    back = await read(store, new.id)
    assert (back.waited, back.queued_at) == (None, back.created_at + 43.0)

    await clock.live(5)
    await make_warm(store, pool)
    [pair] = await match(store, pool)
    await make_active(store, pool, pair)
    assert (await read(store, new.id)).waited == 5.0
    renewed = await store.claims.renew(pair.claim, pair.fence)
    assert renewed is not None
    assert renewed.waited == 5.0  # the answers of all calls agree
    await clock.outage(3600)
    assert (await read(store, new.id)).waited == 5.0  # an outage does not change what has passed


async def test_a_claim_that_another_worker_got_before_its_start_has_waited_all_the_time(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    new = ask()
    [pair] = await match(store, pool, new)
    await clock.live(4)
    assert await store.claims.requeue(pair.claim, pair.fence, reason="the hand-over stopped") == Done()
    await make_warm(store, pool)
    [pair] = await match(store, pool)
    claim = await read(store, new.id)
    assert (claim.waited, claim.queued_at) == (4.0, claim.created_at)
