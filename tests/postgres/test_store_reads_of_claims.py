"""What is read about claims: what is due, what a claim shows to its holder, why it waits, and pages of claims."""

from typing import Any

import pytest

from holdfast.duties.deadlines import FIRST_STALL
from holdfast.ports.store import Due
from holdfast.postgres.store import PostgresStore
from postgres.changes import NOON, apart
from postgres.store_rows import NOW, Sql, add_held, ago, heard_ago, insert
from postgres.store_steps import BARE, JOB, make_tenant


async def two_pools(store: PostgresStore) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    await store.pools.put("p-2", "other", BARE, "api")


async def due(store: PostgresStore, limit: int = 9) -> dict[str, Due]:
    found = await store.claims.due(limit, FIRST_STALL)
    assert len({one.claim for one in found}) == len(found), "no claim is due twice"
    return {one.claim: one for one in found}


async def test_a_waiting_claim_is_due_at_its_deadline_or_when_its_pool_drains(store: PostgresStore) -> None:
    await two_pools(store)
    for claim, seconds in {"c-1": 1, "c-2": 0, "c-3": -1}.items():
        await insert(store, "claim", id=claim, deadline_heard=heard_ago(seconds))
        await insert(store, "claim", id=f"{claim}-draining", pool_id="p-2", deadline_heard=heard_ago(seconds))
    await insert(store, "claim", id="ended", pool_id="p-2", state="ended", outcome="lost")
    await add_held(store, "w-1", "active", pool_id="p-2", max_heard=heard_ago(-9))
    waits: dict[str, Any] = {"state": "waiting", "fence": None}
    late = {
        "c-1": Due(claim="c-1", pool_live=True, past_deadline=True, **waits),
        "c-2": Due(claim="c-2", pool_live=True, past_deadline=True, **waits),
        "c-1-draining": Due(claim="c-1-draining", pool_live=True, past_deadline=True, **waits),
        "c-2-draining": Due(claim="c-2-draining", pool_live=True, past_deadline=True, **waits),
    }
    assert await due(store) == late
    await store.pools.delete("other")
    found = await due(store)
    assert found.keys() == {*late, "c-3-draining"}
    assert found["c-3-draining"] == Due(claim="c-3-draining", pool_live=False, past_deadline=False, **waits)
    assert not found["c-1-draining"].pool_live


async def test_a_hand_over_is_due_when_it_has_stalled(store: PostgresStore) -> None:
    await two_pools(store)
    for n, seconds in enumerate([FIRST_STALL - 0.1, FIRST_STALL, FIRST_STALL + 1]):
        flags = {"offered": n > 0, "delivered": n > 1}
        await add_held(store, f"w-{n}", f"c-{n}", "assigned", fence=n, progress_heard=heard_ago(seconds), **flags)
    found = await due(store)
    assert found == {
        "c-1": Due(claim="c-1", fence=1, state="assigned", pool_live=True, idle=FIRST_STALL, offered=True),
        "c-2": Due(
            claim="c-2",
            fence=2,
            state="assigned",
            pool_live=True,
            idle=FIRST_STALL + 1,
            offered=True,
            delivered=True,
        ),
    }


@pytest.mark.parametrize(
    ("lease", "longest", "past"),
    [
        (None, -1, None), (None, 0, (False, True)), (None, 1, (False, True)), (-1, -1, None), (0, -1, (True, False)),
        (1, -1, (True, False)), (1, 1, (True, True)), (-1, 0, (False, True)), (0, 0, (True, True)),
    ],
)  # fmt: skip
async def test_an_active_claim_is_due_once_when_its_lease_or_its_longest_duration_ends(
    store: PostgresStore, lease: int | None, longest: int, past: tuple[bool, bool] | None
) -> None:
    await two_pools(store)
    leased = {} if lease is None else {"lease": "9 s", "lease_heard": heard_ago(lease)}
    await add_held(store, "w-1", "c-1", max_heard=heard_ago(longest), deadline_heard=heard_ago(99), **leased)
    found = await due(store)
    assert [(one.past_lease, one.past_max) for one in found.values()] == ([] if past is None else [past])
    assert not any(one.past_deadline for one in found.values()), "its deadline was for its time in the queue"


