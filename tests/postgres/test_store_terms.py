"""Terms: of many replicas that want a duty, one gets it, and a slow replica takes nothing from a faster one (P6)."""

import asyncio

from holdfast.ports.store import DutyReport
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_locks import another, replicas, until_waiting_or_done, waiting


async def join(store: PostgresStore, replica: str) -> None:
    await store.fleet.join(replica, 1, "host", "http://here", "0")


def report(duty: str, number: int, *, progressed: bool = True) -> DutyReport:
    return DutyReport(
        duty=duty, number=number, progressed=progressed, succeeded=progressed, seconds=0.1, actions=1, skips=0, failure=None
    )


async def test_of_many_replicas_that_take_a_term_one_has_it(store: PostgresStore) -> None:
    async with replicas(store, 2) as others:
        peers = [store, *others] * 3
        for turn in range(1, 16):
            await store.db.rows("UPDATE holdfast.term SET until = 'epoch', renewed_at = 'epoch', progress_at = NULL")
            taken = await asyncio.gather(*(peer.fleet.take_term("scale", f"r-{n}", 10.0, 10.0) for n, peer in enumerate(peers)))
            assert [number for number in taken if number is not None] == [turn]
            holder = await store.db.value("SELECT holder FROM holdfast.term WHERE duty = 'scale'")
            assert holder == f"r-{taken.index(turn)}"


async def test_a_replica_that_paused_after_reading_the_clock_does_not_take_a_term_that_was_taken_meanwhile(
    store: PostgresStore,
) -> None:
    # The slow replica's function reads the clock and then pauses, as may happen on a busy server.
    await store.db.rows(
        """CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
           DECLARE t timestamptz := clock_timestamp();
           BEGIN
               IF current_setting('application_name') = 'slow' THEN
                   PERFORM pg_advisory_xact_lock_shared(42);
               END IF;
               RETURN t;
           END $$"""
    )
    async with replicas(store, 1, "slow") as (slow,), another(store) as holder:
        await holder.execute("SELECT pg_advisory_lock(42)")
        taking = asyncio.create_task(slow.fleet.take_term("scale", "r-slow", 10.0, 10.0))
        await waiting(store, 1, taking)
        quick = asyncio.create_task(store.fleet.take_term("scale", "r-fast", 10.0, 10.0))
        # Either it takes the term, or it waits for the lock of the slow one. Both are correct.
        await until_waiting_or_done(store, 2, quick)
        await holder.execute("SELECT pg_advisory_unlock(42)")
        taken = {"r-slow": await taking, "r-fast": await quick}
    [(winner, number)] = [(replica, number) for replica, number in taken.items() if number is not None]
    assert number == 1, "a term that was taken a moment ago has not run out"
    assert await store.db.value("SELECT holder FROM holdfast.term WHERE duty = 'scale'") == winner


async def test_a_term_goes_on_while_its_holder_beats_and_progresses(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    number = await store.fleet.take_term("scale", "r-1", 10.0, 10.0)
    assert number == 1
    for _ in range(20):
        await clock.jump(1)
        beat = await store.fleet.beat("r-1", 1.0, 10.0, [report("scale", number)])
        [term] = [term for term in beat.terms if term.duty == "scale"]
        assert (term.holder, term.number, term.expired) == ("r-1", 1, False)
        assert await store.fleet.take_term("scale", "r-2", 10.0, 10.0) is None


async def test_a_holder_that_lives_without_progress_loses_its_term(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    assert await store.fleet.take_term("scale", "r-1", 10.0, 10.0) == 1
    for _ in range(10):
        await clock.jump(1)
        await store.fleet.beat("r-1", 1.0, 10.0, [report("scale", 1, progressed=False)])
        assert await store.fleet.take_term("scale", "r-2", 10.0, 10.0) is None
    await clock.jump(1)
    assert await store.fleet.take_term("scale", "r-2", 10.0, 10.0) == 2
    # A report of the old holder does not count as progress of the new holder.
    await clock.jump(9)
    beat = await store.fleet.beat("r-1", 1.0, 10.0, [report("scale", 1)])
    [term] = [term for term in beat.terms if term.duty == "scale"]
    assert (term.holder, term.number, term.idle) == ("r-2", 2, 9.0)
    await clock.jump(1.5)
    assert await store.fleet.take_term("scale", "r-3", 10.0, 10.0) == 3, "the new holder's own term ran out"


async def test_a_replica_that_leaves_frees_its_terms_at_once(store: PostgresStore) -> None:
    await join(store, "r-1")
    assert await store.fleet.take_term("scale", "r-1", 10.0, 10.0) == 1
    await store.fleet.leave("r-1")
    assert await store.fleet.take_term("scale", "r-2", 10.0, 10.0) == 2


async def test_a_replica_whose_joining_was_stored_without_its_knowing_joins_again(store: PostgresStore) -> None:
    await join(store, "r-1")
    await join(store, "r-1")  # the first answer was lost; a replica that could not repeat this would never beat again
    assert await store.db.value("SELECT count(*) FROM holdfast.replica WHERE id = 'r-1'") == 1
