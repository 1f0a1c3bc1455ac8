"""After lost commits: new fences exceed all old ones, everything waits, and what pods and agents report is adopted (P7)."""

from typing import Any

from holdfast.model.claim import epoch_of
from holdfast.model.effect import Done, Skipped, Stale
from holdfast.model.pool import Pool
from holdfast.ports.recovery import Adoption
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_locks import queued
from postgres.store_steps import (
    DIRECT,
    JOB,
    SESSION,
    acknowledge,
    active,
    agent_report,
    ask,
    assigned,
    end,
    lone_active,
    make_pool,
    make_warm,
    match,
    name,
)
from postgres.store_tables import broken, due, kinds, state_of

RECOVERING = Skipped("recovering")


def held_by(pool: Pool, worker: str, fence: int, **other: Any) -> Adoption:
    """Returns an adoption with what a pod and its agent report."""
    adopted = {"claim": name("c"), "tenant": "acme", "uid": f"uid-{worker}"} | other
    return Adoption(worker=worker, fence=fence, pool=pool.name, pool_id=pool.id, revision=pool.revision, **adopted)


async def test_fences_of_a_new_epoch_are_greater_than_all_before(store: PostgresStore) -> None:
    pool = await make_pool(store, DIRECT)
    fences = []
    for epoch in (1, 2, 3):
        await make_warm(store, pool, 2)
        fences += [(await active(store, pool)).fence for _ in range(2)]
        state = await store.recovery.state()
        assert (state.epoch, epoch_of(fences[-1]), state.last_fence) == (epoch, epoch, fences[-1])
        assert await store.recovery.begin("restored", 1000 * epoch)
        assert not await store.recovery.begin("seen by another as well", 0), "one recovery at a time"
        after = await store.recovery.state()
        assert (after.recovering, after.epoch) == (True, epoch + 1)
        assert after.mark >= 1000 * epoch, "what was seen outside is never seen again as new"
        assert await store.recovery.end() == Done()
        assert await store.recovery.end() == Stale()
    assert fences == sorted(set(fences))
    await store.db.rows("UPDATE holdfast.installation SET epoch = 8191")
    await store.db.rows("SELECT setval('holdfast.fence', (1::bigint << 40) - 2)")
    await make_warm(store, pool)
    assert (await active(store, pool)).fence < 2**53, "JSON keeps it whole"


async def test_while_recovering_nothing_is_given_out_ended_or_made(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool, 3)
    leased = await active(store, pool, ask(lease=5.0, max_duration=20.0))
    handed = await assigned(store, pool, ask("b"))
    [free] = [w.id for w in (await store.workers.find(pool=None, state="warm", limit=9, cursor=None))[0]]
    assert await store.recovery.begin("restored", 0)
    new, patient = ask("c", deadline=3.0), ask("d")
    batch = await store.claims.match(pool.id, [new, patient], 9)
    assert (batch.answers[new.id][0], batch.pairs) == ("new", []), "taken in, and it waits"
    await clock.live(30)
    assert {leased.claim, handed.claim, new.id} <= set(await due(store))
    for claim, how in (
        (leased.claim, "lease"),
        (leased.claim, "max_duration"),
        (leased.claim, "death"),
        (new.id, "deadline"),
    ):
        assert await end(store, claim, how) == RECOVERING, how
    again = await store.claims.requeue(handed.claim, handed.fence, keep_worker=True, reason="stalled")
    assert again == RECOVERING
    for counted in (True, False):
        assert await store.workers.condemn(free, None, "not wanted", counted=counted) == RECOVERING
    assert await store.workers.spawn(pool.id, [name("w")], 10, 10) == []
    assert (await store.workers.report(agent_report(free))).do == "nothing"
    [claim] = await store.claims.get([new.id])
    assert "lost commits" in claim.reason, "a waiting claim shows why"
    assert await end(store, leased.claim, "release") == Done(), "its holder may always"
    assert await store.recovery.end() == Done()
    assert await match(store, pool) == [], "a worker that has not reported since gets nothing"
    await store.workers.report(agent_report(free))
    assert [(pair.claim, pair.worker) for pair in await match(store, pool)] == [(patient.id, free)]


