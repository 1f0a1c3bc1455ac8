"""The limit of the claim path: the very statement of a single claim, sent by pgbench, or by bare asyncpg where it is missing."""

import asyncio
import itertools
import json
import math
import os
import re
import secrets
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import msgspec

from holdfast.postgres.claims import MATCH
from holdfast.postgres.embedded import DATABASE, PASSWORD, ROLE
from holdfast.postgres.rendering import asking, functions_schema, render

from .request import request
from .spread import Spread
from .stage import Stage

SEED = 2**62


def claim(id_: str) -> str:
    """One claim as the replica sends it for the benchmark's request."""
    # With spaces: pgbench takes `:null` for a variable of its own.
    return json.dumps([{"ord": 0, **msgspec.structs.asdict(request(id_))}])


def run(stage: Stage, pools: list[str], *, clients: int, seconds: float) -> Spread:
    """Each claim goes to one of the pools: to a single one they come one after the other, since a batch locks its pool."""
    program = stage.postgres.bin_dir / "pgbench"
    return (
        pgbench(program, stage, pools, clients, seconds) if os.access(program, os.X_OK) else bare(stage, pools, clients, seconds)
    )


def pgbench(program: Path, stage: Stage, pools: list[str], clients: int, seconds: float) -> Spread:
    sql = render(asking(MATCH, 4), functions_schema())
    document = "'" + claim("@").replace("@", "c-' || :n::text || '") + "'"
    script = stage.home / f"claim-{secrets.token_hex(4)}.sql"
    words = {"$1": f"(ARRAY{pools})[:pool::int]", "$2::jsonb": f"({document})::jsonb", "$3": "1", "$4": "true", "$5": "0"}
    statement = re.sub(r"\$\d(::jsonb)?", lambda found: words[found[0]], sql)
    script.write_text(f"\\set n random(1, {SEED})\n\\set pool random(1, {len(pools)})\n{statement};\n")
    logs = stage.home / script.stem
    logs.mkdir()
    # The log has one line a transaction, with its time in microseconds.
    options = ["-n", "-M", "prepared", "-c", clients, "-j", min(2, clients), "-T", math.ceil(seconds), "-f", script, "-l"]
    where = ["-h", stage.postgres.socket_dir, "-p", 5432, "-U", ROLE, DATABASE]
    done = subprocess.run(
        [str(word) for word in (program, *options, "--log-prefix", logs / "log", *where)],
        env={**os.environ, "PGPASSWORD": (stage.postgres.cluster / PASSWORD).read_text()},
        capture_output=True,
        text=True,
        timeout=seconds + 60,
    )
    if done.returncode != 0:
        raise RuntimeError(f"pgbench failed: {done.stderr[-2000:]}")
    lines = [line.split() for path in logs.iterdir() for line in path.read_text().splitlines()]
    latencies = [int(words[2]) / 1e6 for words in lines]
    # From the first start to the last end, without the time to connect.
    ends = [int(words[4]) + int(words[5]) / 1e6 for words in lines]
    started = min(end - latency for end, latency in zip(ends, latencies, strict=True))
    return Spread(max(ends) - started, latencies)


def bare(stage: Stage, pools: list[str], clients: int, seconds: float) -> Spread:
    sql, ids = render(asking(MATCH, 4), functions_schema()), itertools.count()

    async def one(connection: asyncpg.Connection, latencies: list[float]) -> None:
        statement = await connection.prepare(sql)
        end = time.perf_counter() + seconds
        while (started := time.perf_counter()) < end:
            n = next(ids)
            await statement.fetch(pools[n % len(pools)], claim(f"c-{pools[0]}-{n}"), 1, True, 0)
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

    # In a thread: the benchmark itself runs in an event loop already.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, all_of_them()).result()
