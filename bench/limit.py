"""The limit of the claim path: the very statement of a single claim, sent by pgbench, or by bare asyncpg where it is missing."""

import asyncio
import itertools
import json
import os
import secrets
import subprocess
import time
from pathlib import Path

import asyncpg
import msgspec

from holdfast.ports.store import NewClaim
from holdfast.postgres.claims import MATCH
from holdfast.postgres.database import functions_schema, render
from holdfast.postgres.embedded import DATABASE, PASSWORD, ROLE

from .spread import Spread
from .stage import Stage

SEED = 2**62


def claim(id_: str) -> str:
    """One claim as the replica sends it for the benchmark's request."""
    new = NewClaim(
        id=id_,
        tenant="default",
        key=None,
        hash="0" * 32,
        request={"command": [], "payload": None, "env": {}},
        priority=0,
        lease=None,
        max_duration=21_600.0,
        deadline=3_600.0,
        park_ttl=None,
        retry=None,
        secrets=None,
    )
    # With spaces: pgbench takes `:null` for a variable of its own.
    return json.dumps([{"ord": 0, **msgspec.structs.asdict(new)}])


def run(stage: Stage, pool_id: str, *, clients: int, count: int) -> Spread:
    program = stage.postgres.bin_dir / "pgbench"
    return pgbench(program, stage, pool_id, clients, count) if os.access(program, os.X_OK) else bare(stage, pool_id, clients, count)


def pgbench(program: Path, stage: Stage, pool_id: str, clients: int, count: int) -> Spread:
    sql = render(MATCH, functions_schema())
    document = "'" + claim("@").replace("@", "c-' || :n::text || '") + "'"
    script = stage.home / f"claim-{secrets.token_hex(4)}.sql"
    statement = sql.replace("$1", f"'{pool_id}'").replace("$2::jsonb", f"({document})::jsonb").replace("$3", "1")
    script.write_text(f"\\set n random(1, {SEED})\n{statement};\n")
    logs = stage.home / script.stem
    logs.mkdir()
    # Each client its share; the log has one line a transaction, with its time in microseconds.
    options = ["-n", "-M", "prepared", "-c", clients, "-j", min(2, clients), "-t", count // clients, "-f", script, "-l"]
    where = ["-h", stage.postgres.socket_dir, "-p", 5432, "-U", ROLE, DATABASE]
    done = subprocess.run(
        [str(word) for word in (program, *options, "--log-prefix", logs / "log", *where)],
        env={**os.environ, "PGPASSWORD": (stage.postgres.cluster / PASSWORD).read_text()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode != 0:
        raise RuntimeError(f"pgbench failed: {done.stderr[-2000:]}")
    lines = [line.split() for path in logs.iterdir() for line in path.read_text().splitlines()]
    latencies = [int(words[2]) / 1e6 for words in lines]
    # From the first start to the last end, without the time to connect.
    ends = [int(words[4]) + int(words[5]) / 1e6 for words in lines]
    started = min(end - latency for end, latency in zip(ends, latencies, strict=True))
    return Spread(max(ends) - started, latencies)


def bare(stage: Stage, pool_id: str, clients: int, count: int) -> Spread:
    sql, ids = render(MATCH, functions_schema()), itertools.count()

    async def one(connection: asyncpg.Connection, latencies: list[float]) -> None:
        statement = await connection.prepare(sql)
        for _ in range(count // clients):
            started = time.perf_counter()
            await statement.fetch(pool_id, claim(f"c-{pool_id}-{next(ids)}"), 1)
            latencies.append(time.perf_counter() - started)

    async def all_of_them() -> Spread:
        connections = [await asyncpg.connect(stage.postgres.dsn, timeout=10) for _ in range(clients)]
        latencies: list[float] = []
        started = time.perf_counter()
        await asyncio.gather(*(one(connection, latencies) for connection in connections))
        spread = Spread(time.perf_counter() - started, latencies)
        for connection in connections:
            await connection.close()
        return spread

    return asyncio.run(all_of_them())
