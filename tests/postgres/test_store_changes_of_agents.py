"""What an agent's report writes, and the answer to it: every column, event and notification."""

from typing import Any

import pytest

from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, add_worker, apart, pool_with_worker
from postgres.store_steps import JOB, SESSION, acknowledge, active, agent_report, ask, assigned, deliver, end, match

TROUBLE = "UPDATE holdfast.pool SET failures = 3, trouble = 'no room', backoff_until = holdfast.now()"


def fields(directive: Any) -> tuple[Any, ...]:
    return (directive.do, directive.fence, directive.reason, directive.park, directive.freed)


NOTHING = ("nothing", None, "", False, None)
LOOK = ("nothing", None, "", False, "p-1")  # and the pool has one more free worker


async def spawning(store: PostgresStore, spec: Any = JOB) -> None:
    await store.pools.put("p-1", "linux", spec, "api")
    await store.pools.put("p-2", "other", spec, "api")
    await store.workers.spawn("p-1", ["w-1"], 9, 9)
    await store.workers.spawned("w-1", "uid-w-1")


async def test_the_first_idle_report_makes_a_worker_warm_and_ends_its_pools_trouble(store: PostgresStore) -> None:
    clock = await apart(store)
    await spawning(store)
    await store.db.rows(TROUBLE)
    await clock.live(3)
    async with await Changes.of(store) as changes:
        assert fields(await store.workers.report(agent_report("w-1", doing="starting"))) == NOTHING
        assert fields(await store.workers.report(agent_report("w-1"), fresh=False)) == NOTHING
        assert await changes.seen() == {}
        assert fields(await store.workers.report(agent_report("w-1", endpoint="1.2.3.4:80"))) == LOOK
        assert await changes.seen() == {
            "pool p-1": {"trouble": None, "failures": 0, "backoff_until": None},
            "worker w-1": {
                "ready": True,
                "state": "warm",
                "version": 3,
                "endpoint": "1.2.3.4:80",
                "state_heard": 3.0,
                "state_since": 103.0,
            },
            "events": ["103 worker.warm p-1 w-1"],
            "notices": ["p p-1"],
        }
        assert fields(await store.workers.report(agent_report("w-1", endpoint="1.2.3.4:80"))) == NOTHING
        assert await changes.seen() == {}, "a report without news changes nothing"
        assert fields(await store.workers.report(agent_report("w-1", endpoint="1.2.3.4:81"))) == LOOK
        assert await changes.seen() == {"worker w-1": {"version": 4, "endpoint": "1.2.3.4:81"}, "notices": ["p p-1"]}


@pytest.mark.parametrize("state", ["warm", "parked"])
async def test_a_suspect_worker_that_reports_is_free_again_and_not_silent(store: PostgresStore, state: str) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store)
    reset = None
    if state == "parked":
        reset = (await active(store, pool, ask(id="c-1"))).fence
        await end(store, "c-1")
        await store.workers.report(agent_report("w-1", served_fence=reset))
    await store.workers.beat([agent_report("w-1", doing="running", claim="c-1", fence=reset, tenant="acme")])
    await clock.live(3)
    await store.db.rows("UPDATE holdfast.worker SET suspect_since = holdfast.now()")
    async with await Changes.of(store) as changes:
        assert fields(await store.workers.report(agent_report("w-1", served_fence=reset))) == LOOK
        found = await changes.seen()
        assert found.pop("worker w-1") == {"suspect_since": None, "version": {"warm": 4, "parked": 9}[state]}
        heartbeat = found.pop("heartbeat w-1")
        assert heartbeat.pop("fence", None) is None
        assert heartbeat.pop("reset_fence", None) == reset
        assert heartbeat == {"doing": "idle", "claim_id": None, "tenant": None, "beat_heard": 3.0}
        assert found == {"notices": ["p p-1"]}


