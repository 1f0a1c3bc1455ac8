"""Pruning removes what is old and over, to the second, and nothing that something living still needs."""

from typing import Any

import pytest

from holdfast.model.effect import Done
from holdfast.model.tenant import TenantSpec
from holdfast.postgres import rendering
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_clock import Clock
from postgres.store_rows import NOW, Sql, ago, heard_ago, insert
from postgres.store_steps import JOB, ask, end, make_pool, match
from postgres.store_tables import column

HOUR, DAY = 3600, 86_400
ENDED: dict[str, Any] = {"state": "ended", "outcome": "lost"}


async def left(store: PostgresStore, table: str, key: str = "id") -> list[str]:
    return await column(store, f"SELECT {key} FROM holdfast.{table} ORDER BY 1")


async def test_a_key_is_free_a_day_after_its_claims_end(store: PostgresStore) -> None:
    await apart(store)
    for n, seconds in enumerate((DAY - 1, DAY, DAY + 1)):
        await insert(store, "claim", id=f"c-{n}", key=f"k-{n}", key_live=True, ended_at=ago(seconds), **ENDED)
    await insert(store, "claim", id="live", key="k", key_live=True, ended_at=ago(9 * DAY))
    assert (await store.history.prune(7))["keys"] == 1
    assert await column(store, "SELECT id FROM holdfast.claim WHERE key_live ORDER BY id") == ["c-0", "c-1", "live"]


async def test_a_jump_of_the_databases_clock_frees_no_key_and_removes_no_output_or_claim(store: PostgresStore) -> None:
    pool = await make_pool(store, JOB)
    clock = await Clock.of(store)
    new = ask(key="nightly")
    await match(store, pool, new)
    assert await end(store, new.id, "cancel") == Done()
    # When the clock jumps ahead by a month, and a replica beats as before
    await clock.jump(30 * DAY)
    await clock.beat(1.0)
    pruned = await store.history.prune(7)
    # Then the same request still gets its claim
    assert (pruned["keys"], pruned["claims"]) == (0, 0)
    again = ask(key="nightly")
    assert (await store.claims.match(pool.id, [again], 1)).answers == {again.id: ("same", new.id)}
    assert await store.history.live_outputs() == {new.id}


async def test_a_key_is_free_and_an_output_is_removed_after_a_day_of_heard_time(store: PostgresStore) -> None:
    await apart(store)
    for n, seconds in enumerate((DAY - 1, DAY, DAY + 1)):
        about = {"ended_at": ago(9 * DAY), "ended_heard": heard_ago(seconds)}
        await insert(store, "claim", id=f"c-{n}", key=f"k-{n}", key_live=True, **about, **ENDED)
    assert await store.history.live_outputs() == {"c-0"}
    assert (await store.history.prune(7))["keys"] == 1
    assert await column(store, "SELECT id FROM holdfast.claim WHERE key_live ORDER BY id") == ["c-0", "c-1"]


async def test_an_ended_claim_is_kept_for_the_days_of_the_history_in_heard_time(store: PostgresStore) -> None:
    await apart(store)
    for n, seconds in enumerate((7 * DAY - 1, 7 * DAY, 7 * DAY + 1)):
        await insert(store, "claim", id=f"c-{n}", ended_at=ago(9 * DAY), ended_heard=heard_ago(seconds), **ENDED)
    assert (await store.history.prune(7))["claims"] == 1
    assert await left(store, "claim") == ["c-0", "c-1"]


async def test_an_ended_claim_is_kept_for_the_days_of_the_history_and_while_its_key_is(store: PostgresStore) -> None:
    await apart(store)
    for n, seconds in enumerate((7 * DAY - 1, 7 * DAY, 7 * DAY + 1)):
        await insert(store, "claim", id=f"c-{n}", ended_at=ago(seconds), **ENDED)
    await insert(store, "claim", id="live", ended_at=ago(9 * DAY))
    # The history is shorter than the key's day here, so only the key keeps the claim.
    await insert(store, "claim", id="keyed", key="k", key_live=True, ended_at=ago(DAY - 1), **ENDED)
    assert (await store.history.prune(7))["claims"] == 1
    assert await left(store, "claim") == ["c-0", "c-1", "keyed", "live"]
    assert (await store.history.prune(0))["claims"] == 2
    assert await left(store, "claim") == ["keyed", "live"]