async def test_every_assignment_from_before_lost_commits_counts_as_delivered(store: PostgresStore) -> None:
    """So a worker that may know this tenant is not given to others, and one that does know it may continue."""

    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 2)
    silent, going = [await assigned(store, pool) for _ in range(2)]
    await store.claims.offer([(silent.claim, silent.fence, True)])  # the offer of the other claim is among the lost commits
    await store.recovery.begin("restored", 0)
    assert await store.recovery.end() == Done()
    rows = await store.db.rows(
        "SELECT c.delivered AND w.delivered AS yes FROM holdfast.claim c JOIN holdfast.worker w ON w.claim_id = c.id"
    )
    assert [row["yes"] for row in rows] == [True, True]
    assert await acknowledge(store, going.worker, going.fence, None) == going.claim
    [claim] = await store.claims.get([going.claim])
    assert claim.protected is False, "it is not known, and false is shown rather than nothing (P3)"
    assert await store.claims.requeue(silent.claim, silent.fence, reason="no progress") == Done()
    assert await state_of(store, "worker", silent.worker) == "retiring"


async def test_leases_start_again_with_recovery(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pair = await lone_active(store, DIRECT, ask(lease=10.0))
    await clock.live(12)
    await store.recovery.begin("restored", 0)
    await store.recovery.end()
    assert await due(store) == [], "its renewals may be among what was lost"
    await clock.live(10)
    assert await due(store) == [pair.claim]


async def test_an_ending_that_waited_for_the_brake_sees_that_recovery_began(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, DIRECT)
    [free, _] = await make_warm(store, pool, 2)
    await store.db.rows("UPDATE holdfast.worker SET schedulable = false WHERE id = $1", free)
    pair = await active(store, pool, ask(max_duration=5.0))
    await clock.live(6)
    begin = store.db.sql("SELECT @fn.begin_recovery('restored', 0, 0)")
    calls = [end(store, pair.claim, "max_duration"), store.workers.condemn(free, None, "not wanted", counted=True)]
    answers = await queued(store, begin, *calls)
    assert answers == [RECOVERING, RECOVERING]


async def test_recovery_begins_beside_an_ending_lease(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pair = await lone_active(store, DIRECT, ask(lease=5.0))
    await clock.live(6)
    begun, ended = await queued(
        store,
        "SELECT FROM holdfast.installation FOR UPDATE",
        store.recovery.begin("restored", 0),
        end(store, pair.claim, "lease"),
    )
    assert begun is True, "a deadlock must not hide that commits were lost"
    assert ended in (Stale(), RECOVERING)


async def test_a_claim_that_only_its_pod_knows_is_adopted(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    await store.recovery.begin("restored", 0)
    adoption = held_by(pool, "w-lost", (1 << 40) + 500)
    assert await store.recovery.adopt(adoption) == Done()
    assert await store.recovery.adopt(adoption) == Stale(), "known now"
    [claim] = await store.claims.get([adoption.claim])
    assert (claim.state, claim.worker, claim.fence, claim.tenant) == ("active", "w-lost", adoption.fence, "acme")
    assert claim.protected is False, "what its holder was sent is lost"
    assert claim.lease_until is not None
    assert claim.max_until is not None
    assert await kinds(store, claim=adoption.claim) == ["claim.adopted", "worker.adopted"]
    assert await broken(store) == []
    await store.recovery.end()
    assert await store.claims.renew(claim.id, adoption.fence)
    assert await store.workers.condemn("w-lost", None, "not wanted", counted=False) == Stale()


async def test_a_pods_newer_claim_replaces_the_claim_of_its_row(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 2)
    handed, running = await assigned(store, pool), await active(store, pool)
    await store.recovery.begin("restored", 0)
    for old in (handed, running):
        adoption = held_by(pool, old.worker, running.fence + 7)
        assert await store.recovery.adopt(adoption) == Done()
        assert await state_of(store, "claim", adoption.claim) == "active"
        assert await state_of(store, "worker", old.worker) == "held"
    assert await state_of(store, "claim", handed.claim) == "waiting", "it had not begun: it keeps its place"
    [claim] = await store.claims.get([running.claim])
    assert (claim.state, claim.outcome) == ("ended", "lost"), "its true end was in the lost commits"
    how = await store.db.value("SELECT how FROM holdfast.claim WHERE id = $1", claim.id)
    assert how == "forgotten", "not by a death: its worker lives, and serves another"
    assert await broken(store) == []


async def test_a_known_claim_found_running_is_active_and_its_secrets_are_erased(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    [one, two] = await make_warm(store, pool, 2)
    new = ask(secrets={"token": "hunter2"})
    pair = await assigned(store, pool, new)
    other = two if pair.worker == one else one
    await store.recovery.begin("restored", 0)
    # In the lost commits the claim was requeued, given to the other worker and acknowledged there.
    assert await store.recovery.adopt(held_by(pool, other, pair.fence + 1, claim=new.id)) == Done()
    [found] = await store.claims.get([new.id])
    assert (found.state, found.protected) == ("active", False), "P3: its holder gets what is certain"
    assert await state_of(store, "worker", pair.worker) == "retiring", "it may have got the claim"
    assert await broken(store) == []
    assert await store.db.value("SELECT count(*) FROM holdfast.claim_secret") == 0, "erased at acknowledge"
    assert (await kinds(store, worker=pair.worker))[-1] == "worker.retiring", "every change of state is in the history"


async def test_an_older_report_than_the_rows_is_stale(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    await make_warm(store, pool, 2)
    held = await active(store, pool, ask("a", lease=60.0))
    parked = await active(store, pool, ask("b", lease=60.0))
    assert await end(store, parked.claim) == Done()
    await store.recovery.begin("restored", 0)
    for pair in (held, parked):
        assert await store.recovery.adopt(held_by(pool, pair.worker, pair.fence - 1, tenant="c")) == Stale(), pair
    assert [w.tenant for w in (await store.workers.find(pool=None, state="parked", limit=9, cursor=None))[0]] == ["b"]


async def test_a_claim_that_ended_is_not_adopted_and_takes_nothing_with_it(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    await make_warm(store, pool, 2)
    ended = await active(store, pool)
    assert await end(store, ended.claim, "result") == Done()
    held = await active(store, pool)
    await store.recovery.begin("restored", 0)
    assert await store.recovery.adopt(held_by(pool, held.worker, held.fence + 1, claim=ended.claim)) == Stale()
    assert await state_of(store, "claim", held.claim) == "active", "stale: nothing happened"
    assert await broken(store) == []


async def test_recovery_waits_for_what_is_being_done_so_that_leave_to_act_holds_until_its_commit(store: PostgresStore) -> None:
    begun, acted = await queued(
        store,
        store.db.sql("SELECT @fn.acting(0)"),
        store.recovery.begin("restored", 0),
        store.workers.may_end_orphan("w-orphan"),
    )
    assert (begun, acted) == (True, RECOVERING), "a statement that comes after the beginning waits for it, and does nothing"


async def test_what_would_be_adopted_after_the_end_of_recovery_is_not(store: PostgresStore) -> None:
    pool = await make_pool(store, SESSION)
    await store.recovery.begin("restored", 0)
    ended = store.db.sql("SELECT @fn.end_recovery()")
    [late] = await queued(store, ended, store.recovery.adopt(held_by(pool, "w-lost", (1 << 40) + 500)))
    assert late == Stale()
