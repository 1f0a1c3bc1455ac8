"""What an offer, a delivery, progress and a renewal write, and under which fence, state and tenant they are accepted."""

from typing import Any

import pytest

from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_rows import Sql, add_held, heard_ago, insert
from postgres.store_steps import BARE, JOB

LIVE = {"agent": JOB, "bare": BARE}


async def assigned(store: PostgresStore, kind: str = "agent", protection: str = "claim") -> None:
    """Makes the claims c-1 and c-2, which are assigned to w-1 and w-2 and have not been offered."""
    await apart(store)
    other = LIVE["bare" if kind == "agent" else "agent"]  # pools before and after its own, whose traits must not count
    for pool, spec in {"p-0": other, "p-1": LIVE[kind], "p-2": other}.items():
        await store.pools.put(pool, f"pool-{pool}", spec, "api")
    await store.db.rows("UPDATE holdfast.pool SET spec = jsonb_set(spec, '{protection,mode}', to_jsonb($1::text))", protection)
    for n in (1, 2):
        about: dict[str, Any] = {"fence": n, "lease": "30 s", "max_duration": "300 s", "progress_heard": heard_ago(9)}
        await add_held(store, f"w-{n}", f"c-{n}", "assigned", **(about | {"max_heard": None}))
    await store.db.rows("UPDATE holdfast.worker SET pod_uid = 'uid-' || id")


@pytest.mark.parametrize("protection", ["claim", "always", "off"])
@pytest.mark.parametrize("protected", [True, False])
async def test_an_offer_to_an_agent_wakes_it_and_notes_the_protection(
    store: PostgresStore, protection: str, protected: bool
) -> None:
    await assigned(store, "agent", protection)
    async with await Changes.of(store) as changes:
        [claim] = await store.claims.offer([("c-1", 1, protected)])
        assert (claim.id, claim.state, claim.protected) == ("c-1", "assigned", protected)
        expected: dict[str, Any] = {
            "claim c-1": {"offered": True, "protected": protected, "progress_heard": 0.0},
            "notices": ["w w-1"],
        }
        if protected and protection == "claim":
            expected["worker w-1"] = {"protected": True, "version": 2}
        if not protected and protection != "off":
            expected["events"] = ['100 claim.unprotected p-1 w-1 c-1 acme "the cluster did not accept the protection"']
        assert await changes.seen() == expected
        assert await store.claims.offer([("c-1", 1, protected)]) == [], "offered already"
        assert await changes.seen() == {}


@pytest.mark.parametrize("protection", ["claim", "always", "off"])
@pytest.mark.parametrize("protected", [True, False])
async def test_an_offer_without_an_agent_makes_the_claim_active(store: PostgresStore, protection: str, protected: bool) -> None:
    await assigned(store, "bare", protection)
    async with await Changes.of(store) as changes:
        [claim] = await store.claims.offer([("c-1", 1, protected)])
        assert (claim.id, claim.state, claim.protected) == ("c-1", "active", protected)
        why = "" if protected or protection == "off" else ' "the cluster did not accept the protection"'
        shown = {"protected": True} if protected and protection == "claim" else {}
        assert await changes.seen() == {
            "claim c-1": {
                "state": "active", "offered": True, "delivered": True, "protected": protected, "progress_heard": 0.0,
                "active_at": 100.0, "lease_heard": 30.0, "max_heard": 300.0,
            },
            "worker w-1": {"delivered": True, "version": 2} | shown,
            "events": [f"100 claim.active p-1 w-1 c-1 acme{why}"],
            "notices": ["c c-1"],
        }  # fmt: skip


async def test_an_offer_leaves_a_protection_that_was_seen_and_a_delivery_that_was_made(store: PostgresStore) -> None:
    await assigned(store)
    await store.db.rows("UPDATE holdfast.worker SET protected = true, delivered = true")
    await store.db.rows("UPDATE holdfast.claim SET delivered = true")
    async with await Changes.of(store) as changes:
        assert len(await store.claims.offer([("c-1", 1, True)])) == 1
        assert "worker w-1" not in await changes.seen(), "nothing new about it"
        assert len(await store.claims.offer([("c-2", 2, False)])) == 1
        assert "worker w-2" not in await changes.seen(), "an offer takes no protection away"
    assert await store.db.value("SELECT count(*) FROM holdfast.claim WHERE delivered") == 2


