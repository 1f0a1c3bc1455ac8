"""A restored row shows a worker as starting, and its pod may serve a claim of the lost commits: it is left alone (P1, P2)."""

from typing import Literal

import msgspec
import pytest

from holdfast.duties.actions import Action, Condemn, DeletePod, Warm
from holdfast.duties.converge import Converge
from holdfast.duties.scale import Scale
from holdfast.model.effect import Done, Effect
from holdfast.model.pod import Stamp
from holdfast.model.pool import Pool, PoolSpec, ProtectionSpec
from holdfast.postgres.store import PostgresStore
from holdfast.recovery.compare import LISTEN
from postgres.recorded_cluster import RecordedCluster, passed
from postgres.store_clock import Clock
from postgres.store_steps import BARE, DIRECT, JOB, SESSION, agent_report, ask, make_pool, match, name
from postgres.store_tables import state_of
from waiting import becomes

Mode = Literal["off", "always"]
UNSTAMPED = pytest.mark.parametrize("mode", ["off", "always"])  # in these modes a pod has no stamp that could be adopted


async def make_starting(store: PostgresStore, pool: Pool, *, known_pod: bool = True) -> str:
    worker = name("w")
    await store.workers.spawn(pool.id, [worker], 1000, 1000)
    if known_pod:
        await store.workers.spawned(worker, f"uid-{worker}")
    return worker


async def restored(
    store: PostgresStore, clock: Clock, spec: PoolSpec, mode: Mode, **pod: object
) -> tuple[Pool, str, RecordedCluster]:
    """The backup shows a worker as starting. Its pod is as described, and the recovery has ended without a report."""
    pool = await make_pool(store, msgspec.structs.replace(spec, protection=ProtectionSpec(mode=mode), start_timeout="60s"))
    worker = await make_starting(store, pool)
    cluster = RecordedCluster(pool, [worker])
    shown = {"ready": True, "protected": mode == "always"} | pod
    cluster.kept[worker] = msgspec.structs.replace(cluster.kept[worker], **shown)
    await store.recovery.begin("restored", 0)
    await clock.live(int(LISTEN) + 2)
    await passed(Converge(), store, cluster)
    assert not (await store.recovery.state()).recovering
    return pool, worker, cluster


def ends(done: list[tuple[Action, Effect]]) -> list[Action]:
    return [action for action, effect in done if isinstance(action, Condemn | DeletePod) and effect == Done()]


@UNSTAMPED
async def test_a_ready_pod_without_an_agent_is_not_given_to_a_second_tenant(store: PostgresStore, mode: Mode) -> None:
    clock = await Clock.of(store)
    pool, worker, cluster = await restored(store, clock, BARE, mode)
    await passed(Converge(), store, cluster)
    assert await match(store, pool, ask("rival")) == []
    row = await store.workers.get(worker)
    assert row is not None
    assert await store.workers.warm(worker, row.version, None) != Done(), "the statement checks it as well"
    [listed] = await store.recovery.unconfirmed()
    assert (listed.worker, listed.state) == (worker, "spawning"), "an operator can decide"
    assert await store.recovery.confirm(worker, "it is idle") == Done()
    done = await passed(Converge(), store, cluster)
    assert [effect for action, effect in done if isinstance(action, Warm)] == [Done()]

    async def given() -> bool:
        return await state_of(store, "worker", worker) == "held"

    await becomes(given, what="the waiting claim got the worker")  # the pass has begun to match, in the background


