"""What the start of a recovery, an adoption and the end of a recovery write, and what they leave alone."""

from typing import Any

import pytest

from holdfast.model.effect import Done, Stale
from holdfast.ports.recovery import Adoption
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, add_worker, apart, pool_with_worker
from postgres.store_steps import BARE, JOB, SESSION, active, agent_report, ask, assigned, end, match
from postgres.store_tables import state_of

HIGH = (1 << 40) + 500


def found_on(worker: str, claim: str, fence: int = HIGH, **other: Any) -> Adoption:
    usual: dict[str, Any] = {"uid": f"uid-{worker}", "tenant": "acme", "pool": "linux", "pool_id": "p-1", "revision": "r"}
    return Adoption(**(usual | {"worker": worker, "claim": claim, "fence": fence} | other))


async def test_a_recovery_starts_leases_again_and_takes_every_assignment_for_delivered(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store)
    for worker in ("w-2", "w-3"):
        await add_worker(store, pool, worker)
    await active(store, pool, ask("a", id="c-1", lease=30.0))
    await active(store, pool, ask("b", id="c-2"))
    await assigned(store, pool, ask("c", id="c-3", lease=30.0))
    await match(store, pool, ask("d", id="c-4", lease=30.0))
    await clock.live(5)
    async with await Changes.of(store) as changes:
        assert await store.recovery.begin("restored", 1000, 0)
        assert await changes.seen() == {
            "claim c-1": {"lease_heard": 35.0},
            "claim c-3": {"delivered": True, "progress_heard": 5.0},
            "hearing": {"mark": 1000},
            "installation": {
                "epoch": 2,
                "recoveries": 1,
                "recovery_heard": 5.0,
                "recovery_reason": "restored",
                "recovering_since": 105.0,
            },
            "worker w-3": {"delivered": True},
            "events": ['105 recovery.began "restored"'],
        }
        assert not await store.recovery.begin("seen by another", 1001, 1)
        assert await changes.seen() == {"hearing": {"mark": 1001}}
        assert not await store.recovery.begin("seen by another", 900, 1)
        assert await changes.seen() == {}
        await clock.live(1)
        await changes.seen()
        assert await store.recovery.begin("a later epoch was seen", 0, 2), "not above the one that it is at"
        assert (await changes.seen())["installation"] == {
            "epoch": 3,
            "recoveries": 2,
            "recovery_heard": 6.0,
            "recovery_reason": "a later epoch was seen",
            "recovering_since": 106.0,
        }


async def test_the_end_of_a_recovery_marks_workers_that_have_not_reported(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store)
    for worker in ("w-2", "w-3", "w-4", "w-5", "w-6"):
        await add_worker(store, pool, worker)
    await store.workers.spawn("p-1", ["w-7"], 9, 9)
    await active(store, pool, ask("a", id="c-1"))
    await active(store, pool, ask("b", id="c-2"))
    await end(store, "c-2")
    await store.workers.condemn("w-3", None, "not wanted", counted=False)
    assert await store.recovery.end() == Stale()
    await store.workers.beat([agent_report("w-5")])
    await clock.live(2)
    await store.recovery.begin("restored", 0)
    await clock.live(2)
    await store.workers.beat([agent_report("w-4"), agent_report("w-6", served_fence=7)])
    async with await Changes.of(store) as changes:
        assert await store.recovery.end() == Done()
        assert await changes.seen() == {
            "installation": {"recovered_at": 104.0, "recovering_since": None},
            "worker w-1": {"version": 7, "suspect_since": 104.0, "unconfirmed_since": 104.0},
            "worker w-2": {"version": 8, "suspect_since": 104.0, "unconfirmed_since": 104.0},
            "worker w-5": {"version": 4, "suspect_since": 104.0, "unconfirmed_since": 104.0},
            "worker w-6": {
                "state": "retiring",
                "reason": "its agent has served a claim that the database does not know",
                "version": 4,
                "state_heard": 4.0,
                "state_since": 104.0,
            },
            "worker w-7": {"version": 2, "suspect_since": 104.0, "unconfirmed_since": 104.0},
            "events": [
                '104 worker.retiring p-1 w-6 "its agent has served a claim that the database does not know"',
                '104 recovery.ended "pods and agents have been compared"',
            ],
        }
        assert await store.recovery.end() == Stale()
        assert await changes.seen() == {}


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("mode", ["claim", "off", "always"])
async def test_a_worker_without_an_agent_goes_on_only_if_a_missing_stamp_shows_that_it_is_free(
    store: PostgresStore, mode: str, required: bool
) -> None:
    pool = await pool_with_worker(store, BARE)
    await add_worker(store, pool, "w-2")
    protection = f'{{"mode": "{mode}", "required": {str(required).lower()}}}'
    await store.db.rows("UPDATE holdfast.pool SET spec = jsonb_set(spec, '{protection}', $1::jsonb)", protection)
    await store.db.rows("UPDATE holdfast.worker SET state = 'retiring' WHERE id = 'w-2'")
    await store.recovery.begin("restored", 0)
    await store.recovery.end()
    suspects = await store.db.rows("SELECT id FROM holdfast.worker WHERE suspect_since IS NOT NULL")
    assert [row[0] for row in suspects] == ([] if mode == "claim" and required else ["w-1"])


