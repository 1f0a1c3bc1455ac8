"""What is read about workers: the rows that `converge` compares, heartbeats, one worker, and pages of workers."""

from typing import Any

import pytest

from holdfast.model.pod import Heartbeat
from holdfast.model.pool import DrainSpec, NetworkSpec, PoolSpec, ProtectionSpec, WorkerSpec
from holdfast.ports.store import Row
from holdfast.postgres.store import PostgresStore
from postgres.changes import apart
from postgres.store_rows import NOW, Sql, add_held, ago, heard_ago, insert
from postgres.store_steps import JOB

SEALED = PoolSpec(
    start_timeout="2m", silence="retire", worker=WorkerSpec(run=["true"], agent=False), protection=ProtectionSpec(mode="always"),
    drain=DrainSpec(grace="30s"), network=NetworkSpec(seal=True),
)  # fmt: skip


async def rows(store: PostgresStore, *workers: str) -> dict[str, Row]:
    return {row.worker.id: row for row in await store.workers.rows(workers or None)}


async def test_a_row_shows_its_pools_traits(store: PostgresStore) -> None:
    await store.pools.put("p-1", "linux", JOB, "api")
    await store.pools.put("p-2", "sealed", SEALED, "api")
    await store.pools.freeze("sealed", "hands off")
    await insert(store, "worker", id="w-1")
    await insert(store, "worker", id="w-2", pool_id="p-2")
    await insert(store, "worker", id="w-3", state="gone")

    def traits(row: Row) -> tuple[Any, ...]:
        about = (row.pool_frozen, row.agent, row.protection, row.silence, row.seal)
        return (*about, row.start_timeout, row.grace)

    found = await rows(store)
    assert found.keys() == {"w-1", "w-2"}, "a worker that is gone is not compared"
    assert traits(found["w-1"]) == (False, True, "claim", "alert", False, 600.0, 3600.0)
    assert traits(found["w-2"]) == (True, False, "always", "retire", True, 120.0, 30.0)
    await store.db.rows("UPDATE holdfast.pool SET state = 'gone', spec = spec - 'network' WHERE id = 'p-1'")
    await store.db.rows("UPDATE holdfast.pool SET spec = spec - 'network' WHERE id = 'p-2'")
    found = await rows(store)
    assert found.keys() == {"w-2"}, "a pool that is gone has no workers"
    assert not found["w-2"].seal, "a spec from before the field"
    assert (await rows(store, "w-2", "w-3")).keys() == {"w-2"}
    assert (await rows(store, "w-9")) == {}


async def test_a_row_shows_its_claim_its_ages_and_its_heartbeat(store: PostgresStore) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    about: dict[str, Any] = {"retry": "lost", "secret": True, "losses": 1, "protected": True, "delivered": True}
    await add_held(store, "w-1", "c-1", **about)
    await add_held(store, "w-2", "c-2", "assigned", fence=8)
    await store.db.rows(
        f"""UPDATE holdfast.worker SET epoch = 3, protected = true, state_heard = {heard_ago(5)}, scheduled_heard = {heard_ago(4)}
            WHERE id = 'w-1'"""
    )
    parked: dict[str, Any] = {"state": "parked", "tenant": "acme", "parked_since": NOW}
    await insert(store, "worker", id="w-3", parked_heard=heard_ago(4), park_ttl="10 s", **parked)
    await insert(store, "claim", id="c-9", state="ended", outcome="lost")
    await store.db.rows(f"UPDATE holdfast.installation SET recovery_heard = {heard_ago(3)}")
    stored: dict[str, Any] = {"doing": "running", "fence": 7, "tenant": "acme", "reset_fence": 6}
    await insert(store, "heartbeat", worker_id="w-1", claim_id="c-1", beat_heard=heard_ago(2), **stored)
    await insert(store, "heartbeat", worker_id="w-2", claim_id="c-9", beat_heard=heard_ago(3), **stored)
    found = await rows(store)

    row = found["w-1"]
    assert (row.age, row.epoch, row.scheduled_age, row.pod_protected) == (5.0, 3, 4.0, True)
    assert (row.claim_state, row.claim_retry) == ("active", "lost")
    assert (row.claim_secret, row.claim_losses, row.claim_delivered) == (True, 1, True)
    reported = {"worker": "w-1", "doing": "running", "fence": 7, "tenant": "acme", "served_fence": 6}
    assert row.heartbeat == Heartbeat(age=2.0, claim="c-1", claim_ended=False, reported_since_recovery=True, **reported)

    row = found["w-2"]
    assert (row.age, row.epoch, row.scheduled_age, row.pod_protected) == (0.0, 1, None, False)
    assert (row.claim_state, row.claim_retry) == ("assigned", None)
    assert (row.claim_secret, row.claim_losses, row.claim_delivered) == (False, 0, False)
    assert row.heartbeat == Heartbeat(
        age=3.0, claim="c-9", claim_ended=True, reported_since_recovery=False, **(reported | {"worker": "w-2"})
    )

    row = found["w-3"]
    assert (row.claim_state, row.heartbeat) == (None, None)
    beats = {beat.worker: beat for beat in await store.workers.heartbeats(["w-1", "w-2", "w-3"])}
    assert beats.keys() == {"w-1", "w-2"}
    assert (beats["w-1"].age, beats["w-1"].claim, beats["w-1"].reported_since_recovery) == (2.0, "c-1", True)
    assert (beats["w-2"].age, beats["w-2"].claim, beats["w-2"].reported_since_recovery) == (3.0, "c-9", False)
    assert [beat.worker for beat in await store.workers.heartbeats(["w-2"])] == ["w-2"]


