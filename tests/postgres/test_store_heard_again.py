"""A worker whose agent has just reported is not silent, although its heartbeat is stored a moment later."""

import msgspec

from holdfast.duties.actions import Suspect
from holdfast.duties.cases import SILENT
from holdfast.duties.converge import Converge
from holdfast.model.effect import Done
from holdfast.model.pod import Stamp
from holdfast.postgres.store import PostgresStore
from postgres.recorded_cluster import RecordedCluster, passed, planned
from postgres.store_clock import Clock
from postgres.store_steps import JOB, active, agent_report, make_pool, make_warm

SUSPECTS = "SELECT count(*) FROM holdfast.worker WHERE suspect_since IS NOT NULL"


async def test_a_worker_that_has_just_reported_again_does_not_count_as_silent(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    [worker] = await make_warm(store, pool)
    cluster = RecordedCluster(pool, [worker])
    await store.workers.beat([agent_report(worker)])
    await clock.live(int(SILENT) + 1)
    [(suspect, outcome)] = await passed(Converge(), store, cluster)
    assert (type(suspect), outcome) == (Suspect, Done())
    await store.workers.report(agent_report(worker), fresh=True)  # as a poll does; the heartbeat is stored within a second
    assert await store.db.value(SUSPECTS) == 0
    assert await planned(Converge(), store, cluster) == [], "it has just reported"


async def test_a_job_whose_agent_has_left_is_not_suspect_after_recovery(store: PostgresStore) -> None:
    """Decision 0015: after the agent's end no heartbeats come for the worker, and its silence is not suspect."""

    clock = await Clock.of(store)
    pool = await make_pool(store, JOB)
    await make_warm(store, pool)
    pair = await active(store, pool)
    cluster = RecordedCluster(pool, [pair.worker])
    await cluster.protect(pair.worker, f"uid-{pair.worker}", Stamp("acme", pair.claim, pair.fence))
    cluster.kept[pair.worker] = msgspec.structs.replace(cluster.kept[pair.worker], left_to=pair.fence)
    await store.recovery.begin("restored", 0)
    await clock.live(31)
    await passed(Converge(), store, cluster)
    assert not (await store.recovery.state()).recovering
    await passed(Converge(), store, cluster)
    assert await store.db.value(SUSPECTS) == 0
