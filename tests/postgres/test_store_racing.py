"""Many callers at the same time: each worker, key, cap, slot and term is given exactly once (P1)."""

import asyncio

import msgspec
import pytest

from holdfast.model.effect import Done, Stale
from holdfast.model.pool import PoolSpec, revision_of
from holdfast.postgres.claims import MATCH
from holdfast.postgres.pools import PUT
from holdfast.postgres.store import PostgresStore
from postgres.store_locks import another, replicas, waiting
from postgres.store_steps import (
    BARE,
    DIRECT,
    JOB,
    SESSION,
    active,
    agent_report,
    ask,
    end,
    lone_active,
    make_pool,
    make_tenant,
    make_warm,
)
from postgres.store_tables import broken, clear_away, column, state_of


def encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


@pytest.mark.parametrize("spec", [DIRECT, BARE, JOB], ids=["direct", "bare", "job"])
async def test_of_eight_clients_at_three_replicas_one_gets_the_worker(store: PostgresStore, spec: PoolSpec) -> None:
    pool = await make_pool(store, spec)
    async with replicas(store, 2) as others:
        peers = [store, *others]
        for _ in range(6):
            [worker] = await make_warm(store, pool)
            asked = [ask(f"t{n}") for n in range(8)]
            batches = await asyncio.gather(*(peers[n % 3].claims.match(pool.id, [new], 9) for n, new in enumerate(asked)))
            pairs = [pair for batch in batches for pair in batch.pairs]
            assert [pair.worker for pair in pairs] == [worker]
            live = await column(store, "SELECT id FROM holdfast.claim WHERE state IN ('assigned', 'active')")
            assert live == [pairs[0].claim]
            assert await broken(store) == []
            await clear_away(store)


