"""After lost commits, what an agent may have done in one of them is not undone because the agent is silent."""

from typing import Any

import msgspec
import pytest

from holdfast.duties.actions import Acknowledged
from holdfast.duties.converge import Converge
from holdfast.model.effect import Done, Stale
from holdfast.model.pool import Pool
from holdfast.ports.store import Pair
from holdfast.postgres.store import PostgresStore
from holdfast.recovery.compare import LISTEN
from holdfast.running.looks import due_workers
from postgres.recorded_cluster import RecordedCluster, claim_path, passed
from postgres.store_clock import Clock
from postgres.store_steps import BARE, JOB, active, ask, assigned, deliver, make_pool, make_warm, name

UNCONFIRMED = "SELECT count(*) FROM holdfast.worker WHERE unconfirmed_since IS NOT NULL"


async def told_and_silent(store: PostgresStore) -> tuple[Pool, Pair]:
    """Makes a claim that its worker fetched. Then commits were lost, and the agent has not reported since."""
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await assigned(store, pool)
    await deliver(store, pair)
    await recovered(store)
    await clock.live(20)
    return pool, pair


async def recovered(store: PostgresStore) -> None:
    await store.recovery.begin("restored", 0)
    assert await store.recovery.end() == Done()


async def test_a_claim_whose_acknowledgement_may_be_lost_is_not_run_elsewhere_for_its_workers_silence(
    store: PostgresStore,
) -> None:
    pool, pair = await told_and_silent(store)
    stalled = {"reason": "activation stopped making progress", "idle": 12.0}
    assert await store.claims.requeue(pair.claim, pair.fence, **stalled) == Stale()
    [claim] = await store.claims.get([pair.claim])
    assert (claim.state, claim.worker) == ("assigned", pair.worker)
    assert "has not reported since the database lost commits" in claim.reason
    cluster = RecordedCluster(pool, [pair.worker])
    cluster.kept[pair.worker] = msgspec.structs.replace(cluster.kept[pair.worker], left_to=pair.fence)
    did = await passed(Converge(), store, cluster)
    assert (Acknowledged(pair.worker, pair.fence), Done()) in did, "its agent left, which it does only then"
    [claim] = await store.claims.get([pair.claim])
    assert claim.state == "active"


async def test_an_agent_that_reports_again_and_has_not_begun_loses_the_claim(store: PostgresStore) -> None:
    _, pair = await told_and_silent(store)
    row = await store.workers.get(pair.worker)
    assert row is not None
    assert await store.workers.heard_again(pair.worker, row.version) == Done()
    assert await store.claims.requeue(pair.claim, pair.fence, reason="stalled", idle=12.0) == Done()


@pytest.mark.parametrize("suspect", [False, True])
async def test_a_plan_from_before_a_recovery_confirms_no_worker_after_it(store: PostgresStore, suspect: bool) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await active(store, pool)
    if suspect:
        await store.db.rows("UPDATE holdfast.worker SET suspect_since = holdfast.now()")
    before = await store.workers.get(pair.worker)
    assert before is not None
    await recovered(store)  # while the replica that has made the plan is paused
    await clock.live(2)
    assert await store.workers.heard_again(pair.worker, before.version) == Stale()
    row = await store.workers.get(pair.worker)
    assert row is not None
    assert not row.confirmed


@pytest.mark.parametrize(
    ("how", "asked", "expected"),
    [
        ("gone", {}, ("ended", "lost", None, 0)),
        ("ended", {}, ("ended", "lost", None, 0)),
        ("ended by itself", {}, ("ended", "failed", 3, 0)),
        ("never began", {}, ("waiting", None, None, 0)),
        ("never began", {"secrets": {"KEY": "1"}}, ("ended", "lost", None, 0)),
        ("gone", {"retry": "lost"}, ("waiting", None, None, 1)),
        ("ended by itself", {"retry": "lost"}, ("ended", "failed", 3, 0)),
    ],
)
async def test_a_claim_whose_acknowledgement_may_be_lost_runs_once_although_its_worker_died(
    store: PostgresStore, how: str, asked: dict[str, Any], expected: tuple[str, str | None, int | None, int]
) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 2)
    pair = await assigned(store, pool, ask(**asked))
    await deliver(store, pair)
    # The acknowledgement is in the lost commits. The command ran, and the worker died before it could report again.
    cluster = RecordedCluster(pool, [pair.worker, "w-other"])
    shown = {"ended by itself": {"exit_code": 3, "exit_fence": pair.fence}, "never began": {"untouched": True}}.get(how, {})
    cluster.kept[pair.worker] = msgspec.structs.replace(cluster.kept[pair.worker], phase="ended", **shown)
    if how == "gone":
        del cluster.kept[pair.worker]
    await store.recovery.begin("restored", 0)
    await clock.live(int(LISTEN) + 2)
    converge = Converge()
    for _ in range(3):
        await passed(converge, store, cluster)
    [claim] = await store.claims.get([pair.claim])
    losses = await store.db.value("SELECT losses FROM holdfast.claim WHERE id = $1", pair.claim)
    assert (claim.state, claim.outcome, claim.exit_code, losses) == expected