@pytest.mark.parametrize("of", ["waiting", "assigned", "lease", "longest", "draining"])
async def test_of_more_claims_than_a_pass_takes_the_longest_due_come_first(store: PostgresStore, of: str) -> None:
    await two_pools(store)
    for n in range(1, 5):
        late = heard_ago(n * 100)
        if of in ("waiting", "draining"):
            about = {"pool_id": "p-2"} if of == "draining" else {"deadline_heard": late}
            await insert(store, "claim", id=f"c-{n}", **about)
        else:
            column = {"assigned": "progress_heard", "lease": "lease_heard", "longest": "max_heard"}[of]
            its: dict[str, Any] = {"max_heard": heard_ago(-9)} | {column: late}
            await add_held(store, f"w-{n}", f"c-{n}", "assigned" if of == "assigned" else "active", fence=n, **its)
    if of == "draining":
        await store.pools.delete("other")
        assert len(await due(store, 2)) == 2
    else:
        assert set(await due(store, 2)) == {"c-4", "c-3"}


async def test_an_ended_claim_is_named_by_its_worker_only_if_it_ended_by_itself(store: PostgresStore) -> None:
    ended: dict[str, Any] = {"state": "ended", "outcome": "lost", "worker_id": "w-1"}
    for fence, how in enumerate(("result", "death", "release", "lease")):
        await insert(store, "claim", id=f"c-{fence}", fence=fence, how=how, **ended)
    await insert(store, "claim", id="c-9", fence=9, how="result", **(ended | {"worker_id": "w-2"}))
    await insert(store, "claim", id="c-8", fence=8, how="result", worker_id="w-1")
    assert [await store.claims.ended_by("w-1", fence) for fence in (0, 1, 2, 3, 8, 9)] == ["c-0", "c-1", None, None, None, None]
    assert await store.claims.ended_by("w-2", 9) == "c-9"


async def test_a_claim_shows_its_deadlines_by_the_databases_clock(store: PostgresStore) -> None:
    await two_pools(store)
    times = {name: ago(n) for n, name in enumerate(("created_at", "assigned_at", "active_at", "ended_at"), start=1)}
    heard = {name: heard_ago(-n) for n, name in enumerate(("deadline_heard", "lease_heard", "max_heard"), start=5)}
    await add_held(store, "w-1", "c-1", **(times | heard))
    await store.db.rows("UPDATE holdfast.worker SET endpoint = '1.2.3.4:80'")
    noon = float(await store.db.value(f"SELECT extract(epoch FROM timestamptz '{NOON}')::float8")) + 100
    [claim] = await store.claims.get(["c-1"])
    assert (claim.created_at, claim.assigned_at, claim.active_at, claim.ended_at) == (noon - 1, noon - 2, noon - 3, noon - 4)
    assert (claim.deadline_at, claim.lease_until, claim.max_until) == (noon + 5, noon + 6, noon + 7)
    assert (claim.endpoint, claim.worker, claim.pool) == ("1.2.3.4:80", "w-1", "linux")
    await store.db.rows("UPDATE holdfast.claim SET state = 'assigned', reason = 'before'")
    [claim] = await store.claims.get(["c-1"])
    assert (claim.endpoint, claim.reason) == (None, "before"), "an endpoint is shown only to a holder that may use it"
    await insert(store, "claim", id="c-2", pool_id="p-2")
    [claim] = await store.claims.get(["c-2"])
    assert (claim.pool, claim.worker) == ("other", None)


async def why(store: PostgresStore, claim: str = "c-1") -> str:
    [found] = await store.claims.get([claim])
    return found.reason