async def test_matches_of_one_pool_at_once_pair_each_claim_and_worker_once(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    async with replicas(store, 2) as others:
        for _ in range(5):
            asked = [ask(f"t{n % 4}") for n in range(10)]
            await store.claims.match(pool.id, asked, 100)
            workers = await make_warm(store, pool, 10)
            # With a limit, no single batch can take them all.
            batches = await asyncio.gather(*(peer.claims.match(pool.id, (), 4) for peer in [store, *others]))
            pairs = [pair for batch in batches for pair in batch.pairs]
            assert sorted(pair.claim for pair in pairs) == sorted(new.id for new in asked)
            assert sorted(pair.worker for pair in pairs) == sorted(workers)
            assert len({pair.fence for pair in pairs}) == 10
            assert await broken(store) == []
            await clear_away(store)


async def test_a_key_names_one_claim_whichever_request_comes_first(store: PostgresStore) -> None:
    pools = [await make_pool(store, DIRECT, "linux"), await make_pool(store, DIRECT, "mac")]
    async with replicas(store, 2) as others:
        peers = [store, *others]
        for turn in range(12):
            asked = [ask(key=f"k{turn}", hash="other" if n == turn % 8 else "same") for n in range(8)]
            batches = await asyncio.gather(*(peers[n % 3].claims.match(pools[n % 2].id, [new], 9) for n, new in enumerate(asked)))
            answers = {id_: answer for batch in batches for id_, answer in batch.answers.items()}
            assert len(answers) == 8, "everyone was answered"
            [first] = [new for new in asked if answers[new.id][0] == "new"]
            for new in asked:
                expected = "new" if new is first else "same" if new.hash == first.hash else "other"
                assert answers[new.id] == (expected, first.id)
            assert await store.db.value("SELECT count(*) FROM holdfast.claim WHERE key = $1", f"k{turn}") == 1


async def test_two_requests_with_one_key_in_one_batch_are_one_claim(store: PostgresStore) -> None:
    pool = await make_pool(store)
    first, again, other, stranger = ask(key="k"), ask(key="k"), ask(key="k", hash="other"), ask("b", key="k")
    batch = await store.claims.match(pool.id, [first, again, other, stranger], 10)
    assert batch.answers == {
        first.id: ("new", first.id),
        again.id: ("same", first.id),
        other.id: ("other", first.id),
        stranger.id: ("new", stranger.id),
    }
    resent = await store.claims.match(pool.id, [first, again, other, stranger], 10)
    assert resent.answers == batch.answers, "after an unknown commit, the same batch gets the same answers"
    assert await store.db.value("SELECT count(*) FROM holdfast.claim") == 2


async def test_a_cap_is_never_passed_across_two_pools(store: PostgresStore) -> None:
    await make_tenant(store, "acme", max_claims=3)
    pools = [await make_pool(store, DIRECT, "linux"), await make_pool(store, JOB, "mac")]
    count = "SELECT count(*) FROM holdfast.claim WHERE tenant = 'acme' AND state IN ('assigned', 'active')"
    async with replicas(store, 3) as peers, another(store) as watcher:
        for _ in range(20):
            for pool in pools:
                await make_warm(store, pool, 4)
            racing = asyncio.gather(*(peers[n % 3].claims.match(pools[n % 2].id, [ask()], 9) for n in range(10)))
            most = 0
            while not racing.done():
                most = max(most, await watcher.fetchval(count))
                await asyncio.sleep(0)
            pairs = [pair for batch in await racing for pair in batch.pairs]
            assert most <= 3
            assert await watcher.fetchval(count) == 3 == len(pairs), "the cap is used, and not passed"
            await clear_away(store)


async def test_a_parked_worker_serves_its_own_tenant_only(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    async with replicas(store, 2) as others:
        peers = [store, *others]
        for _ in range(6):
            await make_warm(store, pool, 3)
            for pair in [await active(store, pool, ask("a", lease=60.0)) for _ in range(3)]:
                assert await end(store, pair.claim) == Done()
                directive = await store.workers.report(
                    agent_report(pair.worker, claim=pair.claim, fence=pair.fence, doing="running")
                )
                assert (directive.do, directive.park) == ("end", True)
                await store.workers.report(agent_report(pair.worker, served_fence=pair.fence))
            asked = [ask("ab"[n % 2], lease=60.0) for n in range(10)]
            batches = await asyncio.gather(*(peers[n % 3].claims.match(pool.id, [new], 9) for n, new in enumerate(asked)))
            assert [pair.tenant for batch in batches for pair in batch.pairs] == ["a"] * 3
            assert await broken(store) == []
            await clear_away(store)


async def test_condemn_and_claim_never_both_get_a_worker(store: PostgresStore) -> None:
    pool = await make_pool(store, DIRECT)
    async with replicas(store, 2) as (one, two):
        for turn in range(40):
            [worker] = await make_warm(store, pool)
            version = 3 if turn % 4 < 2 else None
            calls = [
                one.claims.match(pool.id, [ask()], 9),
                two.workers.condemn(worker, version, "not wanted", counted=False),
            ]
            results = await asyncio.gather(*(calls if turn % 2 else reversed(calls)))
            batch, outcome = results if turn % 2 else reversed(results)
            condemned = await state_of(store, "worker", worker) == "retiring"
            assert condemned == (outcome == Done())
            assert condemned == (batch.pairs == []), "one of the two has it"
            assert await broken(store) == []
            await clear_away(store)


async def test_a_condemn_that_waited_for_a_claim_finds_the_worker_held(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    async with another(store) as connection:
        transaction = connection.transaction()
        await transaction.start()
        new = {"ord": 0, **msgspec.structs.asdict(ask())}
        made = await connection.fetch(store.db.sql(MATCH.replace("@acting", "true")), pool.id, encode([new]), 9)
        assert len(made) == 2, "taken in, and paired"
        condemning = asyncio.create_task(store.workers.condemn(worker, None, "not wanted", counted=False))
        await waiting(store, 1, condemning)
        await transaction.commit()
    assert await condemning == Stale()
    assert await broken(store) == []


@pytest.mark.parametrize("spec", [DIRECT, BARE, JOB, SESSION], ids=["direct", "bare", "job", "session"])
async def test_a_held_worker_is_never_condemned(store: PostgresStore, spec: PoolSpec) -> None:
    pair = await lone_active(store, spec)
    worker = await store.workers.get(pair.worker)
    assert worker is not None
    for version in (worker.version, None):
        assert await store.workers.condemn(pair.worker, version, "not wanted", counted=False) == Stale()
    # The other direction: a wrong row does not expose its claim.
    await store.db.rows("UPDATE holdfast.worker SET state = 'retiring', claim_id = NULL WHERE id = $1", pair.worker)
    await store.db.rows("UPDATE holdfast.worker SET state = 'warm', tenant = NULL WHERE id = $1", pair.worker)
    assert await store.workers.condemn(pair.worker, None, "not wanted", counted=False) == Stale()


async def test_scale_passes_at_once_never_overspawn(store: PostgresStore) -> None:
    pool = await make_pool(store, PoolSpec(max=23))
    async with replicas(store, 2) as others:
        peers = [store, *others] * 2
        for turn, (target, expected) in enumerate(((3, 3), (3, 3), (10, 10), (11, 11), (40, 23), (40, 23))):
            ids = [[f"w-{turn}-{n}-{k}" for k in range(12)] for n in range(len(peers))]
            made = await asyncio.gather(*(peer.workers.spawn(pool.id, ids[n], target, 100) for n, peer in enumerate(peers)))
            present = await column(store, "SELECT id FROM holdfast.worker WHERE state <> 'gone'")
            assert len(present) == expected, "neither the target nor max is passed, and the target is reached"
            assert {worker for batch in made for worker, _ in batch} <= set(present)


async def test_starting_workers_are_bounded_whichever_replica_spawns(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    async with replicas(store, 2) as others:
        made = await asyncio.gather(
            *(peer.workers.spawn(pool.id, [f"w-{n}-{k}" for k in range(5)], 50, 4) for n, peer in enumerate([store, *others]))
        )
        assert sum(len(batch) for batch in made) == 4


async def test_a_pool_that_another_created_meanwhile_was_not_created_here(store: PostgresStore) -> None:
    async with another(store) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetch(store.db.sql(PUT), "p-0", "linux", encode(DIRECT), revision_of(DIRECT), "api", None)
        putting = asyncio.create_task(store.pools.put("p-1", "linux", DIRECT, "api"))
        await waiting(store, 1, putting)
        await transaction.commit()
    pool, what = await putting
    assert (pool.id, what) == ("p-0", "same")
    assert await column(store, "SELECT kind FROM holdfast.event WHERE pool_id = 'p-0'") == ["pool.created"]
