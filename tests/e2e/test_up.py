"""`holdfast up`: one command, its token, its replicas that come back, and what Ctrl-C leaves alone."""

import contextlib
import http.client
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import eventually, free_ports

from holdfast.local.process import Process, Table, kin, send
from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries

POOLS = """
apiVersion: holdfast.dev/v1alpha1
kind: WorkerPool
metadata: {name: linux}
spec: {mode: job, warm: 1, max: 3}
"""


class Machine:
    """`holdfast up` in a folder, as a person would start it."""

    def __init__(self, home: Path, user: str | None = None) -> None:
        self.home, self.data, self.user = home, home / "data", user
        (home / "pools.yaml").write_text(POOLS)
        self.port = free_ports(1)[0]
        self.log = home / "up.log"
        self.process: subprocess.Popen[bytes] | None = None

    def up(self, *options: str) -> None:
        arguments = ["up", "--data-dir", str(self.data), "--port", str(self.port), "-f", str(self.home / "pools.yaml"), *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *arguments], stdout=log, stderr=log, start_new_session=True, user=self.user,
                env={**os.environ, "HOME": str(self.home)},
            )  # fmt: skip
        eventually(lambda: b"Holdfast is up on" in self.log.read_bytes() or self._died(), 60, "up says that it is up")

    def _died(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return False

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0, self.log.read_text()
        self.log.unlink()

    def api(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)
        try:
            bearer = token if token is not None else (self.data / "token").read_text().strip()
            connection.request(method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {bearer}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def processes(self) -> list[Process]:
        found, table = list[Process](), Table()
        for path in (self.data / "workers").iterdir():
            with contextlib.suppress(FileNotFoundError):
                shim, agent = (json.loads((path / name).read_bytes()) for name in ("pod.json", "agent.json"))
                uid = json.loads((path / "order.json").read_bytes())["uid"]
                found += kin(uid, Process(**shim), Process(**agent), table).sure
        return found

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
        if (self.data / "workers").exists():
            eventually(lambda: not [send(p, signal.SIGKILL) for p in self.processes()], 20, "workers ended")
        EmbeddedPostgres(self.data / "postgres", find_binaries()).kill()


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="hf-", ignore_cleanup_errors=True) as home:
        os.chmod(home, 0o755)
        made = Machine(Path(home))
        try:
            yield made
        finally:
            made.end()


def test_the_operators_token_is_private_and_nothing_is_answered_without_one(machine: Machine) -> None:
    machine.up()
    mode = (machine.data / "token").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    for token in ("", "wrong"):
        for path in ("/v1/pools", "/v1/claims", "/v1/replicas", "/metrics"):
            assert machine.api("GET", path, token=token)[0] == 401, path
    assert machine.api("GET", "/v1/pools")[0] == 200


def test_a_replica_that_dies_is_started_again_and_shown(machine: Machine) -> None:
    machine.up("--replicas", "2")
    replicas = eventually(lambda: len(live := _live(machine)) == 2 and live, 20)
    assert {r["port"] for r in replicas} == {machine.port, machine.port + 1}
    assert {duty for r in replicas for duty in r["duties"]} >= {"match", "converge", "scale", "deadlines", "pools", "prune"}
    victim = next(r for r in replicas if r["port"] == machine.port + 1)
    os.kill(victim["pid"], signal.SIGKILL)
    again = eventually(lambda: [r for r in _live(machine) if r["port"] == victim["port"] and r["pid"] != victim["pid"]], 30)
    assert again[0]["id"] != victim["id"]


def test_ctrl_c_stops_replicas_and_postgres_and_busy_workers_report_after_the_next_start(machine: Machine) -> None:
    machine.up()
    body = {"pool": "linux", "command": ["sh", "-c", "sleep 6; echo after all; exit 4"], "wait": "30s"}
    status, claim = machine.api("POST", "/v1/claims", body)
    assert (status, claim["state"]) == (201, "active")
    machine.stop()
    assert not EmbeddedPostgres(machine.data / "postgres", find_binaries()).running()
    with pytest.raises(OSError):
        machine.api("GET", "/healthz")
    assert machine.processes(), "the busy worker goes on"
    stored = machine.data / "workers" / claim["worker"] / "result.json"
    eventually(stored.exists, 30, "the job ends with nobody there to hear it")
    machine.up()
    ended = eventually(lambda: (c := machine.api("GET", f"/v1/claims/{claim['id']}")[1])["state"] == "ended" and c, 40)
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 4)


def test_stop_workers_drains_first(machine: Machine) -> None:
    machine.up("--stop-workers")
    body = {"pool": "linux", "command": ["sh", "-c", f"sleep 3; touch {machine.home}/finished"], "wait": "30s"}
    assert machine.api("POST", "/v1/claims", body)[1]["state"] == "active"
    machine.stop()
    assert (machine.home / "finished").exists(), "the busy worker finished first"
    assert machine.processes() == []


def test_a_bad_pools_file_is_refused_before_anything_starts(machine: Machine) -> None:
    (machine.home / "pools.yaml").write_text(POOLS.replace("warm: 1", "warm: 9"))
    arguments = ["up", "--data-dir", str(machine.data), "--port", str(machine.port), "-f", str(machine.home / "pools.yaml")]
    done = subprocess.run([sys.executable, "-m", "holdfast", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "warm (9) must not exceed max (3)" in done.stderr
    assert not machine.data.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; as a normal user every test here runs so")
def test_it_works_as_a_normal_user() -> None:
    nobody = pwd.getpwnam("nobody")
    readable = subprocess.run([sys.executable, "-c", "import holdfast"], user=nobody.pw_uid, capture_output=True)
    if readable.returncode != 0:
        pytest.skip("this checkout's interpreter cannot be reached by another user")
    with tempfile.TemporaryDirectory(prefix="hf-", ignore_cleanup_errors=True) as home:
        os.chmod(home, 0o755)
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        machine = Machine(Path(home), "nobody")
        try:
            machine.up()
            status, claim = machine.api("POST", "/v1/claims", {"pool": "linux", "command": ["id", "-un"], "wait": "30s"})
            assert status == 201, claim
            eventually(lambda: machine.api("GET", f"/v1/claims/{claim['id']}")[1]["outcome"] == "completed", 20)
            machine.stop()
        finally:
            machine.end()


def _live(machine: Machine) -> list[dict[str, Any]]:
    return [r for r in machine.api("GET", "/v1/replicas")[1]["items"] if r["state"] == "live"]