async def test_without_a_recovery_no_heartbeat_is_after_it(store: PostgresStore) -> None:
    await store.pools.put("p-1", "linux", JOB, "api")
    await insert(store, "worker", id="w-1")
    await insert(store, "heartbeat", worker_id="w-1")
    heartbeat = (await rows(store))["w-1"].heartbeat
    assert heartbeat is not None
    assert heartbeat.reported_since_recovery is False
    [beat] = await store.workers.heartbeats(["w-1"])
    assert beat.reported_since_recovery is False


async def test_a_worker_is_identified_by_its_pod_until_it_is_gone(store: PostgresStore) -> None:
    await store.pools.put("p-1", "linux", JOB, "api")
    await store.pools.put("p-2", "other", JOB, "api")
    await insert(store, "worker", id="w-1", pod_uid="uid-1", pool_id="p-2")
    await insert(store, "worker", id="w-2", pod_uid="uid-2", state="gone")
    known = await store.workers.identity("w-1")
    assert known is not None
    assert (known[0], known[1].id) == ("uid-1", "p-2")
    assert await store.workers.identity("w-2") is None
    assert await store.workers.identity("w-9") is None


async def test_workers_are_found_page_by_page_newest_first(store: PostgresStore) -> None:
    await store.pools.put("p-1", "linux", JOB, "api")
    await store.pools.put("p-2", "other", JOB, "api")
    for n, seconds in {2: 5, 4: 4, 0: 3, 1: 3, 3: 3}.items():  # three of them at the same time
        await insert(store, "worker", id=f"w-{n}", created_at=Sql(f"'2030-01-01 12:00+00'::timestamptz - interval '{seconds} s'"))
    await insert(store, "worker", id="v-1", pool_id="p-2", created_at=Sql("'2030-01-01 13:00+00'"), state="spawning")
    await insert(store, "worker", id="v-2", created_at=ago(9), state="gone")

    async def page(cursor: str | None = None, **about: Any) -> tuple[list[str], str | None]:
        found, following = await store.workers.find(**({"pool": "linux", "state": None, "limit": 2, "cursor": cursor} | about))
        return [worker.id for worker in found], following

    assert await page() == (["w-3", "w-1"], "w-1")
    assert await page("w-1") == (["w-0", "w-4"], "w-4")
    assert await page("w-4") == (["w-2"], None)
    assert await page(limit=5) == (["w-3", "w-1", "w-0", "w-4", "w-2"], None)
    assert await page(pool="other") == (["v-1"], None)
    assert await page(pool=None, limit=9) == (["v-1", "w-3", "w-1", "w-0", "w-4", "w-2"], None)
    assert await page(pool=None, state="gone") == (["v-2"], None)
    assert await page(pool=None, state="spawning") == (["v-1"], None)
    assert await page(pool="none") == ([], None)


async def test_a_worker_is_shown_with_its_times_in_seconds(store: PostgresStore) -> None:
    await store.pools.put("p-1", "linux", JOB, "api")
    at = "'1970-01-01 00:00:{:02}+00'"
    times = {
        name: Sql(at.format(n))
        for n, name in enumerate(("created_at", "state_since", "parked_since", "suspect_since", "unconfirmed_since"), start=1)
    }
    await insert(store, "worker", id="w-1", **(times | {"state": "parked", "tenant": "acme", "park_ttl": "9 s"}))
    worker = await store.workers.get("w-1")
    assert worker is not None
    assert (worker.created_at, worker.state_since, worker.parked_since, worker.suspect_since, worker.unconfirmed_since) == (
        1.0, 2.0, 3.0, 4.0, 5.0,
    )  # fmt: skip
    assert (worker.park_ttl, worker.pool, worker.pool_id) == (9.0, "linux", "p-1")
    assert await store.workers.get("w-9") is None


@pytest.mark.parametrize("acting", [True, False])
async def test_an_orphan_is_ended_only_while_acting_is_allowed(store: PostgresStore, acting: bool) -> None:
    if not acting:
        await store.recovery.begin("restored", 0)
    outcome = await store.workers.may_end_orphan("w-1")
    assert (type(outcome).__name__ == "Done") == acting
    assert await store.db.value("SELECT count(*) FROM holdfast.ending") == int(acting)
