"""The conditions that prevent the end of a claim or of a worker, one at a time, each beside the case without it."""

from typing import Any

import msgspec
import pytest

from holdfast.model.effect import Done, Skipped, Stale
from holdfast.model.pool import ClaimSpec, ParkSpec, PoolSpec
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, add_worker, apart, pool_with_worker
from postgres.store_steps import BARE, JOB, SESSION, active, agent_report, ask, assigned, end, make_tenant, match
from postgres.store_tables import state_of

RECOVERING = Skipped("recovering")
AGENTLESS = PoolSpec(mode="session", max=9, worker=msgspec.structs.replace(BARE.worker), claim=ClaimSpec())


async def write(store: PostgresStore, change: str) -> None:
    table, _, values = change.partition(": ")
    await store.db.rows(f"UPDATE holdfast.{table} SET {values}")


@pytest.mark.parametrize(
    ("obstacle", "outcome"),
    [
        ("", "released"), ("", "expired"), ("", "completed"), ("worker: version = version", "failed"),
        ("worker: version = 9", "lost"),
        ("worker: version = 9", "cancelled"), ("pool: state = 'draining'", "released"), ("worker: revision = 'old'", "released"),
        ("worker: terminating = true", "released"), ("worker: schedulable = false", "released"),
        ("worker: suspect_since = holdfast.now()", "released"), ("claim: park_ttl = '0'", "released"),
        ("""pool: spec = jsonb_set(spec, '{mode}', '"job"')""", "released"),
        ("pool: spec = jsonb_set(spec, '{worker,agent}', 'false')", "released"),
        ("pool: spec = jsonb_set(spec, '{park,max}', '0')", "released"),
    ],
)  # fmt: skip
async def test_a_session_is_parked_unless_one_condition_forbids_it(store: PostgresStore, obstacle: str, outcome: str) -> None:
    pool = await pool_with_worker(store)
    await active(store, pool, ask(id="c-1", lease=30.0))
    if obstacle:
        await write(store, obstacle)
    assert await end(store, "c-1", outcome=outcome) == Done()
    assert await state_of(store, "worker", "w-1") == ("retiring" if obstacle else "parked")


async def test_a_pool_parks_as_many_as_its_limit_and_counts_its_own(store: PostgresStore) -> None:
    spec = msgspec.structs.replace(SESSION, park=ParkSpec(max=2))
    pool = await pool_with_worker(store, spec)
    other, _ = await store.pools.put("p-2", "other", spec, "api")
    for worker in ("w-2", "w-3", "w-4"):
        await add_worker(store, pool, worker)
    await add_worker(store, other, "w-9")
    await active(store, other, ask(id="c-9"))
    await end(store, "c-9")
    for n in (1, 2, 3):
        await active(store, pool, ask(f"t-{n}", id=f"c-{n}"))
    states = []
    for n in (1, 2, 3):
        assert await end(store, f"c-{n}") == Done()
        states.append(await state_of(store, "worker", f"w-{n}"))
    assert states == ["parked", "parked", "retiring"]


@pytest.mark.parametrize(
    ("claim", "tenant", "pool", "most", "parked"),
    [
        (5.0, "10s", "20s", "1h", "00:00:05"), (None, "10s", "20s", "1h", "00:00:10"), (None, None, "20s", "1h", "00:00:20"),
        (50.0, None, "20s", "30s", "00:00:30"), (None, None, "1h2m3s400ms", "2h", "01:02:03.4"),
    ],
)  # fmt: skip
async def test_how_long_a_worker_is_parked(
    store: PostgresStore, claim: float | None, tenant: str | None, pool: str, most: str, parked: str
) -> None:
    its = await pool_with_worker(store, msgspec.structs.replace(SESSION, park=ParkSpec(ttl=pool, max_ttl=most)))
    await make_tenant(store, "acme", park_ttl=tenant)
    await make_tenant(store, "other", park_ttl="7s")
    await active(store, its, ask(id="c-1", park_ttl=claim))
    assert await end(store, "c-1") == Done()
    assert await store.db.value("SELECT park_ttl::text FROM holdfast.worker") == parked


