"""Where a benchmark runs: a Postgres of its own in a temporary folder, the store on it, and a replica as a real process."""

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
from holdfast.local.layout import Layout
from holdfast.postgres.embedded import DATABASE, EmbeddedPostgres, find_binaries
from holdfast.postgres.store import PostgresStore
from holdfast.up import Plan, prepare
from holdfast.wiring import Settings, connect

from . import ROOT

READY_SECONDS = 30
FILL_SECONDS = 120
LIMIT_DATABASE = "bench_limit"  # no replica uses it, so rows without pods stay as they are


class Stage:
    """One installation on one Postgres. Without `replica` it has a store and rows, and no process that acts on them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = _free_port()
        self.layout: Layout = prepare(Plan(home / "data", port=self.port))
        self.token = self.layout.token.read_text().strip()
        self.install = self.layout.install.read_text().strip()
        self.postgres = EmbeddedPostgres(self.layout.postgres, find_binaries())
        self.log = home / "replica.log"

    @property
    def limit_dsn(self) -> str:
        return self.postgres.dsn.replace(f"/{DATABASE}?", f"/{LIMIT_DATABASE}?")

    async def store(self, dsn: str | None = None) -> PostgresStore:
        return await connect(Settings(dsn=dsn or self.postgres.dsn, data_dir=self.layout.root), self.install)

    async def sql(self, statement: str, *args: object, dsn: str | None = None) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(dsn or self.postgres.dsn, timeout=10)
        try:
            return list(await connection.fetch(statement, *args))
        finally:
            await connection.close()

    async def prepare(self, *, limits: bool) -> None:
        """Makes the operator's token work, and the database in which limits are measured, if this part has one."""
        store = await self.store()
        await store.tokens.make("t-bench", hash_token(self.token), "bench", "admin", None, None)
        await store.close()
        if limits:
            await self.sql(f"CREATE DATABASE {LIMIT_DATABASE}")
            await (await self.store(self.limit_dsn)).close()

    @contextlib.contextmanager
    def replica(self, job_seconds: float) -> Iterator[int]:
        """Runs a replica with hollow pods as a process of its own; yields its pid."""
        arguments = [str(self.layout.root), str(self.port), str(job_seconds)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.replica", *arguments],
                cwd=ROOT,
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
            try:
                process.wait(READY_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _until_ready(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + READY_SECONDS
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.api("GET", "/readyz")[0] == 200:
                    return
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the replica did not become ready:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def api(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw and "json" in (answer.headers["Content-Type"] or "") else raw
        finally:
            connection.close()

    def make_pool(self, mode: str, warm: int, most: int) -> str:
        """Makes a pool over the API, as a user would; returns its name once all its workers are warm."""
        name = f"b{secrets.token_hex(4)}"
        worker = {"run": ["true"]} if mode == "job" else {"serve": ["true"]}
        spec: dict[str, Any] = {"mode": mode, "warm": warm, "max": most, "worker": worker, "park": {"ttl": "10m"}}
        status, answer = self.api("PUT", f"/v1/pools/{name}", spec)
        if status != 201:
            raise RuntimeError(f"pool {name} was answered with {status}: {answer}")
        self.until_free(name, warm)
        return name

    def until_free(self, name: str, count: int) -> float:
        """Returns the seconds until so many workers of the pool can be given out."""
        started = time.monotonic()
        while True:
            status = self.api("GET", f"/v1/pools/{name}")[1]["status"]
            took = time.monotonic() - started
            if status["free"] >= count:
                return took
            if took > FILL_SECONDS:
                raise TimeoutError(f"{status['free']} of {count} workers are free after {took:.0f} s:\n{status}")
            time.sleep(0.05)


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
