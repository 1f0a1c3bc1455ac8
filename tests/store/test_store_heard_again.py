"""Who has just spoken is not silent, though its word is stored only a moment later."""

import msgspec

from holdfast.duties.actions import Suspect
from holdfast.duties.cases import SILENT
from holdfast.duties.converge import Converge
from holdfast.model.outcome import Done
from holdfast.model.pod import Stamp
from holdfast.postgres.store import PostgresStore
from store.makes import JOB, Clock, OnStore, active, make_pool, make_warm, word
from store.shelf import Shelf, passed, planned

SUSPECTS = "SELECT count(*) FROM holdfast.worker WHERE suspect_since IS NOT NULL"


def test_a_worker_that_has_just_spoken_again_is_not_taken_for_silent(on_store: OnStore) -> None:
    async def story(store: PostgresStore) -> None:
        clock = await Clock.of(store)
        pool = await make_pool(store, JOB)
        [worker] = await make_warm(store, pool)
        shelf = Shelf(pool, [worker])
        await store.workers.beat([word(worker)])
        await clock.live(int(SILENT) + 1)
        [(suspect, outcome)] = await passed(Converge(), store, shelf)
        assert (type(suspect), outcome) == (Suspect, Done())
        await store.workers.report(word(worker), fresh=True)  # what its poll does; its heartbeat is stored within a second
        assert await store.db.value(SUSPECTS) == 0
        assert await planned(Converge(), store, shelf) == [], "it has just spoken"

    on_store(story)


def test_a_job_whose_agent_has_left_is_not_suspect_after_recovery(on_store: OnStore) -> None:
    """Decision 0015: from the agent's end on nobody beats for the worker, and its silence is not suspect."""

    async def story(store: PostgresStore) -> None:
        clock = await Clock.of(store)
        pool = await make_pool(store, JOB)
        await make_warm(store, pool)
        pair = await active(store, pool)
        shelf = Shelf(pool, [pair.worker])
        await shelf.protect(pair.worker, f"uid-{pair.worker}", Stamp("acme", pair.claim, pair.fence))
        shelf.kept[pair.worker] = msgspec.structs.replace(shelf.kept[pair.worker], left_to=pair.fence)
        await store.recovery.begin("restored", 0)
        await clock.live(31)
        await passed(Converge(), store, shelf)
        assert not (await store.recovery.state()).recovering
        await passed(Converge(), store, shelf)
        assert await store.db.value(SUSPECTS) == 0

    on_store(story)
