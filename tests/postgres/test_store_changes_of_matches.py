"""What a match writes: accepted claims, fair tags, assignments; and which worker and claim come first."""

from typing import Any

import pytest

from holdfast.model.pool import PoolSpec, ProtectionSpec, WorkerSpec
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, add_worker, apart, pool_with_worker
from postgres.store_steps import BARE, DIRECT, JOB, SESSION, active, agent_report, ask, end, make_tenant, match

TURN = 1_000_000  # what one claim costs a tenant of weight 1


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a new row without its empty columns."""
    return {column: value for column, value in row.items() if value not in (None, False, "")}


async def test_a_request_is_taken_in_as_it_was_asked(store: PostgresStore) -> None:
    await apart(store)
    pool, _ = await store.pools.put("p-1", "linux", SESSION, "api")
    await make_tenant(store, "acme", weight=4, max_priority=5)
    new = ask(
        id="c-1", key="k", hash="h", request={"a": 1}, priority=9, lease=30.0, max_duration=300.0, deadline=50.0,
        park_ttl=5.0,
        retry="lost", secrets="1.c2VjcmV0",
    )  # fmt: skip
    async with await Changes.of(store) as changes:
        assert await match(store, pool, new, ask("other", id="c-2", priority=3)) == []
        found = await changes.seen()
        assert plain(found["claim c-1"]) == {
            "id": "c-1",
            "key": "k",
            "lease": "00:00:30",
            "retry": "lost",
            "state": "waiting",
            "secret": True,
            "tenant": "acme",
            "pool_id": "p-1",
            "request": {"a": 1},
            "key_live": True,
            "park_ttl": "00:00:05",
            "patience": "00:00:50",
            "priority": 5,
            "requested_priority": 9,
            "created_at": 100.0,
            "max_duration": "00:05:00",
            "request_hash": "h",
            "deadline_heard": 50.0,
        }
        assert plain(found["claim c-2"]) == {
            "id": "c-2",
            "state": "waiting",
            "tenant": "other",
            "pool_id": "p-1",
            "request": {"command": ["true"]},
            "patience": "01:00:00",
            "requested_priority": 3,
            "created_at": 100.0,
            "max_duration": "01:00:00",
            "request_hash": "same",
            "deadline_heard": 3600.0,
        }
        assert found["claim_secret c-1"] == {"claim_id": "c-1", "secrets": "1.c2VjcmV0"}
        assert "claim_secret c-2" not in found
        assert found["events"] == ["100 claim.created p-1 c-1 acme", "100 claim.created p-1 c-2 other"]
        answers = (await store.claims.match("p-1", [new, ask(id="c-3", key="k", hash="h"), ask(id="c-4", key="k")], 9)).answers
        assert answers == {"c-1": ("new", "c-1"), "c-3": ("same", "c-1"), "c-4": ("other", "c-1")}
        assert await changes.seen() == {}
        [ok] = (await store.claims.match("p-1", [ask("other", id="c-5", key="k")], 9)).answers.items()
        assert ok == ("c-5", ("new", "c-5")), "another tenant's key"
        await store.pools.delete("linux")
        await changes.seen()
        assert (await store.claims.match("p-1", [ask(id="c-6")], 9)).answers == {"c-6": ("closed", "c-6")}
        assert await changes.seen() == {}


async def tags(store: PostgresStore, *claims: str) -> list[int]:
    return [await store.db.value("SELECT tag FROM holdfast.claim WHERE id = $1", claim) for claim in claims]


async def test_a_tenants_tags_grow_by_its_share_and_what_was_served_is_charged(store: PostgresStore) -> None:
    await apart(store)
    pool, _ = await store.pools.put("p-1", "linux", DIRECT, "api")
    await store.pools.put("p-2", "other", DIRECT, "api")
    await make_tenant(store, "big", weight=4)
    await make_tenant(store, "prior", max_priority=5)
    await match(store, pool, ask("big", id="c-1"), ask("small", id="c-2"), ask("big", id="c-3"), ask("small", id="c-4"))
    assert await tags(store, "c-1", "c-2", "c-3", "c-4") == [0, 0, TURN // 4, TURN]
    await match(store, pool, ask("small", id="c-5"))
    assert await tags(store, "c-5") == [2 * TURN], "behind what it has waiting"
    for worker in ("w-1", "w-2", "w-3", "w-4"):
        await add_worker(store, pool, worker)
    async with await Changes.of(store) as changes:
        pairs = await match(store, pool)
        assert {pair.claim for pair in pairs} == {"c-1", "c-2", "c-3", "c-4"}
        fair = {row: columns["tag"] for row, columns in (await changes.seen()).items() if row.startswith("fair")}
        assert fair == {"fair p-1 0": TURN, "fair p-1 0 big": TURN // 2, "fair p-1 0 small": 2 * TURN}
        await match(store, pool, ask("late", id="c-6"), ask("big", id="c-7"), ask("prior", id="c-8", priority=5))
        assert await tags(store, "c-6", "c-7", "c-8") == [TURN, TURN, 0], "from the pool's virtual time, per priority"
        other = await store.pools.get("other")
        assert other is not None
        await match(store, other, ask("small", id="c-9"))
        assert await tags(store, "c-9") == [0], "each pool by itself"


ALWAYS = PoolSpec(max=9, worker=WorkerSpec(run=["true"], agent=False), protection=ProtectionSpec(mode="always"))


@pytest.mark.parametrize("spec", [JOB, BARE, DIRECT, ALWAYS], ids=["agent", "protected", "bare", "always"])
async def test_an_assignment_binds_claim_and_worker(store: PostgresStore, spec: PoolSpec) -> None:
    clock = await apart(store)
    await pool_with_worker(store, spec)
    await clock.live(3)
    await store.claims.match("p-1", [ask(id="c-1", lease=30.0, max_duration=300.0)], 0)
    async with await Changes.of(store) as changes:
        [pair] = (await store.claims.match("p-1", (), 9)).pairs
        assert await changes.seen() == {
            "claim c-1": {
                "state": "assigned", "worker_id": "w-1", "fence": pair.fence, "attempts": 1, "assigned_at": 103.0,
                "progress_heard": 3.0,
            },
            "worker w-1": {
                "state": "held", "version": 4, "held_from": "warm", "claim_id": "c-1", "tenant": "acme", "fence": pair.fence,
                "state_since": 103.0, "state_heard": 3.0,
            },
            "fair p-1 0": {"pool_id": "p-1", "priority": 0, "tenant": "", "tag": 0},
            "fair p-1 0 acme": {"pool_id": "p-1", "priority": 0, "tenant": "acme", "tag": TURN},
            "events": ["103 claim.assigned worker.held p-1 w-1 c-1 acme"],
        }  # fmt: skip


@pytest.mark.parametrize("state", ["warm", "parked"])
@pytest.mark.parametrize(
    "obstacle",
    ["ready = false", "terminating = true", "schedulable = false", "suspect_since = holdfast.now()", "pool_id = 'p-2'", ""],
)
async def test_a_worker_that_is_not_good_gets_no_claim(store: PostgresStore, state: str, obstacle: str) -> None:
    pool = await pool_with_worker(store, SESSION)
    if state == "parked":
        pair = await active(store, pool, ask(id="c-0"))
        await end(store, "c-0")
        await store.workers.report(agent_report("w-1", served_fence=pair.fence))
    if obstacle:
        await store.db.rows(f"UPDATE holdfast.worker SET {obstacle}")
    assert len(await match(store, pool, ask(id="c-1"))) == (0 if obstacle else 1)


async def test_the_newest_revision_and_the_longest_free_come_first(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, DIRECT, "w-5")
    for worker in ("w-4", "w-3", "w-2", "w-1"):
        await clock.live(1)
        await add_worker(store, pool, worker)
    await store.db.rows("UPDATE holdfast.worker SET revision = 'old' WHERE id IN ('w-5', 'w-4')")
    pairs = await match(store, pool, *(ask(id=f"c-{n}") for n in range(1, 6)))
    given = {pair.claim: pair.worker for pair in pairs}
    assert given == {"c-1": "w-3", "c-2": "w-2", "c-3": "w-1", "c-4": "w-5", "c-5": "w-4"}


async def test_a_tenants_parked_workers_come_first_and_the_last_parked_before_others(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store)
    for worker in ("w-2", "w-3"):
        await add_worker(store, pool, worker)
    for n, tenant in ((1, "acme"), (2, "acme"), (3, "other")):
        pair = await active(store, pool, ask(tenant, id=f"c-{n}"))
        assert pair.worker == f"w-{n}"
    for n in (1, 2, 3):
        await clock.live(1)
        await end(store, f"c-{n}")
        fence = await store.db.value("SELECT fence FROM holdfast.worker WHERE id = $1", f"w-{n}")
        await store.workers.report(agent_report(f"w-{n}", served_fence=fence))
    await add_worker(store, pool, "w-4")
    await make_tenant(store, "acme", max_priority=3)
    asked = [ask(id="c-4"), ask(id="c-5", priority=3), ask(id="c-6"), ask("third", id="c-7")]
    given = {pair.claim: pair.worker for pair in await match(store, pool, *asked)}
    assert given == {"c-5": "w-2", "c-4": "w-1", "c-7": "w-4"}, "two served workers cost acme its turn at the warm one"
    assert await store.db.value("SELECT state FROM holdfast.worker WHERE id = 'w-3'") == "parked"


@pytest.mark.parametrize("cap", [0, 1, 2, None])
async def test_a_cap_counts_live_claims_of_its_tenant_only(store: PostgresStore, cap: int | None) -> None:
    pool = await pool_with_worker(store, JOB)
    for n in (2, 3, 4, 5, 6):
        await add_worker(store, pool, f"w-{n}")
    await active(store, pool, ask("other", id="c-1"))
    await active(store, pool, ask("acme", id="c-2"))
    await end(store, "c-2", "result")
    await make_tenant(store, "acme", max_claims=cap)
    asked = [ask("acme", id="c-3"), ask("acme", id="c-4"), ask("acme", id="c-5"), ask("behind", id="c-6")]
    served = [pair.claim for pair in await match(store, pool, *asked)]
    assert sorted(served) == [*["c-3", "c-4", "c-5"][: 3 if cap is None else cap], "c-6"]


async def test_an_assignment_forgets_what_the_last_one_left_behind(store: PostgresStore) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    await store.db.rows(
        """INSERT INTO holdfast.claim (id, pool_id, tenant, request_hash, request, state, tag, max_duration, created_at,
               deadline_heard, reason, offered, delivered, protected, attempts, fence)
           VALUES ('c-1', 'p-1', 'acme', 'h', '{}', 'waiting', 0, '1 h', holdfast.now(), holdfast.heard() + interval '1 h',
               'its worker died', true, true, true, 1, 7)"""
    )
    await store.db.rows(
        """INSERT INTO holdfast.worker (id, pool_id, state, revision, ready, delivered, created_at, state_since, state_heard)
           VALUES ('w-1', 'p-1', 'warm', 'r', true, true, holdfast.now(), holdfast.now() - interval '9 s',
               holdfast.heard() - interval '9 s')"""
    )
    async with await Changes.of(store) as changes:
        [pair] = await match(store, (await store.pools.all())[0])
        found = await changes.seen()
        assert found["claim c-1"] == {
            "state": "assigned", "worker_id": "w-1", "fence": pair.fence, "attempts": 2, "reason": "", "offered": False,
            "delivered": False, "protected": None, "assigned_at": 100.0, "progress_heard": 0.0,
        }  # fmt: skip
        assert found["worker w-1"] == {
            "state": "held", "version": 2, "held_from": "warm", "claim_id": "c-1", "tenant": "acme", "fence": pair.fence,
            "delivered": False, "state_since": 100.0, "state_heard": 0.0,
        }  # fmt: skip


async def test_a_charge_never_moves_a_share_back(store: PostgresStore) -> None:
    await apart(store)
    pool = await pool_with_worker(store, DIRECT)
    await store.db.rows(f"INSERT INTO holdfast.fair VALUES ('p-1', 0, 'acme', {9 * TURN}), ('p-1', 0, '', {9 * TURN})")
    await store.db.rows(
        """INSERT INTO holdfast.claim (id, pool_id, tenant, request_hash, request, state, tag, max_duration, created_at,
               deadline_heard)
           SELECT id, 'p-1', 'acme', 'h', '{}', 'waiting', tag, '1 h', holdfast.now(), holdfast.heard() + interval '1 h'
           FROM (VALUES ('c-1', 0), ('c-2', 50000000)) AS c(id, tag)"""
    )
    async with await Changes.of(store) as changes:
        assert [pair.claim for pair in await match(store, pool)] == ["c-1"]
        found = await changes.seen()
        assert not [row for row in found if row.startswith("fair")], "c-1 was served late, and c-2 was not served"
