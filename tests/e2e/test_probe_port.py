"""`holdfast serve --probe-port`: the answers to a kubelet before Postgres is up, while it is up, and while it is away."""

import http.client
import os
import subprocess
import sys
from collections.abc import Callable

from fleet import Fleet, eventually, free_ports


def test_a_replica_without_postgres_is_alive_but_not_ready(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(replicas=1)
    port, probe = free_ports(2)
    fleet.postgres.stop()
    arguments = ["serve", "--data-dir", str(fleet.layout.root), "--port", str(port), "--probe-port", str(probe)]
    with fleet.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments],
            env={**os.environ, "HOLDFAST_DSN": fleet.postgres.dsn},
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: asked(probe, "/healthz") == 200, 20, "it is alive before Postgres is")
        assert asked(probe, "/readyz") == 503
        fleet.postgres.start()
        eventually(lambda: asked(probe, "/readyz") == 200, 20, "it is ready")
        assert [asked(port, path) for path in ("/healthz", "/readyz")] == [401, 401], "the main port asks for a token"
        assert [asked(probe, path) for path in ("/v1/pools", "/metrics", "/")] == [404, 404, 404]
        fleet.postgres.stop()
        eventually(lambda: asked(probe, "/readyz") == 503, 20, "it is no longer ready")
        assert asked(probe, "/healthz") == 200, "a kubelet does not restart it because of that"
        lines = fleet.log.read_text().splitlines()
        assert any("beat not stored" in line for line in lines)
        assert not [line for line in lines if not line.startswith("{")], "an outage is logged in lines, without tracebacks"
        assert "Traceback" not in "".join(lines)
    finally:
        process.kill()
        process.wait()


def asked(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
