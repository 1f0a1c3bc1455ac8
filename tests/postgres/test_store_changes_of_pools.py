"""What applying a pool writes, and which source may apply it."""

import msgspec
import pytest

from holdfast.model.pool import PoolSpec, WorkerSpec
from holdfast.postgres.store import PostgresStore
from postgres.changes import Changes, apart
from postgres.store_steps import JOB

LARGER = msgspec.structs.replace(JOB, max=7)  # the same revision
NEWER = PoolSpec(max=1000, worker=WorkerSpec(activate=["new"]))  # another revision
TROUBLE = "UPDATE holdfast.pool SET failures = 3, trouble = 'no room', backoff_until = holdfast.now()"


def short(found: dict[str, dict[str, object]]) -> dict[str, object]:
    """Returns the changes with a shortened spec, because only a change of the spec matters here."""
    for row, columns in found.items():
        if row.startswith("pool "):
            columns["spec"] = "spec" in columns
    return dict(found)


async def test_a_new_pool_is_live_and_an_unchanged_one_is_not_touched(store: PostgresStore) -> None:
    await apart(store)
    async with await Changes.of(store) as changes:
        pool, what = await store.pools.put("p-1", "linux", JOB, "api")
        assert (what, pool.state, pool.generation) == ("created", "live", 1)
        found = await changes.seen()
        assert found["events"] == ["100 pool.created p-1"]
        assert found["notices"] == ["p p-1"]
        assert (found["pool p-1"]["created_at"], found["pool p-1"]["updated_at"]) == (100.0, 100.0)
        assert (await store.pools.put("p-2", "linux", JOB, "api"))[1] == "same"
        assert await changes.seen() == {}


async def test_a_changed_pool_gets_a_new_chance_only_with_a_new_revision(store: PostgresStore) -> None:
    clock = await apart(store)
    pool, _ = await store.pools.put("p-1", "linux", JOB, "api")
    await store.pools.put("p-3", "other", JOB, "api")
    await store.db.rows(TROUBLE)
    await clock.live(1)
    async with await Changes.of(store) as changes:
        assert (await store.pools.put("p-2", "linux", LARGER, "api"))[1] == "changed"
        assert short(await changes.seen()) == {
            "pool p-1": {"spec": True, "generation": 2, "updated_at": 101.0},
            "events": ["101 pool.changed p-1"],
            "notices": ["p p-1"],
        }
        newer, what = await store.pools.put("p-2", "linux", NEWER, "api")
        assert (what, newer.id, newer.revision != pool.revision) == ("changed", "p-1", True)
        found = short(await changes.seen())
        assert found["pool p-1"].pop("revision") == newer.revision
        assert found == {
            "pool p-1": {"spec": True, "trouble": None, "failures": 0, "generation": 3, "backoff_until": None},
            "events": [f'101 pool.changed p-1 "new revision {newer.revision}"'],
            "notices": ["p p-1"],
        }


@pytest.mark.parametrize(
    ("first", "then", "id_", "what"),
    [
        ("api", "cr", "p-1", "taken"), ("cr", "api", "p-1", "taken"), ("cr", "cr", "p-1", "changed"),
        ("cr", "cr", "p-2", "taken"),
        ("api", "api", "p-2", "changed"),
    ],
)  # fmt: skip
async def test_a_pool_belongs_to_its_object_or_to_the_api(
    store: PostgresStore, first: str, then: str, id_: str, what: str
) -> None:
    await store.pools.put("p-1", "linux", JOB, first)
    async with await Changes.of(store) as changes:
        pool, answer = await store.pools.put(id_, "linux", LARGER, then)
        assert (pool.id, answer) == ("p-1", what)
        assert (await changes.seen() == {}) == (what == "taken")


@pytest.mark.parametrize(("source", "gone", "what"), [("cr", True, "created"), ("cr", False, "taken"), ("api", True, "taken")])
async def test_an_object_that_comes_back_begins_again_once_its_pool_is_gone(
    store: PostgresStore, source: str, gone: bool, what: str
) -> None:
    clock = await apart(store)
    await store.pools.put("p-1", "linux", JOB, source)
    await store.db.rows(TROUBLE)
    await store.pools.delete("linux")
    await store.db.rows("UPDATE holdfast.pool SET frozen = 'by hand'")
    if gone:
        await store.pools.finish("p-1")
    await clock.live(1)
    async with await Changes.of(store) as changes:
        pool, answer = await store.pools.put("p-1", "linux", NEWER, source)
        assert answer == what
        found = short(await changes.seen())
        if what == "taken":
            assert found == {}
        else:
            assert found["pool p-1"].pop("revision") == pool.revision
            assert found == {
                "pool p-1": {
                    "spec": True,
                    "state": "live",
                    "frozen": None,
                    "trouble": None,
                    "failures": 0,
                    "generation": 2,
                    "updated_at": 101.0,
                    "backoff_until": None,
                },
                "events": ["101 pool.created p-1"],
                "notices": ["p p-1"],
            }
