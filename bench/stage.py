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

from holdfast.api.auth import hash_token
from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries
from holdfast.postgres.store import PostgresStore
from holdfast.up import Plan, prepare
from holdfast.wiring import Layout, Settings, connect

READY_SECONDS = 30
# No agent and no protection to write: a claim is granted by its own batch, which is the path that is measured.
SPEC: dict[str, Any] = {"mode": "job", "warm": 0, "max": 100_000, "worker": {"agent": False, "run": ["true"]}, "protection": {"mode": "off"}}


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
            connection.request(method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    async def pool(self, workers: int, spec: dict[str, Any] = SPEC) -> tuple[str, str]:
        """A new frozen pool with so many hollow workers, all warm; its name and id. Frozen: nothing is spawned or ended."""
        name = f"b{secrets.token_hex(4)}"
        status, answer = self.api("PUT", f"/v1/pools/{name}", spec)
        assert status == 201, answer
        status, answer = self.api("POST", f"/v1/pools/{name}/freeze", {"reason": "its workers are hollow"})
        assert status == 200, answer
        await self.sql(HOLD_CONVERGE)
        row = (await self.sql("SELECT id, revision FROM holdfast.pool WHERE name = $1", name))[0]
        await self.sql(HOLLOW, row["id"], row["revision"], workers, name)
        await self.sql("VACUUM (ANALYZE) holdfast.worker")
        return name, row["id"]


# Hollow workers have no pods, so `converge` would end their claims: its term is another's, who seems to make progress.
# Without progress for 49 s it would be taken over, so this is said again before each measurement.
HOLD_CONVERGE = """
UPDATE holdfast.term SET holder = 'bench', renewed_at = holdfast.now(), progress_at = holdfast.now(),
    until = holdfast.now() + interval '1 day' WHERE duty = 'converge'
"""
HOLLOW = """
INSERT INTO holdfast.worker (id, pool_id, state, revision, created_at, state_since, state_heard, pod_uid, node, ready)
SELECT format('w-%s-%s', $4::text, n), $1, 'warm', $2, holdfast.now(), holdfast.now(), holdfast.heard(), format('u-%s-%s', $4::text, n),
       'node', true
FROM generate_series(1, $3::int) AS n
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
