"""Behind a real PgBouncer in transaction mode: what is different there, and what breaks when PgBouncer goes away."""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from bouncer import PgBouncer, needs_pgbouncer
from holdfast.model.effect import Done
from holdfast.ports.store import StoreUnavailable
from holdfast.postgres import database, migrate, notices
from holdfast.postgres.database import SETTINGS, Database
from holdfast.postgres.embedded import EmbeddedPostgres
from holdfast.postgres.notices import PolledNotices
from holdfast.postgres.store import PostgresStore
from postgres.store_steps import JOB, acknowledge, ask, assigned, end, make_pool, make_warm, match
from postgres.store_tables import broken, state_of
from scratch import prepared_postgres
from waiting import Deadline, becomes

pytestmark = needs_pgbouncer
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
# Settings that PgBouncer itself keeps per client.
ITS_OWN = {"client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings", "application_name"}


@contextlib.asynccontextmanager
async def store_on(dsn: str, size: int = 12) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(await Database.connect(dsn, size=size, pooled=True))
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def direct(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Opens a connection for the test that does not use PgBouncer."""
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        yield connection
    finally:
        await connection.close()


async def none_left(connection: asyncpg.Connection, counting: str) -> bool:
    return not await connection.fetchval(counting)


async def heals(store: PostgresStore, within: float = 15) -> None:
    """Waits until a statement is answered again. Before that, only StoreUnavailable may be raised."""
    deadline = Deadline(within)
    while True:
        try:
            await store.now()
            return
        except StoreUnavailable:
            assert not deadline.over(), "it did not heal"
            await asyncio.sleep(0.1)


async def test_thirty_claims_at_once_share_three_connections_and_ten_workers(bouncer: PgBouncer, dsn: str) -> None:
    async with direct(dsn) as watcher, store_on(bouncer.through(dsn)) as store:
        await store.fleet.join("r-1", 1, "host", "http://here", "1")
        assert (await store.fleet.beat("r-1", None, 10.0, [])).seen.mark == 1
        pool = await make_pool(store, JOB)
        workers = await make_warm(store, pool, 10)

        async def one(n: int) -> str | None:
            new = ask(f"t{n}")
            pairs = [pair for pair in await match(store, pool, new) if pair.claim == new.id]
            for pair in pairs:
                assert await store.claims.offer([(pair.claim, pair.fence, True)])
                assert pair.uid is not None
                assert await store.claims.deliver(pair.worker, pair.uid) is not None
                assert await acknowledge(store, pair.worker, pair.fence, None) == pair.claim
                return pair.worker
            return None

        given = [worker for worker in await asyncio.gather(*(one(n) for n in range(30))) if worker is not None]
        assert sorted(given) == sorted(workers), "each worker was given once"
        assert await broken(store) == []
        first = await store.workers.get(given[0])
        assert first is not None
        assert first.claim is not None
        assert await end(store, first.claim) == Done()
        assert await state_of(store, "worker", given[0]) == "retiring"
        # The watcher was connected first, so older connections belong to other tests.
        sql = """SELECT count(*) FROM pg_stat_activity a WHERE datname = current_database() AND backend_start > (
                     SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"""
        assert await watcher.fetchval(sql) <= 3, "all of this went through PgBouncer's few connections"


@pytest.mark.usefixtures("durable")
async def test_four_of_an_ordinary_role_migrate_at_once_and_then_beat(
    bouncer: PgBouncer, shared_postgres: EmbeddedPostgres
) -> None:
    """The role owns its database and nothing else, because no statement of Holdfast needs a superuser."""

    bouncer.knows("ordinary", "plain")
    async with direct(shared_postgres.dsn) as admin:
        await admin.execute("DROP DATABASE IF EXISTS ordinary WITH (FORCE)")
        await admin.execute("DROP ROLE IF EXISTS ordinary")
        await admin.execute("CREATE ROLE ordinary LOGIN PASSWORD 'plain'")
        await admin.execute("CREATE DATABASE ordinary OWNER ordinary")
    dsn = bouncer.through("postgresql://ordinary:plain@/ordinary")
    try:
        applied = await asyncio.gather(*(migrate.migrate(dsn, "i-test") for _ in range(4)))
        assert sorted(map(bool, applied)) == [False, False, False, True]
        async with store_on(dsn) as store:
            assert not await store.db.value("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
            await store.fleet.join("r-1", 1, "host", "http://here", "1")
            await store.fleet.beat("r-1", None, 10.0, [])
            pool = await make_pool(store, JOB)
            await make_warm(store, pool)
            assert await end(store, (await assigned(store, pool)).claim) == Done()
            await store.history.prune(7)
            assert [check["name"] for check in await store.check() if not check["ok"]] == ["every statement has a time limit"]
    finally:
        async with direct(shared_postgres.dsn) as admin:
            await admin.execute("DROP DATABASE ordinary WITH (FORCE)")
            await admin.execute("DROP ROLE ordinary")


@pytest.mark.usefixtures("durable")
async def test_settings_that_operations_md_gives_the_role_arrive_and_doctor_sees_them(bouncer: PgBouncer, dsn: str) -> None:
    name = dsn.partition("@/")[2].partition("?")[0]
    documented = re.findall(r"ALTER ROLE \w+ IN DATABASE \w+ SET (\w+) = '?(\w+)'?;", OPERATIONS.read_text())
    assert dict(documented) == SETTINGS

    async with store_on(bouncer.through(dsn)) as store:
        assert "every statement has a time limit" in [c["name"] for c in await store.check() if not c["ok"]]
    async with direct(dsn) as operator:
        for setting, value in documented:
            await operator.execute(f"ALTER ROLE holdfast IN DATABASE {name} SET {setting} = '{value}'")
    bouncer.kill()  # because existing server connections do not use the new setting
    bouncer.start()
    async with store_on(bouncer.through(dsn)) as store:
        assert [check["detail"] for check in await store.check() if not check["ok"]] == []
        found = await store.db.rows("SELECT name, reset_val FROM pg_settings WHERE name = ANY ($1::text[])", list(SETTINGS))
        assert {row["name"] for row in found if row["reset_val"] not in ("0", "on")} == set(SETTINGS)


async def test_nothing_stays_set_on_a_connection_for_its_next_user(bouncer: PgBouncer, dsn: str) -> None:
    name = dsn.partition("@/")[2].partition("?")[0]
    async with direct(dsn) as operator:
        await operator.execute(f"ALTER DATABASE {name} SET jit = on")  # asyncpg would turn it off
    async with store_on(bouncer.through(dsn)) as store:
        pool = await make_pool(store, JOB)
        await make_warm(store, pool, 8)
        # Arrays of other types than text, because asyncpg looks up those types on every new connection.
        pairs = await asyncio.gather(*(assigned(store, pool) for _ in range(8)))
        assert all(await asyncio.gather(*(store.claims.offer([(p.claim, p.fence, True)]) for p in pairs)))
        await migrate.migrate(bouncer.through(dsn), "i-test")
        sql = "SELECT pg_backend_pid(), array_agg(name) FROM pg_settings, pg_sleep(0.3) WHERE source = 'session'"
        servers = dict(row.values() for row in await asyncio.gather(*(store.db.row(sql) for _ in range(3))))
        assert len(servers) == 3, "all of them were asked"
        assert {setting for settings in servers.values() for setting in settings} <= ITS_OWN


async def test_what_other_replicas_do_is_noticed_without_listening(bouncer: PgBouncer, dsn: str) -> None:
    async with store_on(bouncer.through(dsn)) as store, store_on(bouncer.through(dsn)) as other:
        pool = await make_pool(store, JOB)
        [worker] = await make_warm(store, pool)
        received = await other.listen()
        assert await anext(received) == ("reset", [])
        pair = await assigned(store, pool)
        assert await receives(received, "c", pair.claim)
        await quiet(received)
        await store.claims.offer([(pair.claim, pair.fence, True)])
        assert await receives(received, "w", worker), "the agent, which waits at another replica, gets it at once"
        assert pair.uid is not None
        await store.claims.deliver(worker, pair.uid)
        await quiet(received)
        await acknowledge(store, worker, pair.fence, None)
        assert await receives(received, "c", pair.claim), "so is the holder"
        await end(store, pair.claim)
        assert await receives(received, "w", worker)
        assert await store.pools.freeze("linux", "for the test")
        assert await receives(received, "p", pool.id)


async def test_a_change_that_commits_late_is_noticed_and_only_once(bouncer: PgBouncer, dsn: str) -> None:
    """While the transaction is open, polls continue and newer changes are seen."""

    async with store_on(bouncer.through(dsn)) as store, direct(dsn) as slow:
        received = await store.listen()
        await anext(received)
        transaction = slow.transaction()
        await transaction.start()
        note = "INSERT INTO holdfast.event (at, kind, claim_id) VALUES (now(), 'test', $1)"
        await slow.execute(note, "c-slow")
        for young in ("c-1", "c-2", "c-3"):
            await store.db.rows(note, young)
            assert await anext(received) == ("c", [young])
        await transaction.commit()
        assert await anext(received) == ("c", ["c-slow"])
        await quiet(received)


async def receives(received: Any, kind: str, id_: str) -> bool:
    async with asyncio.timeout(4 * notices.LOOK_SECONDS + 5):
        while True:
            what, ids = await anext(received)
            if what == kind and id_ in ids:
                return True


async def quiet(received: PolledNotices) -> None:
    """Waits for three polls without a notification, after all pending ones have arrived."""
    with contextlib.suppress(TimeoutError):
        for _ in range(20):
            await asyncio.wait_for(anext(received), 3 * notices.LOOK_SECONDS)
        pytest.fail("the same things are noticed again and again")


async def test_a_statement_that_stands_still_is_cut_off_by_the_client_also_without_settings(
    bouncer: PgBouncer, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "STATEMENT_SECONDS", 1.0)

    async with store_on(bouncer.through(dsn)) as store, direct(dsn) as watcher:
        running = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"
        standing = [asyncio.create_task(store.db.rows("SELECT pg_sleep(600)")) for _ in range(3)]
        answers = await asyncio.gather(*standing, return_exceptions=True)
        assert all(isinstance(one, StoreUnavailable) for one in answers), answers
        await becomes(lambda: none_left(watcher, running), 10, "no statement runs on")
        await store.now()  # all three connections were blocked, and are free again


async def test_killed_and_started_again_it_is_unavailable_and_then_heals(bouncer: PgBouncer, dsn: str) -> None:
    async with store_on(bouncer.through(dsn)) as store, direct(dsn) as watcher:
        received = await store.listen()
        await anext(received)
        pool = await make_pool(store)
        running = "SELECT count(*) = 3 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"
        busy = [asyncio.create_task(store.db.rows("SELECT pg_sleep(60)")) for _ in range(6)]
        await becomes(lambda: watcher.fetchval(running), 10, "three run, so that the other three wait for a connection")
        bouncer.kill()
        answers = await asyncio.gather(*busy, return_exceptions=True)
        assert all(isinstance(one, StoreUnavailable) for one in answers), answers
        for call in (store.now(), store.claims.match(pool.id, [ask()], 10), anext(received)):
            with pytest.raises(StoreUnavailable):
                await call
        with pytest.raises(StoreUnavailable):
            await migrate.migrate(bouncer.through(dsn), "i-test")
        with pytest.raises(StoreUnavailable):
            await Database.connect(bouncer.through(dsn), pooled=True)
        bouncer.start()
        await heals(store)
        assert await anext(await store.listen()) == ("reset", [])


async def test_one_that_hangs_is_unavailable_in_time_and_replaced_it_heals(
    bouncer: PgBouncer, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "STATEMENT_SECONDS", 1.0)
    monkeypatch.setattr(database, "CONNECT_SECONDS", 1.0)

    async with store_on(bouncer.through(dsn), size=2) as store:
        await store.now()
        bouncer.signal(signal.SIGSTOP)
        deadline = Deadline(10)
        answers = await asyncio.gather(*(store.now() for _ in range(6)), return_exceptions=True)
        assert not deadline.over()
        assert all(isinstance(one, StoreUnavailable) for one in answers), answers
        bouncer.kill()  # killed, because it may crash anyway: 1.18 crashes on a cancel request whose sender has left
        bouncer.start()
        await heals(store)


async def test_postgres_behind_it_may_come_and_go(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "STATEMENT_SECONDS", 2.0)  # because PgBouncer lets clients wait for a server that does not come
    server = prepared_postgres(place / "postgres")
    server.start()
    try:
        # PgBouncer remembers a failed login, by default for 15 s.
        with PgBouncer(server, place / "own", more="server_login_retry = 1") as bouncer:
            dsn = bouncer.through(server.dsn)
            await migrate.migrate(dsn, "i-test")
            async with store_on(dsn) as store:
                await store.now()
                await asyncio.to_thread(server.stop)
                for _ in range(3):  # first the connections break, then the server cannot be reached
                    deadline = Deadline(15)
                    with pytest.raises(StoreUnavailable):
                        await store.now()
                    assert not deadline.over()
                await asyncio.to_thread(server.start)
                await heals(store, 30)
    finally:
        server.kill()


@pytest.mark.parametrize("more", ["", "ignore_startup_parameters = " + ",".join(SETTINGS)])
async def test_a_missing_pooled_option_is_named_in_the_error(
    shared_postgres: EmbeddedPostgres, dsn: str, place: Path, more: str
) -> None:
    refused = pytest.raises(StoreUnavailable, match="start with --pooled")
    with PgBouncer(shared_postgres, place / "own", more=more) as bouncer, refused:
        await twenty_bursts(bouncer.through(dsn))


async def twenty_bursts(dsn: str) -> None:
    db = await Database.connect(dsn, size=8)
    try:
        for _ in range(20):
            await asyncio.gather(*(db.rows("SELECT $1::integer, pg_sleep(0.01)", n) for n in range(8)))
    finally:
        await db.close()


async def test_a_replica_that_waits_to_migrate_is_not_cut_off_by_the_roles_limit(bouncer: PgBouncer, dsn: str) -> None:
    name = dsn.partition("@/")[2].partition("?")[0]
    async with direct(dsn) as first:
        await first.execute(f"ALTER DATABASE {name} SET statement_timeout = '300ms'")
        await first.execute("SELECT pg_advisory_lock($1)", migrate.LOCK)
        waits = asyncio.create_task(migrate.migrate(bouncer.through(dsn), "i-test"))
        await asyncio.sleep(1)
        assert not waits.done()
        bouncer.kill()
        with pytest.raises(StoreUnavailable):
            await waits
        bouncer.start()
        waits = asyncio.create_task(migrate.migrate(bouncer.through(dsn), "i-test"))
        await asyncio.sleep(1)
        await first.execute("SELECT pg_advisory_unlock($1)", migrate.LOCK)
        assert await waits == []
