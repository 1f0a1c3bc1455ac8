"""Schema changes: concurrent, repeated, with two releases at the same time, and on the oldest supported Postgres."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.model.effect import Done
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
            await asyncio.gather(*(peer.claims.match(pool.id, asked[n::2], 9) for n, peer in enumerate((store, other))))
            assert await broken(store) == []
        await clear_away(store)
        await make_warm(other, pool)
        pair = await active(other, pool)
        assert await end(store, pair.claim, "cancel") == Done(), "one release ends what the other began"
        for peer in (store, other):
            await peer.fleet.beat("r-1", 1.0, 10.0, [])
    finally:
        await other.close()


async def test_the_previous_release_goes_on_with_heartbeats_while_their_table_gets_its_new_name(
    empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_before(sql: str) -> str:
        return re.sub(r"\bheartbeat\b", "pulse", sql)

    previous = as_before(rendering.functions_text())

    # Given a replica of the previous release, with its own tables, functions and prepared statements
    shutil.copytree(rendering.HERE / "migrations", tmp_path / "migrations", ignore=shutil.ignore_patterns("0004_*"))
    with monkeypatch.context() as release:
        for module in (rendering, migrate):
            release.setattr(module, "functions_text", lambda: previous)
        release.setattr(migrate, "HERE", tmp_path)
        await migrate.migrate(empty, "i-1")
        older = PostgresStore(await database.Database.connect(empty))
    monkeypatch.setattr(older.db, "sql", lambda text, render=older.db.sql: render(as_before(text)))
    newer = None
    try:
        await older.recovery.state()
        pool = await make_pool(older, SESSION)
        [first, second] = await make_warm(older, pool, 2)
        await older.workers.beat([agent_report(first, doing="running", claim="c-1")])

        # When the next release renames the table, and both releases go on
        applied = await migrate.migrate(empty, "i-1")
        assert "0004_heartbeat" in applied
        newer = PostgresStore(await database.Database.connect(empty))
        await newer.recovery.state()
        await newer.workers.beat([agent_report(second)])
        await older.workers.beat([agent_report(first), agent_report(second, doing="draining")])
        [version] = [row.worker.version for row in await older.workers.rows([first])]
        assert await older.workers.suspect(first, version, "silent") == Done()
        await older.workers.report(agent_report(first))  # stores the heartbeat inside a function of the older release

        # Then both read what either has written, and a worker's end removes its heartbeat
        for store in (older, newer):
            assert {each.worker: each.doing for each in await store.workers.heartbeats([first, second])} == {
                first: "idle",
                second: "draining",
            }
        assert await older.workers.condemn(first, None, "old", counted=False) == Done()
        assert await older.workers.bury(first, "its pod is gone") == Done()
        assert [each.worker for each in await newer.workers.heartbeats([first, second])] == [second]
        await older.workers.due(no_pod=60, retiring=60, silent=60)
        await older.workers.rows(None)
        await older.history.prune(7)
    finally:
        await older.close()
        if newer is not None:
            await newer.close()


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
        await store.workers.report(agent_report(parked.id, served_fence=parked.fence))
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