@pytest.mark.parametrize("how", ["lease", "max_duration", "deadline", "death", "pool_deleted", "unprotected"])
@pytest.mark.parametrize("lost", ["recovering", "an older mark"])
async def test_no_claim_is_ended_by_us_on_a_database_that_lost_commits(store: PostgresStore, how: str, lost: str) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, BARE)
    await active(store, pool, ask(id="c-1", lease=1.0, max_duration=2.0, deadline=2.0))
    await match(store, pool, ask(id="c-2", deadline=2.0))
    await clock.live(5)
    mark = await store.db.value("SELECT mark FROM holdfast.hearing")
    if lost == "recovering":
        await store.recovery.begin("restored", 0)
    else:
        store.db.mark.saw(mark + 1, float("inf"))
    claim = "c-2" if how in ("deadline", "pool_deleted") else "c-1"
    async with await Changes.of(store) as changes:
        outcome = {"outcome": "refused"} if how == "unprotected" else {}
        call: Any = {"how": how, "outcome": "lost", "reason": how, "states": ("waiting", "assigned", "active")} | outcome
        assert (await store.claims.end(claim, **call)).effect == RECOVERING
        assert await changes.seen() == {}
    if lost != "recovering":
        store.db.mark.saw(mark, float("inf"))
        assert (await store.claims.end(claim, **call)).effect == Done(), "the same mark is no loss"


async def test_a_claim_ends_only_under_its_fence_and_from_the_states_that_were_named(store: PostgresStore) -> None:
    pool = await pool_with_worker(store, BARE)
    pair = await active(store, pool, ask(id="c-1"))
    await match(store, pool, ask("b", id="c-2", secrets={"a": "b"}))
    async with await Changes.of(store) as changes:
        assert await end(store, "c-1", fence=pair.fence + 1) == Stale()
        assert await end(store, "c-1", states=("waiting", "assigned")) == Stale()
        assert await end(store, "c-3") == Stale()
        assert await changes.seen() == {}
        assert await end(store, "c-1", fence=pair.fence) == Done()
        assert "claim_secret c-2" not in await changes.seen(), "another claim's secrets stay"
        assert await end(store, "c-1", states=("ended",)) == Stale()


async def test_a_hand_over_that_moved_meanwhile_is_not_taken_back(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, JOB)
    pair = await assigned(store, pool, ask(id="c-1"))
    await clock.live(5)
    again = {"reason": "stalled", "keep_worker": True}
    async with await Changes.of(store) as changes:
        assert await store.claims.requeue("c-1", pair.fence, idle=5.5, **again) == Stale()
        assert await store.claims.requeue("c-1", pair.fence + 1, **again) == Stale()
        assert await store.claims.requeue("c-9", pair.fence, **again) == Stale()
        assert await changes.seen() == {}
        assert await store.claims.requeue("c-1", pair.fence, idle=5.0, **again) == Done(), "exactly so long"


@pytest.mark.parametrize(
    ("retry", "dead", "untouched", "secrets", "losses", "answer"),
    [
        ("lost", True, False, None, 0, Done()), ("lost", True, False, None, 1, Done()), ("lost", True, False, None, 2, Stale()),
        ("lost", False, False, None, 0, Stale()), (None, True, False, None, 0, Stale()), (None, True, True, None, 0, Done()),
        (None, False, True, None, 0, Stale()), (None, True, True, {"a": "b"}, 0, Stale()),
        ("lost", True, True, {"a": "b"}, 1, Done()),
    ],
)  # fmt: skip
async def test_an_active_claim_is_served_again_only_after_a_death(
    store: PostgresStore, retry: str, dead: bool, untouched: bool, secrets: Any, losses: int, answer: object
) -> None:
    pool = await pool_with_worker(store, JOB)
    pair = await active(store, pool, ask(id="c-1", retry=retry, secrets=secrets))
    await write(store, f"claim: losses = {losses}")
    assert await store.claims.requeue("c-1", pair.fence, reason="died", dead=dead, untouched=untouched) == answer