async def test_a_claim_of_which_only_its_worker_knows_gets_rows_of_its_own(store: PostgresStore) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", SESSION, "api")
    await store.pools.put("p-2", "jobs", JOB, "api")
    assert await store.recovery.adopt(found_on("w-1", "c-1")) == Stale(), "not outside a recovery"
    await store.recovery.begin("restored", 0)
    async with await Changes.of(store) as changes:
        assert await store.recovery.adopt(found_on("w-1", "c-1", endpoint="1.2.3.4:80")) == Done()
        assert await changes.seen() == {
            "claim c-1": {
                "id": "c-1",
                "tag": 0,
                "fence": 1099511628276,
                "lease": "00:01:00",
                "state": "active",
                "losses": 0,
                "activation_failures": 0,
                "reason": "adopted after lost commits",
                "secret": False,
                "lease_chosen": False,
                "max_chosen": False,
                "tenant": "acme",
                "offered": True,
                "pool_id": "p-1",
                "request": {},
                "attempts": 1,
                "key_live": False,
                "patience": "01:00:00",
                "priority": 0,
                "active_at": 100.0,
                "delivered": True,
                "max_heard": 86400.0,
                "protected": False,
                "worker_id": "w-1",
                "created_at": 100.0,
                "assigned_at": 100.0,
                "lease_heard": 60.0,
                "max_duration": "24:00:00",
                "request_hash": "adopted",
                "deadline_heard": 0.0,
            },
            "worker w-1": {
                "id": "w-1",
                "epoch": 2,
                "fence": 1099511628276,
                "ready": True,
                "state": "held",
                "tenant": "acme",
                "pod_uid": "uid-w-1",
                "pool_id": "p-1",
                "version": 1,
                "claim_id": "c-1",
                "endpoint": "1.2.3.4:80",
                "revision": "r",
                "delivered": True,
                "held_from": "warm",
                "protected": False,
                "created_at": 100.0,
                "schedulable": True,
                "state_heard": 0.0,
                "state_since": 100.0,
                "terminating": False,
            },
            "events": ['100 claim.adopted worker.adopted p-1 w-1 c-1 acme "its pod or agent still holds it"'],
        }
        assert await store.recovery.adopt(found_on("w-2", "c-2", HIGH + 1, pool="jobs", pool_id="p-2")) == Done()
        found = await changes.seen()
        assert (found["claim c-2"]["max_duration"], found["claim c-2"]["max_heard"]) == ("06:00:00", 21600.0)
        assert not {"lease", "lease_heard"} & found["claim c-2"].keys(), "a job has no lease"
        assert await store.recovery.adopt(found_on("w-3", "c-3", HIGH + 2, pool="jobs", pool_id="p-9")) == Done(), "by name"
        assert (await changes.seen())["worker w-3"]["pool_id"] == "p-2"
        assert await store.recovery.adopt(found_on("w-4", "c-4", HIGH + 3, pool="none", pool_id="p-9")) == Stale()
        await store.pools.delete("jobs")
        await changes.seen()
        assert await store.recovery.adopt(found_on("w-5", "c-5", HIGH + 4, pool="jobs", pool_id="p-9")) == Stale()
        assert await store.recovery.adopt(found_on("w-5", "c-5", HIGH + 4, pool="linux", pool_id="p-2")) == Done()
        assert (await changes.seen())["worker w-5"]["pool_id"] == "p-2", "its own pool, though that drains"


