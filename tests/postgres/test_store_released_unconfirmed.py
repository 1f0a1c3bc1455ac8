"""A holder that releases a claim after lost commits does not end what the worker's agent may do since (P2, P7)."""

from typing import Any

import msgspec
import pytest

from holdfast.duties.actions import DeletePod
from holdfast.duties.converge import Converge
from holdfast.model.effect import Done, Skipped, Stale
from holdfast.model.pool import Pool
from holdfast.ports.recovery import Adoption
from holdfast.ports.store import Pair
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, applier, passed
from postgres.store_clock import Clock
from postgres.store_steps import JOB, SESSION, active, agent_report, ask, assigned, deliver, end, make_pool, make_warm, name
from postgres.store_tables import kinds, state_of


class Restored:
    """A worker with a claim in its row. The database has lost commits, and the worker's agent is silent."""

    def __init__(self, store: PostgresStore, clock: Clock, pool: Pool, pair: Pair, cluster: RecordedCluster) -> None:
        self.store, self.clock, self.pool, self.pair, self.cluster = store, clock, pool, pair, cluster

    @classmethod
    async def of(cls, store: PostgresStore, spec: Any = SESSION) -> "Restored":
        clock = await Clock.of(store)
        pool = await make_pool(store, spec)
        await make_warm(store, pool)
        pair = await active(store, pool, ask("acme"))
        return cls(store, clock, pool, pair, RecordedCluster(pool, [pair.worker]))

    async def recover(self) -> None:
        await self.store.recovery.begin("restored", 0)
        assert await self.store.recovery.end() == Done()
        await self.clock.live(2)

    async def report(self, **reported: Any) -> None:
        """Stores what the agent reports now, as a poll and the next flush do."""
        report = agent_report(self.pair.worker, **reported)
        await self.store.workers.report(report)
        await self.store.workers.beat([report])

    async def pod_is_kept(self) -> bool:
        """Runs some passes of `converge` with time between them. Returns whether the worker still has its pod."""
        for _ in range(3):
            await passed(Converge(), self.store, self.cluster)
            await self.clock.live(3)
        return self.pair.worker in self.cluster.kept


@pytest.mark.parametrize("how", ["release", "cancel", "force"])
@pytest.mark.parametrize("spec", [SESSION, JOB], ids=["session", "job"])
async def test_a_holder_that_releases_its_claim_does_not_kill_the_later_claim_of_a_silent_agent(
    store: PostgresStore, spec: Any, how: str
) -> None:
    # Given an agent that is cut off. In the lost commits its claim ended, and it got the tenant's next one.
    here = await Restored.of(store, spec)
    await here.recover()
    # When the holder of the claim in its row ends that claim
    assert await end(store, here.pair.claim, how) == Done()
    # Then the worker's pod stays until its agent is back, and what the agent holds is adopted
    assert await state_of(store, "worker", here.pair.worker) == "retiring"
    assert await here.pod_is_kept()
    later = name("c")
    await here.report(doing="running", claim=later, fence=here.pair.fence + 1, tenant="acme")
    assert await here.pod_is_kept()
    await here.report(doing="running", claim=later, fence=here.pair.fence + 1, tenant="acme")
    assert await here.pod_is_kept()
    [claim] = await store.claims.get([later])
    assert (claim.state, claim.worker) == ("active", here.pair.worker)


@pytest.mark.parametrize("loss_noticed", [True, False], ids=["during the recovery", "before the loss was noticed"])
async def test_a_release_while_the_database_shows_old_rows_does_not_kill_a_later_claim(
    store: PostgresStore, loss_noticed: bool
) -> None:
    here = await Restored.of(store, JOB)
    if loss_noticed:
        await store.recovery.begin("restored", 0)
    assert await end(store, here.pair.claim, "release") == Done()
    if not loss_noticed:
        await store.recovery.begin("restored", 0)
    assert await store.recovery.end() == Done()
    assert await here.pod_is_kept()


@pytest.mark.parametrize("claim_reported", [False, True], ids=["idle", "still holds the released claim"])
async def test_the_pod_is_deleted_when_the_agent_reports_that_it_holds_no_other_claim(
    store: PostgresStore, claim_reported: bool
) -> None:
    here = await Restored.of(store)
    await here.recover()
    await end(store, here.pair.claim, "release")
    assert await here.pod_is_kept()
    held = {"doing": "running", "claim": here.pair.claim, "fence": here.pair.fence, "tenant": "acme"}
    await here.report(**(held if claim_reported else {}))
    assert not await here.pod_is_kept()