async def test_a_worker_that_was_reset_is_ready_for_its_own_fence_only(store: PostgresStore) -> None:
    await apart(store)
    pool = await pool_with_worker(store)
    pair = await active(store, pool, ask(id="c-1"))
    await end(store, "c-1")
    async with await Changes.of(store) as changes:
        assert fields(await store.workers.report(agent_report("w-1", served_fence=pair.fence - 1))) == NOTHING
        assert fields(await store.workers.report(agent_report("w-1"))) == NOTHING
        assert await changes.seen() == {}
        assert fields(await store.workers.report(agent_report("w-1", served_fence=pair.fence))) == LOOK
        assert await changes.seen() == {"worker w-1": {"ready": True, "version": 8}, "notices": ["p p-1"]}
        await store.db.rows("UPDATE holdfast.worker SET ready = false, endpoint = 'old'")
        await store.workers.report(agent_report("w-1", served_fence=pair.fence - 1, endpoint="new"))
        assert not await store.db.value("SELECT ready FROM holdfast.worker"), "a new address is no reset"


async def test_a_draining_agent_takes_its_free_worker_out_of_the_pool(store: PostgresStore) -> None:
    await apart(store)
    pool = await pool_with_worker(store)
    async with await Changes.of(store) as changes:
        assert fields(await store.workers.report(agent_report("w-1", doing="draining"), fresh=False)) == NOTHING
        assert await changes.seen() == {}
        assert fields(await store.workers.report(agent_report("w-1", doing="draining"))) == NOTHING
        assert await changes.seen() == {"worker w-1": {"terminating": True, "version": 4}}
        assert fields(await store.workers.report(agent_report("w-1", doing="draining"))) == NOTHING
        assert await changes.seen() == {}
        await add_worker(store, pool, "w-2")
        await active(store, pool, ask(id="c-1"))
        await changes.seen()
        await store.workers.report(agent_report("w-2", doing="draining"))
        assert await changes.seen() == {}, "a held one drains with its claim"


async def test_what_an_agent_with_a_claim_is_answered(store: PostgresStore) -> None:
    pool = await pool_with_worker(store)
    pair = await active(store, pool, ask(id="c-1"))

    async def report(claim: str, fence: int) -> tuple[Any, ...]:
        return fields(await store.workers.report(agent_report("w-1", doing="running", claim=claim, fence=fence)))

    async with await Changes.of(store) as changes:
        assert await report("c-1", pair.fence) == NOTHING
        assert await report("c-unknown", pair.fence - 1) == NOTHING, "P7: no row is no proof"
        assert await report("c-1", pair.fence - 1) == (
            "end",
            pair.fence - 1,
            "the claim was assigned to another worker",
            False,
            None,
        )
        assert await report("c-1", pair.fence + 1) == (
            "ahead", pair.fence + 1, "an agent holds a fence that this database never gave", False, None,
        )  # fmt: skip
        await store.db.rows("UPDATE holdfast.worker SET fence = fence - 1")
        assert await report("c-1", pair.fence) == NOTHING, "the claim's own row shows that it is this worker's"
        await store.db.rows("UPDATE holdfast.worker SET fence = fence + 1")
        await end(store, "c-1")
        await changes.seen()
        assert await report("c-1", pair.fence) == ("end", pair.fence, "release", True, None), "parked: it is reset"
        assert await report("c-1", pair.fence - 1) == ("end", pair.fence - 1, "release", False, None)
        await store.db.rows("UPDATE holdfast.worker SET state = 'retiring', reason = 'old'")
        assert await report("c-1", pair.fence) == ("end", pair.fence, "release", False, None)
        assert fields(await store.workers.report(agent_report("w-1"))) == ("exit", None, "old", False, None)
        await store.pools.freeze("linux", "hands off")
        assert fields(await store.workers.report(agent_report("w-1"))) == ("nothing", None, "old", False, None)
        unknown = ("unknown", None, "no such worker", False, None)
        assert fields(await store.workers.report(agent_report("w-1", uid="another"))) == unknown
        await store.db.rows("UPDATE holdfast.worker SET state = 'gone'")
        assert fields(await store.workers.report(agent_report("w-1"))) == unknown


