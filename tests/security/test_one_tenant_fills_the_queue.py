"""A tenant sends more requests than it may have waiting. The rest is refused, exactly at its limit. Others are served."""

import asyncio
from collections import Counter

from holdfast.claimpath.path import BATCH
from holdfast.postgres.store import PostgresStore
from postgres.store_locks import replicas
from postgres.store_steps import ask, make_pool, make_tenant, make_warm, match
from postgres.store_tables import column
from served_api import Stage


async def waiting(store: PostgresStore, tenant: str) -> int:
    return int(await store.db.value("SELECT count(*) FROM holdfast.claim WHERE state = 'waiting' AND tenant = $1", tenant))


async def test_racing_batches_of_six_pools_stop_exactly_at_the_limit(store: PostgresStore) -> None:
    pools = [await make_pool(store, called=f"pool-{n}") for n in range(6)]
    await make_tenant(store, "evil", max_waiting=100)
    async with replicas(store, 2) as others:
        peers = [store, *others]
        batches = [(peers[n % 3], pools[n % 6], [ask("evil") for _ in range(16)]) for n in range(18)]
        found = await asyncio.gather(*(peer.claims.match(pool.id, new, 100) for peer, pool, new in batches))
    answers = Counter(what for batch in found for what, _ in batch.answers.values())
    assert answers == {"new": 100, "full": 188}
    assert await waiting(store, "evil") == 100


async def test_without_limits_of_its_own_a_tenant_may_have_a_thousand_waiting(store: PostgresStore) -> None:
    pool = await make_pool(store)
    for _ in range(8):
        batch = await store.claims.match(pool.id, [ask("evil") for _ in range(BATCH)], 0)
    assert Counter(what for what, _ in batch.answers.values()) == {"new": 1000 - 7 * BATCH, "full": 8 * BATCH - 1000}
    assert Counter(what for what, _ in (await store.claims.match(pool.id, [ask("good")], 0)).answers.values()) == {"new": 1}


async def test_a_request_that_is_stored_already_is_answered_although_the_queue_is_full(store: PostgresStore) -> None:
    pool = await make_pool(store)
    await make_tenant(store, "evil", max_waiting=2)
    first, second = ask("evil", key="k"), ask("evil")
    await store.claims.match(pool.id, [first, second], 0)
    again, other, third = ask("evil", key="k"), ask("evil", key="k", hash="another"), ask("evil")
    batch = await store.claims.match(pool.id, [third, again, other, second], 0)
    assert batch.answers == {
        third.id: ("full", third.id),
        again.id: ("same", first.id),
        other.id: ("other", first.id),
        second.id: ("new", second.id),
    }


async def test_a_served_claim_makes_room(store: PostgresStore) -> None:
    pool = await make_pool(store)
    await make_tenant(store, "evil", max_waiting=1)
    await store.claims.match(pool.id, [ask("evil")], 0)
    assert (await store.claims.match(pool.id, [new := ask("evil")], 0)).answers[new.id][0] == "full"
    await make_warm(store, pool)
    assert len(await match(store, pool)) == 1
    assert (await store.claims.match(pool.id, [new := ask("evil")], 0)).answers[new.id][0] == "new"


def test_the_refusal_names_the_limit_and_when_to_try_again(stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {"maxWaiting": 1})
    assert stage.claim(pool="agents", command=["true"], wait="0s")["state"] in ("waiting", "assigned")
    stage.claim(pool="agents", command=["true"], wait="0s")
    refused = stage.ask("POST", "/v1/claims", {"pool": "agents", "command": ["true"], "wait": "0s"}, token="acme")
    assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (429, "queue-full", "5")
    assert "maxWaiting is 1" in refused.json["detail"]
    other = stage.ask("POST", "/v1/claims", {"pool": "agents", "command": ["true"], "wait": "0s"}, token="rival")
    assert other.status == 202


async def test_what_an_ended_claim_carried_is_erased_and_its_key_still_recognizes_the_request(store: PostgresStore) -> None:
    pool = await make_pool(store)
    new = ask(key="k", request={"command": ["x"], "env": {"A": "b"}, "payload": "p" * 1000, "stdin": True})
    await store.claims.match(pool.id, [new], 0)
    await store.claims.end(new.id, outcome="cancelled", how="cancel", reason="r", states=("waiting",))
    assert await column(store, "SELECT request::text FROM holdfast.claim") == ['{"stdin": true}']
    again, other = ask(key="k"), ask(key="k", hash="another")
    batch = await store.claims.match(pool.id, [again, other], 0)
    assert batch.answers == {again.id: ("same", new.id), other.id: ("other", new.id)}