@pytest.mark.parametrize("change", ["fence = 9", "state = 'waiting', worker_id = NULL", "state = 'ended', outcome = 'lost'"])
async def test_an_offer_is_for_one_assignment(store: PostgresStore, change: str) -> None:
    await assigned(store)
    await store.db.rows(f"UPDATE holdfast.claim SET {change} WHERE id = 'c-1'")
    async with await Changes.of(store) as changes:
        assert [claim.id for claim in await store.claims.offer([("c-1", 1, True), ("c-2", 2, True)])] == ["c-2"]
        assert {"claim c-2", "worker w-2"} == {row for row in await changes.seen() if " " in row}


async def test_a_delivery_is_noted_before_the_assignment_is_sent(store: PostgresStore) -> None:
    await assigned(store)
    await store.db.rows("""UPDATE holdfast.claim SET offered = true, protected = true, request = '{"command": ["x"]}'""")
    await store.db.rows("INSERT INTO holdfast.claim_secret VALUES ('c-1', '{\"a\": \"b\"}'), ('c-2', '{\"c\": \"d\"}')")
    async with await Changes.of(store) as changes:
        given = await store.claims.deliver("w-1", "uid-w-1")
        assert given is not None
        assert (given.claim, given.fence, given.tenant, given.request) == ("c-1", 1, "acme", {"command": ["x"]})
        assert (given.secrets, given.protected, given.max_seconds) == ({"a": "b"}, True, 300.0)
        assert await changes.seen() == {
            "claim c-1": {"delivered": True, "progress_heard": 0.0},
            "worker w-1": {"delivered": True},
        }
        await store.db.rows("UPDATE kept.clock SET t = t + interval '1 s'")
        assert await store.claims.deliver("w-1", "uid-w-1") == given, "the answer may have been lost"
        assert await changes.seen() == {}, "a worker that fetches again and again makes no progress"


@pytest.mark.parametrize(
    "change",
    [
        "claim: offered = false", "claim: fence = 9", "claim: state = 'ended', outcome = 'lost'",
        "claim: state = 'active', max_heard = now()",
        "claim: worker_id = 'w-9'", "worker: pod_uid = 'another'", "worker: claim_id = 'c-9'", "worker: fence = 9",
    ],
)  # fmt: skip
async def test_a_delivery_needs_the_assignment_that_both_rows_show(store: PostgresStore, change: str) -> None:
    await assigned(store)
    await store.db.rows("UPDATE holdfast.claim SET offered = true")
    table, _, values = change.partition(": ")
    await store.db.rows(f"UPDATE holdfast.{table} SET {values} WHERE id IN ('c-1', 'w-1')")
    async with await Changes.of(store) as changes:
        assert await store.claims.deliver("w-1", "uid-w-1") is None
        assert await changes.seen() == {}


async def test_progress_is_noted_for_one_live_assignment(store: PostgresStore) -> None:
    await assigned(store)
    async with await Changes.of(store) as changes:
        assert not await store.claims.progress("w-1", 2)
        assert not await store.claims.progress("w-2", 1)
        assert await changes.seen() == {}
        assert await store.claims.progress("w-1", 1)
        assert await changes.seen() == {"claim c-1": {"progress_heard": 0.0}}
        await store.db.rows("UPDATE holdfast.claim SET state = 'active', max_heard = holdfast.heard()")
        await changes.seen()
        assert await store.claims.progress("w-1", 1), "it was adopted while its agent still activated it"
        await store.db.rows("UPDATE holdfast.claim SET state = 'ended', outcome = 'lost'")
        await changes.seen()
        assert not await store.claims.progress("w-1", 1)


@pytest.mark.parametrize(
    ("fence", "tenant", "state", "renewed"),
    [
        (1, None, "active", True), (1, "acme", "active", True), (1, "other", "active", False), (2, None, "active", False),
        (1, None, "assigned", False),
    ],
)  # fmt: skip
async def test_a_lease_is_renewed_by_its_own_tenant_under_its_fence(
    store: PostgresStore, fence: int, tenant: str | None, state: str, renewed: bool
) -> None:
    await assigned(store)
    await store.db.rows("UPDATE holdfast.claim SET state = $1, max_heard = holdfast.heard()", state)
    async with await Changes.of(store) as changes:
        claim = await store.claims.renew("c-1", fence, tenant)
        assert (claim is not None and claim.id == "c-1") == renewed
        assert await changes.seen() == ({"claim c-1": {"lease_heard": 30.0}} if renewed else {})


async def test_the_state_of_a_claim_is_its_own(store: PostgresStore) -> None:
    await assigned(store)
    await insert(store, "claim", id="c-3", deadline_heard=Sql("holdfast.heard()"))
    assert [await store.claims.state(claim) for claim in ("c-1", "c-3", "c-9")] == ["assigned", "waiting", None]
