"""Events are found by kind and time, and read in both directions."""

import pytest

from holdfast.postgres.history import EVENTS, OF_RARE_KINDS
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_steps import JOB, SESSION, ask, end, lone_active, make_pool


async def reasons(store: PostgresStore, **query: object) -> list[str]:
    events, _ = await store.history.events(**({"limit": 100} | query))  # type: ignore[arg-type]
    return [event.reason for event in events]


async def test_pages_lead_back_from_the_newest_event_to_the_first(store: PostgresStore) -> None:
    for n in range(7):
        await store.history.note("test", str(n))
    page, _ = await store.history.events(limit=3, newest=True)
    pages = [[event.reason for event in page]]
    while page:
        page, after = await store.history.events(limit=3, before=page[0].cursor)
        pages.append([event.reason for event in page])
    assert pages == [["4", "5", "6"], ["1", "2", "3"], ["0"], []]
    assert (await reasons(store, after=after))[0] == "0", "after an empty page a reader can go forward again"


async def test_a_page_before_a_cursor_ends_where_a_reader_goes_on(store: PostgresStore) -> None:
    for n in range(5):
        await store.history.note("test", str(n))
    last, _ = await store.history.events(limit=2, newest=True)
    _, after = await store.history.events(limit=2, before=last[0].cursor)
    assert await reasons(store, after=after) == ["3", "4"]
    with pytest.raises(ValueError, match="cursor"):
        await store.history.events(limit=2, before="x")


async def test_events_are_found_by_when_they_happened(store: PostgresStore) -> None:
    clock = await Clock.of(store)
    times = []
    for n in range(4):
        times.append(await store.now())
        await store.history.note("test", str(n))
        await clock.jump(60)
    assert await reasons(store, since=times[2]) == ["2", "3"]
    assert await reasons(store, until=times[2]) == ["0", "1"]
    assert await reasons(store, since=times[1], until=times[3]) == ["1", "2"]
    assert await reasons(store, since=times[1], newest=True, limit=1) == ["3"]


async def test_events_are_found_by_their_kind_and_by_what_the_same_change_did_to_the_worker(store: PostgresStore) -> None:
    pair = await lone_active(store, SESSION, ask())
    await end(store, pair.claim)
    await store.pools.freeze("linux", "looking")

    async def kinds(*names: str) -> list[str]:
        events, _ = await store.history.events(limit=100, kinds=names)
        return [event.kind for event in events]

    assert await kinds("claim.created", "claim.ended") == ["claim.created", "claim.ended"]
    assert await kinds("worker.held") == ["claim.assigned"]
    assert await kinds("pool.frozen") == ["pool.frozen"]
    assert await kinds("pool.frozen", "claim.ended") == ["claim.ended", "pool.frozen"]
    assert await kinds("brake.tripped") == []


async def test_a_rare_kind_is_found_without_reading_the_whole_history(store: PostgresStore) -> None:
    await make_pool(store, JOB)
    await store.db.rows(
        "INSERT INTO holdfast.event (at, kind) SELECT holdfast.now(), 'claim.created' FROM generate_series(1, 20000) RETURNING 1"
    )
    await store.db.rows("ANALYZE holdfast.event")
    sql = EVENTS.replace("@where", OF_RARE_KINDS.format("$2")).replace("@order", "DESC")
    plan = "\n".join(row[0] for row in await store.db.rows(f"EXPLAIN {sql}", 100, ["brake.tripped"]))
    assert "(kind = ANY" in plan
    assert "event_default_kind_xid_id_idx" in plan