async def test_a_requeue_that_was_planned_before_the_loss_runs_nothing_twice(store: PostgresStore) -> None:
    _, pair = await told_and_silent(store)
    assert await store.claims.requeue(pair.claim, pair.fence, reason="its pod is gone", dead=True) == Stale()
    assert await store.claims.state(pair.claim) == "assigned"


@pytest.mark.parametrize("fault", ["gone", "terminating", "cordoned"])
async def test_a_hand_over_that_is_repeated_after_the_loss_runs_nothing_twice(store: PostgresStore, fault: str) -> None:
    pool, pair = await told_and_silent(store)
    cluster = RecordedCluster(pool, [pair.worker])
    shown = {"terminating": {"terminating": True}, "cordoned": {"schedulable": False}}.get(fault, {})
    cluster.kept[pair.worker] = msgspec.structs.replace(
        cluster.kept[pair.worker], phase="ended" if fault == "gone" else "running", **shown
    )
    await claim_path(store, cluster).start_hand_over(pool, pair)
    assert await store.claims.state(pair.claim) == "assigned", "the proof of its death decides"


@pytest.mark.parametrize("offered", [False, True])
async def test_a_holder_that_may_know_its_agentless_worker_gets_no_second_one(store: PostgresStore, offered: bool) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, BARE)
    await make_warm(store, pool)
    pair = await assigned(store, pool)
    cluster, converge = RecordedCluster(pool, ["w-other"]), Converge()
    if offered:  # in the lost commits; in the other case the pod dies without any loss
        await store.recovery.begin("restored", 0)
        await clock.live(int(LISTEN) + 2)
    for _ in range(2):
        await passed(converge, store, cluster)
    assert await store.claims.state(pair.claim) == ("ended" if offered else "waiting")


async def test_a_worker_that_was_unconfirmed_before_is_so_after_the_next_recovery_as_well(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    for _ in range(2):
        await recovered(store)
        assert await store.db.value(UNCONFIRMED) == 1
    row = await store.workers.get(worker)
    assert row is not None
    assert await store.workers.condemn(worker, row.version, "not wanted", counted=False) == Stale()


async def test_thousands_of_running_jobs_hide_no_claim_that_is_due(store: PostgresStore) -> None:
    """Their agents have left and send no reports while the jobs run."""

    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 510)
    for _ in range(510):
        await active(store, pool)
    await clock.live(61)
    fresh = name("w")
    assert await store.workers.spawn(pool.id, [fresh], 1000, 1000)
    await clock.live(6)
    assert fresh in await due_workers(store)


async def test_what_never_began_is_served_again_but_not_without_its_secrets(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 2)
    with_secret = await active(store, pool, ask(secrets={"TOKEN": "hush"}))
    without = await active(store, pool)
    rows = {row.worker.id: row for row in await store.workers.rows(None)}
    assert (rows[with_secret.worker].claim_secret, rows[without.worker].claim_secret) == (True, False)
    again = {"reason": "its process ended before it began", "dead": True, "untouched": True}
    assert await store.claims.requeue(with_secret.claim, with_secret.fence, **again) == Stale()
    assert await store.claims.requeue(without.claim, without.fence, **again) == Done()


async def test_slots_that_are_given_back_together_are_one_failure(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    ids = [name("w") for _ in range(8)]
    assert len(await store.workers.spawn(pool.id, ids, 1000, 1000)) == 8
    assert await store.workers.unspawn(ids, "quota", "no room", 2.0) == Done()
    after = await store.db.row("SELECT failures, backoff_until - holdfast.now() AS pause FROM holdfast.pool")
    assert after is not None
    assert after["failures"] == 1
    assert after["pause"].total_seconds() <= 2
    assert await store.db.value("SELECT count(*) FROM holdfast.worker WHERE state <> 'gone'") == 0
