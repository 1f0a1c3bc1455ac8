"""Which lock each change waits for, and what a limit, a cap or a priority leaves for other claims."""

import pytest

from holdfast.model.effect import Done
from holdfast.ports.recovery import Adoption
from holdfast.ports.store import Batch
from holdfast.postgres.store import PostgresStore
from holdfast.running.looks import due_workers
from postgres.changes import Changes, add_worker, apart, pool_with_worker
from postgres.store_locks import queued
from postgres.store_steps import DIRECT, JOB, SESSION, active, agent_report, ask, end, make_tenant, match

ABOUT = {"pool": "linux", "pool_id": "p-1", "revision": "r", "tenant": "acme"}


def lock(name: str) -> str:
    return f"SELECT pg_advisory_xact_lock(hashtextextended('holdfast.{name}', 0))"


async def parked(store: PostgresStore, worker: str, tenant: str) -> None:
    """Makes a worker that is parked for a tenant and reset."""
    pool = await store.pools.get("linux")
    assert pool is not None
    await add_worker(store, pool, worker)
    pair = await active(store, pool, ask(tenant, id=f"c-of-{worker}"))
    assert pair.worker == worker
    await end(store, pair.claim)
    await store.workers.report(agent_report(worker, served_fence=pair.fence))


@pytest.mark.parametrize(
    "change", ["match", "spawn", "condemn one too many", "put", "begin recovery", "end recovery", "adopt", "prune", "releases"]
)
async def test_a_change_waits_for_another_change_under_the_same_lock(store: PostgresStore, change: str) -> None:
    await pool_with_worker(store, JOB)
    call, name = {
        "match": (lambda: store.claims.match("p-1", [], 9), "pool.p-1"),
        "spawn": (lambda: store.workers.spawn("p-1", ["w-2"], 9, 9), "pool.p-1"),
        "condemn one too many": (lambda: store.workers.condemn("w-1", None, "x", counted=False, floor=0), "pool.p-1"),
        "put": (lambda: store.pools.put("p-2", "linux", SESSION, "api"), "name.linux"),
        "begin recovery": (lambda: store.recovery.begin("restored", 0), "recovery"),
        "end recovery": (store.recovery.end, "recovery"),
        "adopt": (lambda: store.recovery.adopt(Adoption(worker="w-1", claim="c-1", fence=7, uid="u", **ABOUT)), "recovery"),
        "prune": (lambda: store.history.prune(7), "partitions"),
        "releases": (lambda: store.history.prune(7), ""),
    }[change]
    statement = lock(name) if name else "SELECT pg_advisory_xact_lock(7413000001)"  # the lock of migrate.py
    [answer] = await queued(store, statement, call())  # fails if the call does not wait
    assert not isinstance(answer, BaseException), answer


@pytest.mark.parametrize("free", ["warm", "parked"])
@pytest.mark.parametrize("capped", [True, False])
async def test_only_a_batch_with_a_capped_tenant_waits_for_the_caps(store: PostgresStore, free: str, capped: bool) -> None:
    await store.pools.put("p-1", "linux", SESSION, "api")
    pool = await store.pools.get("linux")
    assert pool is not None
    await (parked(store, "w-1", "acme") if free == "parked" else add_worker(store, pool, "w-1"))
    await make_tenant(store, "acme", max_claims=5 if capped else None)
    await store.claims.match("p-1", [ask("acme", id="c-1")], 0)
    if capped:
        [batch] = await queued(store, lock("caps"), store.claims.match("p-1", [], 9))
    else:
        async with Held(store, lock("caps")):
            batch = await store.claims.match("p-1", [], 9)
    assert isinstance(batch, Batch), batch
    assert [pair.worker for pair in batch.pairs] == ["w-1"]


class Held:
    """Holds a lock in another connection."""

    def __init__(self, store: PostgresStore, statement: str) -> None:
        self._store, self._statement = store, statement

    async def __aenter__(self) -> None:
        import asyncpg

        self._connection = await asyncpg.connect(self._store.db.dsn, timeout=10)
        await self._connection.execute("BEGIN")
        await self._connection.execute(self._statement)

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()