async def test_an_idle_agent_gets_its_claim_once_that_is_offered(store: PostgresStore) -> None:
    await apart(store)
    pool = await pool_with_worker(store, JOB)
    pair = await assigned(store, pool, ask(id="c-1"))
    async with await Changes.of(store) as changes:
        assert fields(await store.workers.report(agent_report("w-1"))) == NOTHING
        await store.claims.offer([("c-1", pair.fence, True)])
        await changes.seen()
        assert fields(await store.workers.report(agent_report("w-1", doing="starting"))) == NOTHING
        hold = ("hold", pair.fence, "", False, None)
        assert fields(await store.workers.report(agent_report("w-1"))) == hold
        assert fields(await store.workers.report(agent_report("w-1"), fresh=False)) == hold
        assert await changes.seen() == {}
        store.db.mark.saw(2**40, float("inf"))
        assert fields(await store.workers.report(agent_report("w-1"))) == NOTHING, "not on a database that lost commits"
        store.db.mark.saw(0, float("inf"))
        assert fields(await store.workers.report(agent_report("w-1", served_fence=1))) == NOTHING
        assert await changes.seen() == {
            "claim c-1": {
                "state": "waiting",
                "reason": "its worker has served a claim that the database does not know",
                "offered": False,
                "protected": None,
                "worker_id": None,
                "assigned_at": None,
                "progress_heard": None,
            },
            "worker w-1": {
                "state": "retiring",
                "reason": "its worker has served a claim that the database does not know",
                "version": 6,
                "claim_id": None,
                "held_from": None,
            },
            "events": [
                '100 claim.requeued worker.retiring p-1 w-1 c-1 acme "its worker has served a claim that the database does'
                ' not know"'
            ],
            "notices": ["p p-1", "w w-1"],
        }
        await add_worker(store, pool, "w-2")
        [pair] = await match(store, pool)
        await deliver(store, pair)
        await acknowledge(store, pair.worker, pair.fence, None)
        await changes.seen()
        assert fields(await store.workers.report(agent_report("w-2"))) == NOTHING, "an active claim is not handed over again"
        assert fields(await store.workers.report(agent_report("w-2", served_fence=1))) == NOTHING
        assert await changes.seen() == {}


@pytest.mark.parametrize("state", ["spawning", "warm", "parked"])
async def test_a_worker_that_has_served_an_unknown_claim_is_retired_unless_it_is_parked(store: PostgresStore, state: str) -> None:
    clock = await apart(store)
    await spawning(store, SESSION)
    await store.workers.spawn("p-1", ["w-2"], 9, 9)
    if state != "spawning":
        await store.workers.report(agent_report("w-1"))
    if state == "parked":
        await store.db.rows(
            "UPDATE holdfast.worker SET state = 'parked', tenant = 'a', parked_since = holdfast.now() WHERE id = 'w-1'"
        )
    await clock.live(3)
    async with await Changes.of(store) as changes:
        assert fields(await store.workers.report(agent_report("w-1", served_fence=1))) == NOTHING
        reason = "its agent has served a claim that the database does not know"
        retired = {
            "worker w-1": {
                "state": "retiring", "version": 3 if state == "spawning" else 4, "state_since": 103.0, "state_heard": 3.0,
                "reason": reason,
            },
            "events": [f'103 worker.retiring p-1 w-1 "{reason}"'],
        }  # fmt: skip
        assert await changes.seen() == ({} if state == "parked" else retired)


async def test_an_acknowledgement_starts_the_claims_clocks_and_erases_its_secrets(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store)
    await add_worker(store, pool, "w-2")
    pair = await assigned(store, pool, ask(id="c-1", secrets={"a": "b"}, lease=30.0, max_duration=300.0))
    await assigned(store, pool, ask(id="c-2", secrets={"a": "b"}))
    await clock.live(3)
    async with await Changes.of(store) as changes:
        assert await acknowledge(store, "w-1", pair.fence, "1.2.3.4:80") is None, "nothing was delivered"
        await deliver(store, pair)
        await changes.seen()
        assert await acknowledge(store, "w-1", pair.fence + 9, None) is None
        assert await acknowledge(store, "w-9", pair.fence, None) is None
        assert await changes.seen() == {}
        assert await acknowledge(store, "w-1", pair.fence, "1.2.3.4:80") == "c-1"
        assert await changes.seen() == {
            "claim c-1": {"state": "active", "active_at": 103.0, "max_heard": 303.0, "lease_heard": 33.0},
            "claim_secret c-1": None,
            "worker w-1": {"version": 6, "endpoint": "1.2.3.4:80"},
            "events": ["103 claim.active p-1 w-1 c-1 acme"],
            "notices": ["c c-1"],
        }
        assert await acknowledge(store, "w-1", pair.fence, None) == "c-1"
        assert await changes.seen() == {}
        await end(store, "c-1")
        assert await acknowledge(store, "w-1", pair.fence, None) is None