async def test_a_waiting_claim_shows_how_many_workers_its_pool_has(store: PostgresStore) -> None:
    await two_pools(store)
    await insert(store, "claim", id="c-1")
    await insert(store, "claim", id="c-2", pool_id="p-2", reason="its worker died")
    assert await why(store) == "pool 'linux' has 0 of 1000 workers free; 0 starting, 0 held"
    await insert(store, "worker", id="w-1")
    await insert(store, "worker", id="w-2", ready=False)
    await insert(store, "worker", id="w-3", state="parked", tenant="acme", parked_since=NOW)
    for worker in ("s-1", "s-2"):
        await insert(store, "worker", id=worker, state="spawning")
    for n in range(3):
        await add_held(store, f"h-{n}", f"l-{n}", fence=n)
    await insert(store, "worker", id="w-9", state="gone")
    await insert(store, "worker", id="v-1", pool_id="p-2", state="spawning")
    assert await why(store) == "pool 'linux' has 1 of 1000 workers free; 2 starting, 3 held"
    assert await why(store, "c-2") == "pool 'other' has 0 of 1000 workers free; 1 starting, 0 held; before: its worker died"
    await store.pools.freeze("linux", "hands off")
    await store.pools.start_blocked("p-1", "no room")
    assert (await why(store)).endswith("3 held; the pool is frozen; the last spawn failed"), "tenants read this"


async def test_a_claim_waits_for_the_first_reason_that_holds(store: PostgresStore) -> None:
    await two_pools(store)
    await insert(store, "claim", id="c-1", reason="before")
    await insert(store, "claim", id="c-2", tenant="other")
    await make_tenant(store, "acme", max_claims=2)
    await add_held(store, "w-1", "l-1", "assigned", fence=1)
    assert (await why(store)).startswith("pool 'linux'"), "one of two"
    await add_held(store, "w-2", "l-2", fence=2)
    await insert(store, "claim", id="l-3", state="ended", outcome="lost")
    full = "tenant 'acme' holds its cap of 2 claims"
    assert await why(store) == full
    assert (await why(store, "c-2")).startswith("pool 'linux'"), "another tenant"
    await make_tenant(store, "acme", max_claims=1)
    assert await why(store) == "tenant 'acme' holds its cap of 1 claims", "and more"
    await store.fleet.stop_workers(True)
    assert await why(store) == "the installation is being stopped with its workers: nothing is given out"
    await store.pools.delete("linux")
    assert await why(store) == "its pool is being deleted"
    await store.recovery.begin("restored", 0)
    assert await why(store) == "the database lost commits: everything waits until pods have been compared"
    await store.db.rows("UPDATE holdfast.claim SET state = 'ended', outcome = 'lost', reason = 'given up' WHERE id = 'c-1'")
    assert await why(store) == "given up"


async def test_claims_are_found_page_by_page_newest_first(store: PostgresStore) -> None:
    await two_pools(store)
    for n, seconds in {2: 5, 4: 4, 0: 3, 1: 3, 3: 3}.items():  # three of them at the same time
        created = Sql(f"timestamptz '{NOON}' - interval '{seconds} s'")
        await insert(store, "claim", id=f"c-{n}", created_at=created, tenant="b" if n in (1, 3) else "a")
    ended: dict[str, Any] = {"state": "ended", "outcome": "lost"}
    await insert(store, "claim", id="a-1", pool_id="p-2", created_at=Sql(f"timestamptz '{NOON}' + interval '1 s'"), **ended)

    async def page(cursor: str | None = None, **about: Any) -> tuple[list[str], str | None]:
        usual = {"pool": "linux", "tenant": None, "state": None, "limit": 2, "cursor": cursor}
        found, following = await store.claims.find(**(usual | about))
        return [claim.id for claim in found], following

    assert await page() == (["c-3", "c-1"], "c-1")
    assert await page("c-1") == (["c-0", "c-4"], "c-4")
    assert await page("c-4") == (["c-2"], None)
    assert await page(pool=None, limit=9) == (["a-1", "c-3", "c-1", "c-0", "c-4", "c-2"], None)
    assert await page(pool="other") == (["a-1"], None)
    assert await page(tenant="b") == (["c-3", "c-1"], None)
    assert await page(pool=None, state="ended") == (["a-1"], None)
    assert await page(state="waiting", tenant="a", limit=9) == (["c-0", "c-4", "c-2"], None)
    assert await page(pool="none") == ([], None)