async def test_a_parked_worker_whose_tenant_waits_elsewhere_takes_no_ones_place(store: PostgresStore) -> None:
    pool, _ = await store.pools.put("p-1", "linux", SESSION, "api")
    other, _ = await store.pools.put("p-2", "other", SESSION, "api")
    await parked(store, "w-1", "a")
    await parked(store, "w-2", "b")
    await match(store, other, ask("a", id="c-1"))
    await store.claims.match(pool.id, [ask("b", id="c-2")], 0)
    [pair] = (await store.claims.match(pool.id, [], 1)).pairs
    assert (pair.claim, pair.worker) == ("c-2", "w-2")


async def test_what_waits_behind_a_tenant_at_its_cap_is_served_in_the_same_batch(store: PostgresStore) -> None:
    pool = await pool_with_worker(store, JOB)
    await make_tenant(store, "acme", max_claims=0)
    pairs = await match(store, pool, ask("acme", id="c-1"), ask("behind", id="c-2"))
    assert [pair.claim for pair in pairs] == ["c-2"]


async def test_a_tenants_place_is_behind_what_it_has_waiting_at_the_same_priority(store: PostgresStore) -> None:
    pool, _ = await store.pools.put("p-1", "linux", DIRECT, "api")
    await make_tenant(store, "acme", max_priority=5)
    await match(store, pool, ask(id="c-1"), ask(id="c-2"))
    await match(store, pool, ask(id="c-3", priority=5))
    assert await store.db.value("SELECT tag FROM holdfast.claim WHERE id = 'c-3'") == 0


async def test_an_adopted_worker_is_no_longer_parked(store: PostgresStore) -> None:
    clock = await apart(store)
    await store.pools.put("p-1", "linux", SESSION, "api")
    await parked(store, "w-1", "acme")
    await clock.live(3)
    await store.recovery.begin("restored", 0)
    fence = 1 + await store.db.value("SELECT fence FROM holdfast.worker")
    async with await Changes.of(store) as changes:
        about = {"pool": "linux", "pool_id": "p-1", "revision": "r", "tenant": "acme", "uid": "uid-2"}
        assert await store.recovery.adopt(Adoption(worker="w-1", claim="c-2", fence=fence, **about)) == Done()
        assert (await changes.seen())["worker w-1"] == {
            "state": "held", "claim_id": "c-2", "held_from": "warm", "fence": fence, "version": 9, "state_since": 103.0,
            "state_heard": 3.0, "parked_since": None, "parked_heard": None, "park_ttl": None, "pod_uid": "uid-2",
        }  # fmt: skip


async def test_a_pass_looks_at_five_hundred_workers_and_retiring_ones_come_last(store: PostgresStore) -> None:
    await store.pools.put("p-1", "linux", JOB, "api")
    await store.db.rows(
        """INSERT INTO holdfast.worker (id, pool_id, state, revision, created_at, state_since, state_heard)
           SELECT 'w-' || n, 'p-1', CASE WHEN n = 1 THEN 'retiring' ELSE 'warm' END, 'r', t, t, t - make_interval(hours => n)
           FROM generate_series(1, 501) AS n, holdfast.heard() AS t"""
    )
    due = await due_workers(store)
    assert due == [f"w-{n}" for n in range(501, 1, -1)], "the longest silent first"


async def test_functions_of_a_release_that_no_replica_runs_are_dropped_and_counted(store: PostgresStore) -> None:
    for schema in ("holdfast_00000001", "holdfast_00000002", "holdfast_not_ours"):
        await store.db.rows(f"CREATE SCHEMA {schema}")
    await store.db.rows(
        """INSERT INTO holdfast.replica (id, pid, host, url, version, functions, started_at, seen_at)
           VALUES ('r-1', 1, 'h', 'u', '1', 'holdfast_00000002', holdfast.now(), holdfast.now() - interval '23 h'),
                  ('r-2', 1, 'h', 'u', '1', 'holdfast_00000001', holdfast.now(), holdfast.now() - interval '25 h')"""
    )
    # Called alone, because pruning removes old replicas before it looks for old releases.
    assert await store.db.value("SELECT @fn.drop_old_releases($1)", store.db.functions) == 1
    left = await store.db.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'holdfast\\_%' ORDER BY 1")
    assert {row[0] for row in left} == {"holdfast_00000002", "holdfast_not_ours", store.db.functions}
