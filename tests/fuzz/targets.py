"""The processes under attack: a replica with its front door and its probe port, and a session's proxy."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet import free_ports
from waiting import eventually

CREDENTIAL = "hfc_fuzz"
TESTS = Path(__file__).parents[1]


@dataclass
class Target:
    """One listener, and the request that it must always answer."""

    name: str
    port: int
    process: subprocess.Popen[str]
    log: Path
    path: str
    token: str | None
    tokens: tuple[bytes, ...]
    read: int = 0  # bytes of the log that were checked
    memory_before: int = 0

    def memory(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096

    def ordinary(self) -> int:
        """Returns the status of the ordinary request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", self.path, headers={"Authorization": f"Bearer {self.token}"} if self.token else {})
            return connection.getresponse().status
        finally:
            connection.close()

    def complaints(self) -> list[str]:
        """Returns new lines of the log that show a defect: a traceback, an error, or a line that is not ours."""
        with self.log.open(errors="replace") as file:
            file.seek(self.read)
            lines = file.read().splitlines()
            self.read = file.tell()
        return [line for line in lines if _defect(line)]


def _defect(line: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return True
    return "exception" in entry or entry.get("level") in ("error", "critical") or "failed" in str(entry.get("event"))


@contextlib.contextmanager
def targets(dsn: str) -> Iterator[list[Target]]:
    """Starts all processes on this database, and ends them afterwards."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hf-")))
        port, probe_port = free_ports(2)
        data, log, admin = home / "data", home / "replica.log", home / "admin"
        admin.write_text("hf_admin_of_a_fuzz_run\n")
        arguments = ["serve", "--data-dir", str(data), "--port", str(port), "--probe-port", str(probe_port)]
        arguments += ["--token-file", str(admin)]
        replica = _start(stack, [sys.executable, "-m", "holdfast", *arguments], log, {"HOLDFAST_DSN": dsn})
        proxy = _start(stack, [sys.executable, "-m", "fuzz.proxied", CREDENTIAL], home / "proxy.log", {})
        assert proxy.stdout is not None
        proxy_port = int(proxy.stdout.readline())
        eventually(lambda: _listens(port), 60, f"the replica listens; its log: {log.read_text()[-2000:]}")
        tenant = _tenant_token(port, admin.read_text().strip())  # an admin's requests could start processes on this machine
        many = (tenant.encode(), b"invented", b"hfa_e30.x", b"a.b.c", b"")
        door = Target("front door", port, replica, log, "/healthz", tenant, many)
        probes = Target("probe port", probe_port, replica, log, "/healthz", None, many)
        session = Target("session proxy", proxy_port, proxy, home / "proxy.log", "/", CREDENTIAL, (CREDENTIAL.encode(), b"x"))
        yield [door, probes, session]


def _start(stack: contextlib.ExitStack, argv: list[str], log: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    env = {**env, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    file = stack.enter_context(log.open("w"))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=file, env={**os.environ, **env}, text=True, cwd=TESTS)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _tenant_token(port: int, admin: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body = json.dumps({"name": "fuzz", "role": "tenant", "tenant": "acme"})
    connection.request("POST", "/v1/tokens", body, {"Authorization": f"Bearer {admin}"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 201, content
    return str(json.loads(content)["token"])


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
