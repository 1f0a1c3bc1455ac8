"""Many hand-overs at the same time share their offers. Each caller gets its own claim, and all get a failure of the batch."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from holdfast.claimpath.signals import Signals
from holdfast.model.claim import Claim
from holdfast.ports.store import Facts, StoreUnavailable
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, claim_path
from postgres.store_locks import queued, row_lock
from postgres.store_steps import BARE, ask, assigned, make_pool, make_warm, match
from postgres.store_tables import broken

RUSH = 24


def counted(store: PostgresStore, monkeypatch: pytest.MonkeyPatch, fail: int = 0) -> dict[str, int]:
    """Counts how often claims were offered and read. The first `fail` offers do not reach the store."""
    calls = {"offer": 0, "get": 0, "state": 0}
    offer, get, state = store.claims.offer, store.claims.get, store.claims.state

    async def counted_offer(offers: Sequence[tuple[str, int, bool]]) -> list[Claim]:
        calls["offer"] += 1
        if calls["offer"] <= fail:
            raise StoreUnavailable("not reached")
        return await offer(offers)

    async def counted_get(ids: Sequence[str]) -> list[Claim]:
        calls["get"] += 1
        return await get(ids)

    async def counted_state(claim: str) -> str | None:
        calls["state"] += 1
        return await state(claim)

    monkeypatch.setattr(store.claims, "offer", counted_offer)
    monkeypatch.setattr(store.claims, "get", counted_get)
    monkeypatch.setattr(store.claims, "state", counted_state)
    return calls


async def test_a_rush_shares_its_offers_and_each_caller_gets_its_own_claim(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await make_pool(store, BARE)
    path = claim_path(store, RecordedCluster(pool, await make_warm(store, pool, RUSH)))
    calls = counted(store, monkeypatch)
    new = [ask() for _ in range(RUSH)]
    served = await asyncio.gather(*(path.submit(pool, one, ("active", "ended"), 20.0) for one in new))
    claims = [claim for _, claim in served if claim is not None]
    assert [claim.id for claim in claims] == [one.id for one in new]
    assert len({claim.worker for claim in claims}) == RUSH, "each has a worker of its own (P1)"
    assert all(claim.state == "active" and claim.protected for claim in claims)
    assert calls["offer"] < RUSH / 2
    assert (calls["get"], calls["state"]) == (0, 0), "the answer carries the claim, so no read is needed"
    assert await broken(store) == []


async def test_an_offer_that_failed_fails_for_all_that_shared_it_and_the_next_is_its_own(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await make_pool(store, BARE)
    cluster = RecordedCluster(pool, await make_warm(store, pool, RUSH))
    path = claim_path(store, cluster)
    calls = counted(store, monkeypatch, fail=1)
    pairs = (await store.claims.match(pool.id, [ask() for _ in range(RUSH)], 128)).pairs
    await asyncio.gather(*(path.start_hand_over(pool, pair) for pair in pairs))
    failed = [pair for pair in pairs if await store.claims.state(pair.claim) == "assigned"]
    assert failed
    assert calls["offer"] - 1 == bool(len(pairs) - len(failed))
    await asyncio.gather(*(path.start_hand_over(pool, pair) for pair in failed))
    assert {await store.claims.state(pair.claim) for pair in pairs} == {"active"}


async def test_an_offer_of_an_old_fence_in_the_same_batch_answers_no_other_offer(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await make_pool(store, BARE)
    signals = Signals()
    path = claim_path(store, RecordedCluster(pool, await make_warm(store, pool, 2)), signals=signals)
    old = await assigned(store, pool)
    await store.claims.requeue(old.claim, old.fence, reason="its pod was gone")
    [new] = await match(store, pool)
    calls = counted(store, monkeypatch)
    with signals.claims.watch(new.claim) as waiter:
        await asyncio.gather(path.start_hand_over(pool, old), path.start_hand_over(pool, new))
        assert calls["offer"] == 1, "else this is about something else"
        assert waiter.row is not None
        assert (waiter.row.worker, waiter.row.fence) == (new.worker, new.fence)


async def test_offers_and_what_is_seen_of_their_workers_never_wait_for_each_other_in_a_circle(store: PostgresStore) -> None:
    pool = await make_pool(store, BARE)
    workers = sorted(await make_warm(store, pool, RUSH))
    # Claims have the opposite order of their workers, so that locks in the order of claims and of workers would deadlock.
    pairs = [await assigned(store, pool, msgspec.structs.replace(ask(), id=f"c-{99 - n}")) for n in range(RUSH)]
    assert [pair.worker for pair in pairs] == workers
    seen = [
        Facts(worker=pair.worker, uid=pair.uid or "", node="n-1", terminating=False, schedulable=True, protected=True)
        for pair in pairs
    ]
    offers = [(pair.claim, pair.fence, True) for pair in pairs]
    shown, offered = await queued(store, row_lock("worker", workers[0]), store.workers.facts(seen), store.claims.offer(offers))
    assert not [each for each in (shown, offered) if isinstance(each, Exception)]
    assert (shown, len(offered)) == (RUSH, RUSH)
    assert await broken(store) == []
