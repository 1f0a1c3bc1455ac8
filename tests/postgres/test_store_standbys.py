"""`doctor` reports standbys that may lose commits, and reports if Postgres hides standbys from its role."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.postgres.embedded import EmbeddedPostgres
from holdfast.postgres.store import PostgresStore
from postgres.store_locks import PATIENCE
from waiting import Deadline, eventually

pytestmark = pytest.mark.usefixtures("durable")

CHECK = "an acknowledged commit survives"
PLAIN = "plain_reader"  # a role that can read the product's tables, and nothing about the server
MAKE_PLAIN = [
    f"DO $$ BEGIN CREATE ROLE {PLAIN}; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    f"GRANT USAGE ON SCHEMA holdfast TO {PLAIN}",
    f"GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {PLAIN}",
    f"REVOKE pg_read_all_stats FROM {PLAIN}",
]


@pytest.fixture
def standby(shared_postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[str]:
    """Starts a standby that receives every change, asynchronously."""
    name = "far-away"
    program = [str(shared_postgres.bin_dir / "pg_receivewal"), "--no-loop", "--directory", str(tmp_path)]
    follows = subprocess.Popen([*program, "--dbname", f"{shared_postgres.dsn}&application_name={name}"])
    yield name
    follows.terminate()
    follows.wait(PATIENCE)
    eventually(lambda: asyncio.run(_followers(shared_postgres.dsn)) == 0, PATIENCE, "the server knows that it left")


async def _followers(dsn: str) -> int:
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM pg_stat_replication"))
    finally:
        await connection.close()


async def follows(store: PostgresStore) -> None:
    deadline = Deadline(PATIENCE)
    while not await store.db.value("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"):
        assert not deadline.over(), "the standby never came"
        await asyncio.sleep(0.01)


async def checked(store: PostgresStore) -> dict[str, Any]:
    return next(check for check in await store.check() if check["name"] == CHECK)


async def test_an_asynchronous_standby_is_named(store: PostgresStore, standby: str) -> None:
    await follows(store)
    found = await checked(store)
    assert not found["ok"]
    assert found["detail"] == f"standby {standby} is asynchronous: a failover to it loses commits"
    assert "synchronous_standby_names" in found["advice"]


async def test_a_standby_that_our_role_may_not_see_does_not_pass_for_a_good_one(lone_store: PostgresStore, standby: str) -> None:
    store = lone_store  # because the role is set in its session
    await follows(store)
    for statement in MAKE_PLAIN:
        await store.db.rows(statement)
    await store.db.rows(f"SET ROLE {PLAIN}")
    found = await checked(store)
    assert not found["ok"]
    assert found["detail"] == f"whether standby {standby} is asynchronous cannot be seen: GRANT pg_read_all_stats TO {PLAIN}"
    # The advice of `doctor` helps.
    await store.db.rows("RESET ROLE")
    await store.db.rows(f"GRANT pg_read_all_stats TO {PLAIN}")
    await store.db.rows(f"SET ROLE {PLAIN}")
    assert "is asynchronous: a failover" in (await checked(store))["detail"]
    await store.db.rows("RESET ROLE")


async def test_without_a_standby_there_is_nothing_to_see(lone_store: PostgresStore) -> None:
    store = lone_store
    for statement in MAKE_PLAIN:
        await store.db.rows(statement)
    await store.db.rows(f"SET ROLE {PLAIN}")
    assert (await checked(store))["ok"]
    await store.db.rows("RESET ROLE")