async def test_a_starting_worker_that_an_operator_gives_up_retires(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    _, worker, _ = await restored(store, clock, BARE, "off")
    assert await store.recovery.give_up(worker, "it is broken") == Done()
    assert await state_of(store, "worker", worker) == "retiring"


@UNSTAMPED
async def test_a_job_whose_agent_has_exited_does_not_end_at_its_start_timeout(store: PostgresStore, mode: Mode) -> None:
    clock = await Clock.of(store)
    fence = (await store.recovery.state()).last_fence + 7
    _, worker, cluster = await restored(store, clock, JOB, mode, left_to=fence)
    await clock.live(61)
    assert ends([*await passed(Converge(), store, cluster), *await passed(Converge(), store, cluster)]) == []
    assert await state_of(store, "worker", worker) == "spawning"


async def test_a_worker_whose_agent_is_cut_off_does_not_end_at_its_start_timeout(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool, worker, cluster = await restored(store, clock, SESSION, "always")
    await clock.live(61)
    assert ends([*await passed(Converge(), store, cluster), *await passed(Converge(), store, cluster)]) == []
    assert await store.workers.due(no_pod=5.0, retiring=2.0, silent=60.0) == [], "it would be in front of all others forever"
    # When the agent is back and idle, the worker is usable.
    await store.workers.report(agent_report(worker))
    assert [pair.worker for pair in await match(store, pool, ask(lease=60.0))] == [worker]


@pytest.mark.parametrize("change", ["smaller", "rolled out", "deleted"])
async def test_scaling_leaves_such_a_worker_alone_and_replaces_it(store: PostgresStore, change: str) -> None:
    clock = await Clock.of(store)
    pool, worker, cluster = await restored(store, clock, JOB, "always", left_to=None)
    [load] = await store.pools.loads()
    assert (load.spawning, load.unusable) == (0, 1), "it is no capacity"
    assert len(await store.workers.spawn(pool.id, [name("w")], 1, 1)) == 1, "it takes the place of no other start"
    if change == "deleted":
        await store.pools.delete(pool.name)
    else:
        spec = msgspec.structs.replace(pool.spec, warm=0, max=1)
        worker_spec = msgspec.structs.replace(spec.worker, activate=["new"])
        new = msgspec.structs.replace(spec, worker=worker_spec) if change == "rolled out" else spec
        await store.pools.put(pool.id, pool.name, new, "api")
    condemned = [action.worker for action in ends(await passed(Scale(), store, cluster)) if isinstance(action, Condemn)]
    assert worker not in condemned
    [row] = await store.workers.rows([worker])
    assert await store.workers.condemn(worker, row.worker.version, "not wanted", counted=False) != Done()


async def test_a_pod_that_has_not_run_yet_is_confirmed_by_its_phase(store: PostgresStore) -> None:
    """Otherwise the pod could neither become warm nor end at its start timeout until an operator decided."""
    clock = await Clock.of(store)
    pool, worker, cluster = await restored(store, clock, BARE, "off", phase="pending", ready=False)
    await passed(Converge(), store, cluster)
    cluster.kept[worker] = msgspec.structs.replace(cluster.kept[worker], phase="running", ready=True)
    await passed(Converge(), store, cluster)
    assert [pair.worker for pair in await match(store, pool, ask())] == [worker]


async def test_a_start_without_a_pod_is_closed_after_a_recovery(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, DIRECT)
    worker, other = await make_starting(store, pool, known_pod=False), await make_starting(store, pool)
    cluster = RecordedCluster(pool, [other])
    await store.recovery.begin("restored", 0)
    await clock.live(int(LISTEN) + 2)
    converge = Converge()
    for _ in range(2):
        await passed(converge, store, cluster)
    assert await state_of(store, "worker", worker) == "retiring", "its pod is provably absent"


@pytest.mark.parametrize("spec", [BARE, JOB], ids=["without an agent", "with an agent"])
async def test_a_stamp_on_a_starting_pod_begins_a_recovery(store: PostgresStore, spec: PoolSpec) -> None:
    pool = await make_pool(store, spec)
    worker = await make_starting(store, pool)
    cluster = RecordedCluster(pool, [worker])
    # The sequence of fences survived the loss, so the fence alone does not show it.
    await store.db.rows("SELECT nextval('holdfast.fence') FROM generate_series(1, 32)")
    fence = (await store.recovery.state()).last_fence - 20
    await cluster.protect(worker, f"uid-{worker}", Stamp("acme", "c-lost", fence))
    assert await store.recovery.compare_stamps(list(cluster.kept.values()))
    assert (await store.recovery.state()).recovering


async def test_a_stamped_pod_that_is_starting_is_not_made_warm(store: PostgresStore) -> None:
    pool = await make_pool(store, BARE)
    worker = await make_starting(store, pool)
    cluster = RecordedCluster(pool, [worker])
    cluster.kept[worker] = msgspec.structs.replace(cluster.kept[worker], ready=True)
    await store.db.rows("SELECT nextval('holdfast.fence') FROM generate_series(1, 32)")
    fence = (await store.recovery.state()).last_fence - 20
    await cluster.protect(worker, f"uid-{worker}", Stamp("acme", "c-lost", fence))
    for _ in range(2):
        await passed(Converge(), store, cluster)
    assert await state_of(store, "worker", worker) == "spawning"
    assert await match(store, pool, ask("rival")) == []