@pytest.mark.parametrize("free", ["warm", "parked"])
async def test_a_worker_whose_agent_works_for_a_claim_that_has_not_ended_is_not_condemned(
    store: PostgresStore, free: str
) -> None:
    pool = await pool_with_worker(store)
    await add_worker(store, pool, "w-2")
    pair = await active(store, pool, ask(id="c-1"))
    await match(store, pool, ask("b", id="c-2"))
    if free == "parked":
        await end(store, "c-1")
    else:
        await store.db.rows("UPDATE holdfast.claim SET state = 'waiting', worker_id = NULL WHERE id = 'c-2'")
        await store.db.rows("UPDATE holdfast.worker SET state = 'warm', claim_id = NULL, tenant = NULL WHERE id = 'w-2'")
    worker = pair.worker if free == "parked" else "w-2"
    for claim in ("c-unknown", "c-2"):
        await store.workers.beat([agent_report(worker, doing="running", claim=claim, fence=7), agent_report("w-9")])
        version = await store.db.value("SELECT version FROM holdfast.worker WHERE id = $1", worker)
        assert await store.workers.condemn(worker, version, "not wanted", counted=True) == Stale(), claim
    await end(store, "c-2", "cancel")
    async with await Changes.of(store) as changes:
        assert await store.workers.condemn(worker, version, "not wanted", counted=False) == Done(), "c-2 has ended"
        assert not [row for row in await changes.seen() if row.startswith("ending")], "it is not counted"


@pytest.mark.parametrize("above", ["dead", "an operator"])
async def test_proof_of_death_and_an_operator_go_above_an_agents_report(store: PostgresStore, above: str) -> None:
    await pool_with_worker(store, JOB)
    await store.workers.beat([agent_report("w-1", doing="running", claim="c-unknown", fence=7)])
    version = await store.db.value("SELECT version FROM holdfast.worker")
    assert await store.workers.condemn("w-1", version, "not wanted", counted=False) == Stale()
    seen = None if above == "an operator" else version
    assert await store.workers.condemn("w-1", seen, "not wanted", counted=False, dead=above == "dead") == Done()


async def test_a_frozen_pool_keeps_its_own_workers_only(store: PostgresStore) -> None:
    await pool_with_worker(store, JOB)
    other, _ = await store.pools.put("p-2", "other", JOB, "api")
    await add_worker(store, other, "w-2")
    await store.pools.freeze("linux", "hands off")
    assert await store.workers.condemn("w-1", None, "not wanted", counted=False) == Skipped("frozen")
    assert await store.workers.condemn("w-2", None, "not wanted", counted=False) == Done()
    store.db.mark.saw(2**40, float("inf"))
    assert await store.workers.condemn("w-1", None, "not wanted", counted=False) == RECOVERING


@pytest.mark.parametrize(
    ("other", "answer"),
    [
        ("state = 'warm'", Done()), ("state = 'spawning'", Done()), ("state = 'gone'", Stale()), ("state = 'retiring'", Stale()),
        ("terminating = true", Stale()), ("schedulable = false", Stale()), ("suspect_since = holdfast.now()", Stale()),
        ("pool_id = 'p-2'", Stale()),
    ],
)  # fmt: skip
async def test_one_too_many_counts_only_what_can_be_given_out(store: PostgresStore, other: str, answer: object) -> None:
    pool = await pool_with_worker(store, JOB)
    await add_worker(store, pool, "w-2")
    await store.db.rows(f"UPDATE holdfast.worker SET {other} WHERE id = 'w-2'")
    assert await store.workers.condemn("w-1", None, "one too many", counted=False, floor=1) == answer
