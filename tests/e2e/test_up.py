"""`holdfast up`: one command starts a fleet, with a token and replicas that are restarted. Ctrl-C leaves workers alone."""

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

import asyncpg
import pytest

import holdfast
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
    """Runs `holdfast up` in a folder, as a person would start it."""

    def __init__(self, home: Path, user: str | None = None, python: str = sys.executable, **env: str) -> None:
        self.home, self.data, self.user, self.python, self.env = home, home / "data", user, python, env
        (home / "pools.yaml").write_text(POOLS)
        self.port = free_ports(1)[0]
        self.log = home / "up.log"
        self.process: subprocess.Popen[bytes] | None = None

    def up(self, *options: str) -> None:
        arguments = ["up", "--data-dir", str(self.data), "--port", str(self.port), "-f", str(self.home / "pools.yaml"), *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "holdfast", *arguments], stdout=log, stderr=log, start_new_session=True, user=self.user,
                env={**os.environ, "HOME": str(self.home), **self.env},
            )  # fmt: skip
        eventually(lambda: b"Holdfast is up on" in self.log.read_bytes() or self._died(), 60, "up prints that it is up")

    def _died(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return False

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(300) == 0, self.log.read_text()
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
        for path in (self.data / "workers").glob("w-*"):
            with contextlib.suppress(FileNotFoundError):
                shim, agent = (json.loads((path / name).read_bytes()) for name in ("pod.json", "agent.json"))
                uid = json.loads((path / "order.json").read_bytes())["uid"]
                found += kin(uid, Process(**shim), Process(**agent), table).sure
        return found

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(300)
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
        for path in ("/v1/pools", "/v1/claims", "/v1/replicas", "/metrics", "/healthz", "/readyz", "/openapi.json", "/"):
            assert machine.api("GET", path, token=token)[0] == 401, path
    assert machine.api("GET", "/v1/pools")[0] == 200


def test_everything_in_the_data_directory_is_documented(machine: Machine) -> None:
    machine.up()
    table = (Path(__file__).parents[2] / "docs" / "operations.md").read_text().split("## The data directory")[1].split("\n## ")[0]
    there = {path.name + ("/" if path.is_dir() else "") for path in machine.data.iterdir()}
    assert there >= {"key", "up.lock", "workers/"}
    assert [name for name in there if f"`{name}`" not in table and not name.endswith(".draft")] == []


def test_a_second_up_on_the_same_folder_is_refused_in_one_line(machine: Machine) -> None:
    machine.up()
    arguments = ["up", "--data-dir", str(machine.data), "--port", str(free_ports(1)[0])]
    done = subprocess.run([sys.executable, "-m", "holdfast", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert machine.process is not None
    expected = f"holdfast: another `holdfast up` (pid {machine.process.pid}) runs on {machine.data}\n"
    assert done.stderr == expected
    assert machine.api("GET", "/v1/pools")[0] == 200, "the first one goes on"


def test_a_replica_that_dies_is_started_again_and_shown(machine: Machine) -> None:
    machine.up("--replicas", "2")
    every = {"match", "converge", "scale", "deadlines", "pools", "prune"}
    # Both must hold in one read, because between two terms a duty has no holder, and a slow replica is not live for a moment.
    replicas = eventually(
        lambda: len(live := _live(machine)) == 2 and _duties(live) >= every and live, 30, "two replicas, all duties"
    )
    assert {r["port"] for r in replicas} == {machine.port, machine.port + 1}
    victim = next(r for r in replicas if r["port"] == machine.port + 1)
    os.kill(victim["pid"], signal.SIGKILL)
    again = eventually(
        lambda: [r for r in _live(machine) if r["port"] == victim["port"] and r["pid"] != victim["pid"]], 30, "it is back"
    )
    assert again[0]["id"] != victim["id"]


def test_ctrl_c_stops_replicas_and_postgres_and_busy_workers_report_after_the_next_start(machine: Machine) -> None:
    machine.up()
    body = {"pool": "linux", "command": ["sh", "-c", "sleep 6; echo after all; exit 4"], "wait": "30s"}
    status, claim = machine.api("POST", "/v1/claims", body)
    assert (status, claim["state"]) == (201, "active")
    machine.stop()
    assert not EmbeddedPostgres(machine.data / "postgres", find_binaries()).running()
    with pytest.raises(ConnectionRefusedError):
        machine.api("GET", "/healthz")
    assert machine.processes(), "the busy worker goes on"
    stored = machine.data / "workers" / claim["worker"] / "result.json"
    eventually(stored.exists, 30, "the job ends while no replica runs")
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
    done = subprocess.run([sys.executable, "-m", "holdfast", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "warm (9) must not exceed max (3)" in done.stderr
    assert not machine.data.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; as a normal user every test here runs so")
def test_it_works_as_a_normal_user() -> None:
    nobody = pwd.getpwnam("nobody")
    python, env = _interpreter_for(nobody.pw_uid)
    with tempfile.TemporaryDirectory(prefix="hf-", ignore_cleanup_errors=True) as home:
        os.chmod(home, 0o755)
        machine = Machine(Path(home), "nobody", python, **env)
        for path in (Path(home), *Path(home).iterdir()):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        try:
            machine.up()
            status, claim = machine.api("POST", "/v1/claims", {"pool": "linux", "command": ["id", "-un"], "wait": "30s"})
            assert status == 201, claim
            eventually(lambda: machine.api("GET", f"/v1/claims/{claim['id']}")[1]["outcome"] == "completed", 20)
            owners = {path.stat().st_uid for path in machine.data.rglob("*")}
            assert owners == {nobody.pw_uid}
            machine.stop()
        finally:
            machine.end()


def _interpreter_for(uid: int) -> tuple[str, dict[str, str]]:
    """Returns an interpreter that another user can run, with this checkout's packages: this one or the system's."""
    packages = Path(asyncpg.__file__).parents[1]
    paths = {"PYTHONPATH": f"{Path(holdfast.__file__).parents[1]}:{packages}"}
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python, env in ((sys.executable, {}), (system, paths)):
        try:
            trial = [python, "-c", "import holdfast.cli.main, asyncpg, uvloop, msgspec"]
            subprocess.run(trial, user=uid, check=True, capture_output=True, env={**os.environ, **env})
        except (OSError, subprocess.CalledProcessError):
            continue
        return python, env
    pytest.skip("no interpreter with this checkout's packages can be reached by another user")


def _duties(replicas: list[dict[str, Any]]) -> set[str]:
    return {duty for replica in replicas for duty in replica["duties"]}


def _live(machine: Machine) -> list[dict[str, Any]]:
    return [r for r in machine.api("GET", "/v1/replicas")[1]["items"] if r["state"] == "live"]