async def test_the_pod_of_a_job_whose_agent_exited_for_the_released_claim_is_deleted(store: PostgresStore) -> None:
    here = await Restored.of(store, JOB)
    left = msgspec.structs.replace(here.cluster.kept[here.pair.worker], left_to=here.pair.fence)
    here.cluster.kept[here.pair.worker] = left
    await here.recover()
    await end(store, here.pair.claim, "cancel")
    assert not await here.pod_is_kept()


@pytest.mark.parametrize("decision", ["confirm", "give_up"])
async def test_an_operator_decides_about_a_released_worker_whose_agent_stays_silent(store: PostgresStore, decision: str) -> None:
    here = await Restored.of(store)
    await here.recover()
    await end(store, here.pair.claim, "release")
    [left] = await store.recovery.unconfirmed()
    assert (left.worker, left.state, left.claim, left.tenant) == (here.pair.worker, "retiring", None, "acme")
    decide = getattr(store.recovery, decision)
    assert await decide(here.pair.worker, "its machine is gone") == Done()
    assert await decide(here.pair.worker, "its machine is gone") == Stale()
    assert await state_of(store, "worker", here.pair.worker) == "retiring"
    assert not await here.pod_is_kept()


@pytest.mark.parametrize("decision", ["confirm", "give_up"])
async def test_neither_decision_ends_a_released_worker_whose_agent_reports_a_claim(store: PostgresStore, decision: str) -> None:
    here = await Restored.of(store)
    await here.recover()
    await end(store, here.pair.claim, "release")
    await here.report(doing="running", claim=name("c"), fence=here.pair.fence + 1, tenant="acme")
    assert await getattr(store.recovery, decision)(here.pair.worker, "looked at it") == Skipped("busy")


async def test_a_worker_that_its_agent_gives_up_is_not_unconfirmed_any_more(store: PostgresStore) -> None:
    here = await Restored.of(store, JOB)
    await make_warm(store, here.pool, 2)
    refused = await assigned(store, here.pool, ask("acme"))
    await deliver(store, refused)
    [free] = [w.id for w in (await store.workers.find(pool=None, state="warm", limit=9, cursor=None))[0]]
    await here.recover()
    # When one agent reports a result, one refuses its claim, and one gives up its free worker
    assert await end(store, here.pair.claim, "result", states=("active",)) == Done()
    assert await store.claims.requeue(refused.claim, refused.fence, reason="its worker could not be activated") == Done()
    assert await store.workers.condemn(free, None, "its agent gave up", counted=False) == Done()
    # Then nobody has to decide about them
    for worker in (here.pair.worker, refused.worker, free):
        row = await store.workers.get(worker)
        assert row is not None
        assert (row.state, row.confirmed) == ("retiring", True)


async def test_a_deletion_that_was_planned_before_the_recovery_ended_is_not_carried_out(store: PostgresStore) -> None:
    here = await Restored.of(store)
    await end(store, here.pair.claim, "cancel")
    await here.recover()
    delete = DeletePod(here.pair.worker, f"uid-{here.pair.worker}", 30.0)
    assert await applier(store, here.cluster)(delete) == Stale()
    assert here.pair.worker in here.cluster.kept


async def test_a_worker_whose_claim_was_found_on_another_one_keeps_its_pod_until_its_agent_reports(store: PostgresStore) -> None:
    # Given a claim that moved to another worker in the lost commits, while its first worker got a later claim
    here = await Restored.of(store)
    [other] = await make_warm(store, here.pool)
    here.cluster = RecordedCluster(here.pool, [here.pair.worker, other])
    await store.recovery.begin("restored", 0)
    about = {"pool": here.pool.name, "pool_id": here.pool.id, "revision": here.pool.revision}
    found = Adoption(worker=other, uid=f"uid-{other}", claim=here.pair.claim, tenant="acme", fence=here.pair.fence + 5, **about)
    assert await store.recovery.adopt(found) == Done()
    assert await store.recovery.end() == Done()
    await here.clock.live(2)
    # Then the first worker is not ended before its own agent has reported
    assert "worker.retiring" in await kinds(store, worker=here.pair.worker)
    assert await here.pod_is_kept()
    await here.report(served_fence=here.pair.fence)
    assert not await here.pod_is_kept()