async def test_a_known_claim_is_found_on_another_worker_than_in_its_rows(store: PostgresStore) -> None:
    clock = await apart(store)
    pool = await pool_with_worker(store, SESSION)
    for worker in ("w-2", "w-3", "w-4"):
        await add_worker(store, pool, worker)
    await assigned(store, pool, ask("a", id="c-1", lease=30.0, max_duration=300.0, secrets={"a": "b"}))
    await assigned(store, pool, ask("b", id="c-2", secrets={"a": "b"}))
    running = await active(store, pool, ask("c", id="c-3"))
    await clock.live(5)
    await store.recovery.begin("restored", 0)
    async with await Changes.of(store) as changes:
        assert await store.recovery.adopt(found_on("w-2", "c-1", HIGH, tenant="a")) == Done()
        assert await changes.seen() == {
            "claim c-1": {
                "fence": 1099511628276,
                "state": "active",
                "reason": "adopted after lost commits",
                "offered": True,
                "active_at": 105.0,
                "max_heard": 305.0,
                "protected": False,
                "worker_id": "w-2",
                "lease_heard": 35.0,
            },
            "claim c-2": {
                "state": "waiting",
                "reason": "its worker was found to hold another claim",
                "worker_id": None,
                "assigned_at": None,
                "progress_heard": None,
            },
            "claim_secret c-1": None,
            "worker w-1": {
                "state": "retiring",
                "reason": "its claim was found on another worker",
                "version": 5,
                "claim_id": None,
                "held_from": None,
                "state_heard": 5.0,
                "state_since": 105.0,
            },
            "worker w-2": {
                "fence": 1099511628276,
                "tenant": "a",
                "version": 5,
                "claim_id": "c-1",
                "state_heard": 5.0,
                "state_since": 105.0,
            },
            "events": [
                '105 claim.requeued p-1 w-2 c-2 b "its worker was found to hold another claim"',
                '105 worker.retiring p-1 w-1 c-1 "its claim was found on another worker"',
                '105 claim.adopted worker.adopted p-1 w-2 c-1 a "its pod or agent still holds it"',
            ],
        }
        assert await store.recovery.adopt(found_on("w-3", "c-9", HIGH + 1)) == Done()
        found = await changes.seen()
        assert found["claim c-3"] == {
            "how": "forgotten",
            "request": {},
            "state": "ended",
            "reason": "its end was in commits that the database lost",
            "outcome": "lost",
            "ended_at": 105.0,
            "ended_heard": 5.0,
        }
        assert found["events"] == [
            '105 claim.ended p-1 w-3 c-3 c "its end was in commits that the database lost"'
            ' {"how": "forgotten", "outcome": "lost"}',
            '105 claim.adopted worker.adopted p-1 w-3 c-9 acme "its pod or agent still holds it"',
        ]
        assert await store.recovery.adopt(found_on("w-4", "c-3", HIGH + 2)) == Stale(), "an ended claim stays ended"
        assert await store.recovery.adopt(found_on("w-3", "c-9", HIGH + 1)) == Stale(), "known already"
        assert await store.recovery.adopt(found_on("w-4", "c-9", HIGH)) == Stale(), "the claim was assigned again later"
        assert await store.recovery.adopt(found_on("w-3", "c-8", HIGH)) == Stale(), "its worker has served another since"
        fence = await store.db.value("UPDATE holdfast.claim SET fence = $1 WHERE id = 'c-2' RETURNING fence", running.fence)
        assert await store.recovery.adopt(found_on("w-4", "c-2", fence)) == Stale(), "it went back to its place under this fence"
        assert await changes.seen() == {"claim c-2": {"fence": fence}}


@pytest.mark.parametrize("spent", [True, False])
async def test_a_free_pod_without_a_row_gets_one(store: PostgresStore, spent: bool) -> None:
    clock = await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    await clock.live(2)
    await store.db.rows("UPDATE holdfast.installation SET epoch = 3")
    async with await Changes.of(store) as changes:
        assert await store.recovery.adopt_free("w-1", "uid-1", "p-1", "none", "r", spent=spent) == Done()
        found = await changes.seen()
        row = {key: value for key, value in found["worker w-1"].items() if value not in (None, False)}
        reason = {"reason": "it has served a tenant that the database no longer knows"} if spent else {}
        assert row == {
            "id": "w-1", "pool_id": "p-1", "state": "retiring" if spent else "spawning", "version": 1, "revision": "r",
            "epoch": 3,
            "created_at": 102.0, "state_since": 102.0, "state_heard": 2.0, "pod_uid": "uid-1", "schedulable": True,
        } | reason  # fmt: skip
        assert found["events"] == ['102 worker.adopted p-1 w-1 "a pod without a row, after lost commits"']
        assert await store.recovery.adopt_free("w-1", "uid-1", "p-1", "linux", "r", spent=spent) == Stale()
        assert await store.recovery.adopt_free("w-2", "uid-2", "p-9", "linux", "r", spent=spent) == Done()
        assert await state_of(store, "worker", "w-2") == ("retiring" if spent else "spawning")
        await store.pools.delete("linux")
        assert await store.recovery.adopt_free("w-3", "uid-3", "p-1", "linux", "r", spent=spent) == Stale()
