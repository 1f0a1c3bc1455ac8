"""Where a benchmark plays: a Postgres of its own in a temporary folder, the store on it, and a replica as a real process."""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from holdfast.api.auth import hash_token
from holdfast.model.pool import PoolSpec
from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries
from holdfast.postgres.store import PostgresStore
from holdfast.up import Plan, prepare
from holdfast.wiring import Layout, Settings, connect

READY_SECONDS = 30
# No agent and no protection to write: a claim is granted by its own batch, which is the path that is measured.
SPEC: dict[str, Any] = {
    "mode": "job",
    "warm": 0,
    "max": 100_000,
    "worker": {"agent": False, "run": ["true"]},
    "protection": {"mode": "off"},
}


class Stage:
    """One installation without pods. Its workers are hollow: rows that say warm."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = _free_port()
        self.layout: Layout = prepare(Plan(home / "data", port=self.port))
        self.token = self.layout.token.read_text().strip()
        self.postgres = EmbeddedPostgres(self.layout.postgres, find_binaries())
        self.log = home / "replica.log"

    async def store(self) -> PostgresStore:
        return await connect(Settings(dsn=self.postgres.dsn, data_dir=self.layout.root), self.layout.install.read_text().strip())

    async def sql(self, statement: str, *args: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.postgres.dsn, timeout=10)
        try:
            return list(await connection.fetch(statement, *args))
        finally:
            await connection.close()

    async def prepare(self) -> None:
        store = await self.store()
        await store.access.make_token("t-bench", hash_token(self.token), "bench", "admin", None, None)
        await store.close()
        await self.sql(HOLD_CONVERGE)

    @contextlib.contextmanager
    def replica(self) -> Iterator[int]:
        """A replica as a process of its own; its pid."""
        arguments = ["serve", "--data-dir", str(self.layout.root), "--port", str(self.port)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *arguments],
                env={**os.environ, "HOLDFAST_DSN": self.postgres.dsn},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._until_ready(process)
            yield process.pid
        finally:
            process.terminate()
            process.wait(READY_SECONDS)

    def _until_ready(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + READY_SECONDS
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.api("GET", "/readyz")[0] == 200:
                    return
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the replica did not become ready:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def api(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {self.token}"}
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    async def pool(self, workers: int, spec: dict[str, Any] = SPEC, *, frozen: bool = True) -> tuple[str, str]:
        """A new pool with so many hollow workers, all warm; its name and id. Frozen: nothing is spawned or ended."""
        name = f"b{secrets.token_hex(4)}"
        store = await self.store()
        try:
            pool, _ = await store.pools.put(f"p-{name}", name, msgspec.convert(spec, PoolSpec), "api")
            if frozen:
                await store.pools.freeze(name, "its workers are hollow")
        finally:
            await store.close()
        await self.grow(pool.id, workers)
        return name, pool.id

    async def grow(self, pool_id: str, workers: int) -> None:
        await self.sql(HOLD_CONVERGE)
        await self.sql(HOLLOW, pool_id, workers)
        await self.sql("VACUUM (ANALYZE) holdfast.worker")

    async def clear(self) -> None:
        """Nothing of a measurement stays behind to weigh on the next."""
        await self.sql("UPDATE holdfast.pool SET state = 'gone'")
        await self.sql("TRUNCATE holdfast.claim, holdfast.worker, holdfast.pulse, holdfast.fair, holdfast.event")


# Hollow workers have no pods, so `converge` would end their claims: its term is another's, who seems to make progress.
# Without progress for 49 s it would be taken over, so this is said again before each measurement.
HOLD_CONVERGE = """
UPDATE holdfast.term SET holder = 'bench', renewed_at = holdfast.now(), progress_at = holdfast.now(),
    until = holdfast.now() + interval '1 day' WHERE duty = 'converge'
"""
HOLLOW = """
INSERT INTO holdfast.worker (id, pool_id, state, revision, created_at, state_since, state_heard, pod_uid, node, ready)
SELECT format('w-%s-%s', p.name, n), p.id, 'warm', p.revision, holdfast.now(), holdfast.now(), holdfast.heard(),
       format('u-%s-%s', p.name, n), 'node', true
FROM holdfast.pool p, generate_series(1, $2::int) AS n WHERE p.id = $1
"""


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    home = Path(tempfile.mkdtemp(prefix="hf-bench-"))
    home.chmod(0o755)
    try:
        here = Stage(home)
        try:
            here.postgres.start()
            yield here
        finally:
            here.postgres.kill()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