async def test_a_worker_that_is_gone_is_kept_for_the_days_of_the_history(store: PostgresStore) -> None:
    await apart(store)
    for n, seconds in enumerate((7 * DAY - 1, 7 * DAY, 7 * DAY + 1)):
        await insert(store, "worker", id=f"w-{n}", state="gone", state_since=ago(seconds))
    await insert(store, "worker", id="old", state="retiring", state_since=ago(99 * DAY))
    assert (await store.history.prune(7))["workers"] == 1
    assert await left(store, "worker") == ["old", "w-0", "w-1"]


async def test_a_heartbeat_is_kept_while_its_worker_lives_or_it_is_fresh(store: PostgresStore) -> None:
    await apart(store)
    await insert(store, "worker", id="lives", state="retiring")
    await insert(store, "worker", id="gone", state="gone")
    for worker, seconds in {"lives": 700, "gone": 601, "unknown-1": 601, "unknown-2": 600, "unknown-3": 1}.items():
        await insert(store, "heartbeat", worker_id=worker, beat_heard=heard_ago(seconds))
    assert (await store.history.prune(7))["heartbeats"] == 2
    assert await left(store, "heartbeat", "worker_id") == ["lives", "unknown-2", "unknown-3"]


async def test_replicas_endings_and_tokens_go_when_nothing_reads_them_any_more(store: PostgresStore) -> None:
    await apart(store)
    for n, more in enumerate((-1, 0, 1)):
        await insert(store, "replica", id=f"r-{n}", seen_at=ago(DAY + more))
        await insert(store, "ending", id=f"e-{n}", at=ago(HOUR + more))
        await insert(store, "token", id=f"t-{n}", hash=f"h-{n}", expires_at=ago(DAY + more))
    await insert(store, "token", id="forever", hash="h", expires_at=None)
    pruned = await store.history.prune(7)
    assert (pruned["replicas"], pruned["endings"], pruned["tokens"]) == (1, 1, 1)
    assert await left(store, "replica") == ["r-0", "r-1"]
    assert await left(store, "ending") == ["e-0", "e-1"]
    assert await left(store, "token") == ["forever", "t-0", "t-1"]


