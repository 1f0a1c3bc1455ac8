"""A whole fleet of real processes for a test: replicas that can be killed, paused and cut off, on their own Postgres."""

import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from bouncer import PgBouncer
from holdfast.api.auth import hash_token
from holdfast.local import addresses
from holdfast.local.process import Process, Table, kin, send
from holdfast.postgres.database import SETTINGS
from holdfast.up import Plan, prepare
from holdfast.wiring import Settings, connect
from scratch import prepared_postgres
from waiting import Deadline, eventually

JOB: dict[str, Any] = {"mode": "job", "warm": 1, "max": 6}
SERVE = ["sh", "-c", 'exec python3 -u -m http.server --bind 127.0.0.1 "$PORT"']
SESSION: dict[str, Any] = {"mode": "session", "warm": 1, "max": 6, "worker": {"listen": "port", "serve": SERVE}}


class Answer:
    def __init__(self, status: int, headers: dict[str, str], raw: bytes) -> None:
        self.status, self.headers, self.raw = status, headers, raw

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Fleet:
    """`with Fleet(replicas=2) as fleet` starts a fleet. At the end it ends all processes of the fleet and of its workers."""

    def __init__(
        self,
        replicas: int = 2,
        pools: dict[str, dict[str, Any]] | None = None,
        env: dict[str, str] | None = None,
        pooled: bool = False,
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hf-"))
        self.home.chmod(0o755)
        self.ports = free_ports(replicas)
        self.pools = pools or {}
        self.env = env or {}
        self.layout = prepare(Plan(self.home / "data"))
        addresses.plan(self.layout, {port: f"http://127.0.0.1:{port}" for port in self.ports})
        self.token = self.layout.token.read_text().strip()
        self.postgres = prepared_postgres(self.layout.postgres)
        self.bouncer: PgBouncer | None = None
        self._pooled = pooled  # whether replicas reach Postgres through a PgBouncer in transaction mode
        self.replicas: dict[int, subprocess.Popen[bytes]] = {}
        self.log = self.home / "replicas.log"

    # Start and end

    def __enter__(self) -> "Fleet":
        try:
            self.postgres.start()
            if self._pooled:
                for name, value in SETTINGS.items():  # the settings that docs/operations.md gives to the operator
                    self.sql(f"ALTER ROLE holdfast IN DATABASE holdfast SET {name} = '{value}'")
                self.bouncer = PgBouncer(self.postgres, self.home / "bouncer")
                self.bouncer.start()
            asyncio.run(self._first_token())
            for n in range(len(self.ports)):
                self.start(n)
            for n in range(len(self.ports)):
                eventually(lambda n=n: self.api("GET", "/readyz", replica=n).status == 200, 30, f"replica {n} ready")
            for name, spec in self.pools.items():
                answer = self.api("PUT", f"/v1/pools/{name}", spec)
                assert answer.status == 201, answer.raw
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.replicas.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        self._end_workers()
        if self.bouncer is not None:
            self.bouncer.kill()
        self.postgres.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def dsn(self) -> str:
        return self.postgres.dsn if self.bouncer is None else self.bouncer.through(self.postgres.dsn)

    async def _first_token(self) -> None:
        settings = Settings(dsn=self.dsn, data_dir=self.layout.root, pooled=self._pooled)
        store = await connect(settings, self.layout.install.read_text().strip())
        await store.tokens.make("t-test", hash_token(self.token), "test", "admin", None, None)
        await store.close()

    def _end_workers(self) -> None:
        deadline = Deadline(20)
        quiet = 0
        while quiet < 2:
            assert not deadline.over(), "a worker of this test does not end"
            left = self.processes()
            quiet = 0 if left else quiet + 1
            for process in left:
                send(process, signal.SIGKILL)
            time.sleep(0.02)

    # Replicas

    def arguments(self, n: int) -> list[str]:
        pooled = ["--pooled"] if self._pooled else []
        return ["--data-dir", str(self.layout.root), "--port", str(self.ports[n]), *pooled]

    def start(self, n: int, **env: str) -> None:
        with self.log.open("ab") as log:
            self.replicas[n] = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "serve", *self.arguments(n)],
                env={**os.environ, "HOLDFAST_DSN": self.dsn, **self.env, **env},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, n: int, number: signal.Signals) -> None:
        self.replicas[n].send_signal(number)

    def kill(self, n: int) -> None:
        self.replicas[n].kill()
        self.replicas[n].wait()

    # Requests

    def api(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        replica: int = 0,
        token: str | None = None,
        timeout: float = 70,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[replica], timeout=timeout)
        try:
            headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def claim(self, pool: str, *, replica: int = 0, **request: Any) -> dict[str, Any]:
        """Returns the claim when it is active or ended, or as it is after `wait`. On a busy machine `wait` is stretched."""
        deadline = Deadline(_seconds(request.get("wait", "0s")))
        answer = self.api("POST", "/v1/claims", {"pool": pool, **request}, replica=replica)
        assert answer.status in (200, 201, 202), answer.raw
        claim = dict(answer.json)
        return claim if claim["state"] in ("active", "ended") else self._wait(claim, deadline, "active", replica)

    def see(self, claim: str, *, wait: str = "0s", until: str = "ended", replica: int = 0) -> dict[str, Any]:
        """Returns the claim when it is in the state `until`, or as it is after `wait`. On a busy machine `wait` is stretched."""
        deadline = Deadline(_seconds(wait))
        return self._wait(self._look(claim, wait, until, replica), deadline, until, replica)

    def _wait(self, claim: dict[str, Any], deadline: Deadline, until: str, replica: int) -> dict[str, Any]:
        while claim["state"] not in (until, "ended") and (left := deadline.left()) > 0.05:
            claim = self._look(claim["id"], f"{round(left * 1000)}ms", until, replica)
        return claim

    def _look(self, claim: str, wait: str, until: str, replica: int) -> dict[str, Any]:
        answer = self.api("GET", f"/v1/claims/{claim}?wait={wait}&until={until}", replica=replica)
        assert answer.status == 200, answer.raw
        return dict(answer.json)

    def workers(self, state: str | None = None, *, replica: int = 0) -> list[dict[str, Any]]:
        query = f"?state={state}" if state else ""
        return list(self.api("GET", f"/v1/workers{query}", replica=replica).json["items"])

    def warm(self, count: int, within: float = 30, *, replica: int = 0) -> list[dict[str, Any]]:
        """Waits until at least `count` workers are warm and ready, and returns them."""
        return eventually(
            lambda: len(found := [w for w in self.workers("warm", replica=replica) if w["ready"]]) >= count and found,
            within,
            f"{count} warm workers",
        )

    def tenant_token(self, tenant: str) -> str:
        answer = self.api("POST", "/v1/tokens", {"name": tenant, "role": "tenant", "tenant": tenant})
        assert answer.status == 201, answer.raw
        return str(answer.json["token"])

    def sql(self, statement: str, *args: object) -> list[dict[str, Any]]:
        async def ask() -> list[dict[str, Any]]:
            connection = await asyncpg.connect(self.postgres.dsn, timeout=60)
            try:
                return [dict(row) for row in await connection.fetch(statement, *args)]
            finally:
                await connection.close()

        return asyncio.run(ask())

    # Processes

    def processes(self, worker: str | None = None) -> list[Process]:
        """Returns every running process of one worker, or of all workers of this fleet."""
        table, found = Table(), list[Process]()
        for path in self.layout.workers.iterdir() if self.layout.workers.exists() else ():
            if worker is not None and path.name != worker:
                continue
            try:
                shim, agent = _process(path / "pod.json"), _process(path / "agent.json")
                if shim is not None:
                    uid = json.loads((path / "order.json").read_bytes())["uid"]
                    found += kin(uid, shim, agent, table).sure
            except FileNotFoundError:
                continue  # the folder was removed in the meantime
        return found

    def agent_of(self, worker: str) -> Process:
        process = _process(self.layout.workers / worker / "agent.json")
        assert process is not None
        return process

    # Promises

    def check_promises(self) -> None:
        """Fails if `doctor` finds that the database or the machine breaks P1, P2 or P5."""
        answer = self.api("GET", "/v1/doctor", replica=self.alive())
        broken = [check for check in answer.json["checks"] if not check["ok"]]
        assert not broken, broken

    def alive(self) -> int:
        return next(n for n, process in self.replicas.items() if process.poll() is None)


def _seconds(wait: str) -> float:
    return float(wait.removesuffix("s"))


def _process(path: Path) -> Process | None:
    return msgspec.json.decode(path.read_bytes(), type=Process) if path.exists() else None
