"""Schema changes: concurrent, repeated, with two releases at the same time, and on the oldest supported Postgres."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.model.outcome import Done
from holdfast.ports.store import WrongInstallation
from holdfast.postgres import database, migrate, rendering
from holdfast.postgres.embedded import EmbeddedPostgres, PostgresMissing, find_binaries
from holdfast.postgres.store import PostgresStore
from postgres.store_clock import Clock
from postgres.store_steps import DIRECT, JOB, SESSION, active, agent_report, ask, end, make_pool, make_warm, match
from postgres.store_tables import broken, clear_away, due

OLDEST = 15  # the version that the docs promise
# The folders in which Debian, Red Hat and Homebrew install one major version.
PLACES = ("/usr/lib/postgresql/{}/bin", "/usr/pgsql-{}/bin", "/opt/homebrew/opt/postgresql@{}/bin")


@pytest.fixture
def empty(shared_postgres: EmbeddedPostgres) -> Iterator[str]:
    """Returns the DSN of an empty database."""

    async def admin(statement: str) -> None:
        connection = await asyncpg.connect(shared_postgres.dsn, timeout=60)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(admin("CREATE DATABASE empty"))
    yield shared_postgres.dsn.replace("@/holdfast?", "@/empty?")
    asyncio.run(admin("DROP DATABASE empty WITH (FORCE)"))


async def test_of_four_that_migrate_at_once_one_does_it(empty: str) -> None:
    applied = await asyncio.gather(*(migrate.migrate(empty, "i-1") for _ in range(4)))
    [done] = [names for names in applied if names]
    assert done[0] == "0001_core"
    assert done[-1] == rendering.functions_schema()
    assert await migrate.migrate(empty, "i-1") == [], "again: nothing to do"
    with pytest.raises(WrongInstallation, match="belongs to installation i-1"):
        await migrate.migrate(empty, "i-2")  # otherwise its replica would treat every worker of i-1 as dead
    connection = await asyncpg.connect(empty)
    try:
        assert await connection.fetchval("SELECT count(*) FROM holdfast.installation") == 1
        schemas = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'holdfast\\_%'")
        assert [row[0] for row in schemas] == [rendering.functions_schema()]
    finally:
        await connection.close()


async def test_two_releases_work_side_by_side(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = rendering.functions_text() + "\n-- as of the next release\n"

    with monkeypatch.context() as release:
        release.setattr(rendering, "functions_text", lambda: newer)
        release.setattr(migrate, "functions_text", lambda: newer)
        applied = await migrate.migrate(store.db.dsn, "i-test")
        assert applied == [rendering.functions_schema()]
        assert await migrate.migrate(store.db.dsn, "i-test") == []
        other = PostgresStore(await database.Database.connect(store.db.dsn))
    try:
        assert other.db.functions != store.db.functions
        pool = await make_pool(store, JOB)
        for _ in range(5):
            await make_warm(store, pool, 2)
            asked = [ask() for _ in range(4)]
            await asyncio.gather(*(door.claims.match(pool.id, asked[n::2], 9) for n, door in enumerate((store, other))))
            assert await broken(store) == []
        await clear_away(store)
        await make_warm(other, pool)
        pair = await active(other, pool)
        assert await end(store, pair.claim, "cancel") == Done(), "one release ends what the other began"
        for door in (store, other):
            await door.fleet.beat("r-1", 1.0, 10.0, [])
    finally:
        await other.close()


@pytest.fixture(scope="module")
def oldest() -> Iterator[EmbeddedPostgres]:
    """Starts the oldest Postgres that the docs promise, if this machine has it."""
    found = None
    for place in PLACES:
        try:
            found = find_binaries(place.format(OLDEST))
            break
        except PostgresMissing:
            continue
    if found is None:
        pytest.skip(f"NOT TESTED: Postgres {OLDEST}, the oldest that is promised, is in none of {PLACES}")
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    folder.chmod(0o755)
    server = EmbeddedPostgres(folder / "postgres", found)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


async def test_the_oldest_postgres_does_the_core_of_it(oldest: EmbeddedPostgres) -> None:
    await asyncio.gather(*(migrate.migrate(oldest.dsn, "i-old") for _ in range(2)))
    store = PostgresStore(await database.Database.connect(oldest.dsn))
    try:
        assert (await store.db.value("SHOW server_version")).startswith(str(OLDEST))
        await store.recovery.state()
        clock = await Clock.of(store)
        pools = [await make_pool(store, spec, called) for spec, called in ((DIRECT, "a"), (JOB, "b"), (SESSION, "c"))]
        for pool in pools:
            await make_warm(store, pool, 2)
            pair = await active(store, pool, ask(lease=10.0, secrets={"token": "hunter2"}))
            await clock.live(9)
            assert await due(store) == []
            await clock.live(1)
            assert await due(store) == [pair.claim]
            assert await end(store, pair.claim, "lease") == Done()
        [parked] = (await store.workers.find(pool="c", state="parked", limit=9, cursor=None))[0]
        await store.workers.report(agent_report(parked.id, reset_fence=parked.fence))
        assert [pair.worker for pair in await match(store, pools[2], ask())] == [parked.id]
        assert await broken(store) == []
        events, _ = await store.history.events(after=None, limit=1000)
        assert [event.kind for event in events].count("claim.ended") == 3
        await store.history.prune(7)
        await store.workers.rows(None)
        await store.pools.loads()
        await store.metrics()
        assert [one["name"] for one in await store.check() if not one["ok"] and one["promise"] in ("P1", "P2", "P4")] == []
    finally:
        await store.close()