@pytest.mark.parametrize(
    ("pool", "kept"),
    [
        (f"state = 'gone', updated_at = {ago(7 * DAY + 1)}", False), (f"state = 'gone', updated_at = {ago(7 * DAY)}", True),
        (f"state = 'draining', updated_at = {ago(9 * DAY)}", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("row", ["", "claim", "worker", "another pool's"])
async def test_a_pool_that_is_gone_is_kept_while_a_row_names_it(store: PostgresStore, pool: str, kept: bool, row: str) -> None:
    await apart(store)
    await store.pools.put("p-1", "linux", JOB, "api")
    await store.pools.put("p-2", "other", JOB, "api")
    if row:
        its = "p-2" if "another" in row else "p-1"
        if row != "worker":
            await insert(store, "claim", id="c-1", pool_id=its, ended_at=NOW, **ENDED)
        if row != "claim":
            await insert(store, "worker", id="w-1", pool_id=its, state="gone")
    await store.db.rows(f"UPDATE holdfast.pool SET {pool} WHERE id = 'p-1'")
    kept = kept or row in ("claim", "worker")
    assert (await store.history.prune(7))["pools"] == (0 if kept else 1)
    assert await left(store, "pool") == (["p-1", "p-2"] if kept else ["p-2"])


async def test_the_shares_of_a_pool_go_with_it(store: PostgresStore) -> None:
    await apart(store)
    for pool, state in {"p-1": "live", "p-2": "draining", "p-3": "gone"}.items():
        await store.pools.put(pool, f"pool-{pool}", JOB, "api")
        await store.db.rows("UPDATE holdfast.pool SET state = $2 WHERE id = $1", pool, state)
        await insert(store, "fair", pool_id=pool)
    await insert(store, "fair", pool_id="p-9")
    assert (await store.history.prune(7))["shares"] == 2
    assert await left(store, "fair", "pool_id") == ["p-1", "p-2"]


async def test_outputs_are_kept_while_their_claim_lives_and_a_day_after(store: PostgresStore) -> None:
    await apart(store)
    for n, seconds in enumerate((DAY - 1, DAY, DAY + 1)):
        await insert(store, "claim", id=f"c-{n}", ended_at=ago(seconds), **ENDED)
    await insert(store, "claim", id="live")
    assert await store.history.live_outputs() == {"live", "c-0"}


@pytest.mark.parametrize("days", [1, 3])
async def test_the_partitions_of_the_next_three_days_exist_and_old_ones_are_dropped(store: PostgresStore, days: int) -> None:
    await apart(store)  # the first of January 2030
    for day in ("20291225", "20291228", "20291229", "20291231"):
        begin = Sql(f"timestamptz '{day} 00:00+00'")
        await store.db.rows(
            f"""CREATE TABLE holdfast.event_{day} PARTITION OF holdfast.event
                FOR VALUES FROM ('{day} 00:00+00') TO ('{day} 24:00+00')"""
        )
        await store.db.rows(f"INSERT INTO holdfast.event (at, kind) VALUES ({begin}, 'test')")
    dropped = {1: 3, 3: 2}[days]
    assert (await store.history.prune(days))["event_days"] == dropped
    tables = await column(store, "SELECT relname FROM pg_class WHERE relname ~ '^event_[0-9]{8}$' ORDER BY 1")
    old = ["20291225", "20291228", "20291229", "20291231"][dropped:]
    assert tables == [f"event_{day}" for day in [*old, "20300102", "20300103", "20300104"]]
    bounds = await column(store, "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'event_20300102'")
    assert bounds == ["FOR VALUES FROM ('2030-01-02 00:00:00+00') TO ('2030-01-03 00:00:00+00')"]


async def test_events_without_a_partition_of_their_own_are_kept_as_long(store: PostgresStore) -> None:
    await apart(store)
    await store.db.rows("DELETE FROM holdfast.event")
    for kind, seconds in {"young": 3 * DAY, "old": 3 * DAY + 1}.items():
        await store.db.rows(f"INSERT INTO holdfast.event (at, kind) VALUES ({ago(seconds)}, '{kind}')")
    assert (await store.history.prune(3))["event_days"] == 0
    assert await column(store, "SELECT kind FROM holdfast.event_default") == ["young"]


async def test_a_note_is_an_event_about_what_it_names(store: PostgresStore) -> None:
    await apart(store)
    async with await Changes.of(store) as changes:
        await store.history.note("test", "why", pool_id="p-1", worker="w-1", claim="c-1", tenant="acme")
        assert await changes.seen() == {"events": ['100 test p-1 w-1 c-1 acme "why"']}


async def test_a_tenant_with_very_many_ended_claims_keeps_the_newest_after_a_day(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rendering.NUMBERS, "KEPT_CLAIMS", 2)
    monkeypatch.setattr(store.db, "_rendered", {})
    await apart(store)
    for n in range(5):
        about = {"created_at": ago(3 * DAY + n), "ended_at": ago(2 * DAY), "ended_heard": heard_ago(DAY + 1)}
        await insert(store, "claim", id=f"c-{n}", **about, **ENDED)
        await insert(store, "claim", id=f"young-{n}", tenant="young", **about | {"ended_heard": heard_ago(DAY - 1)}, **ENDED)
    await insert(store, "claim", id="key", key="k", key_live=True, created_at=ago(4 * DAY), ended_at=ago(DAY / 2), **ENDED)
    await insert(store, "claim", id="other", tenant="other", created_at=ago(4 * DAY), ended_at=ago(2 * DAY), **ENDED)
    assert (await store.history.prune(7))["many_claims"] == 3
    assert await left(store, "claim") == ["c-0", "c-1", "key", "other", *(f"young-{n}" for n in range(5))]


async def test_the_oldest_outputs_of_ended_claims_are_too_much_for_their_tenant(store: PostgresStore) -> None:
    await apart(store)
    await store.pools.put_tenant("acme", TenantSpec(max_output_bytes=10))
    for n in range(4):
        await insert(store, "claim", id=f"c-{n}", ended_at=ago(n), **ENDED)
    await insert(store, "claim", id="live")
    await insert(store, "claim", id="other", tenant="other", ended_at=ago(9), **ENDED)
    sizes = {"c-3": 1, "c-2": 1, "c-1": 4, "c-0": 6, "live": 1000, "other": 1000, "unknown": 1000}
    assert await store.history.excess_outputs(sizes) == {"c-2", "c-3"}
