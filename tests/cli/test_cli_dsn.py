"""`up`, `serve` and `migrate` with a wrong DSN: a malformed one is refused at once, an unreachable one is named."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import free_ports
from holdfast.postgres.dsn import WrongDsn, server_of
from holdfast.postgres.embedded import EmbeddedPostgres
from waiting import eventually

PASSWORD = "correct-horse"
MALFORMED = [
    ("", "must begin with postgresql://"),
    (f"host=db password={PASSWORD}", "must begin with postgresql://"),
    (f"mysql://me:{PASSWORD}@db/holdfast", "must begin with postgresql://"),
    (f"postgresql://me:{PASSWORD}@db:port/holdfast", "its port is not a number"),
    (f"postgresql://me:{PASSWORD}@db:70000/holdfast", "its port is not a number"),
    (f"postgresql://me:{PASSWORD}/x@db/holdfast", "write %40 for @, %2F for /"),
    (f"postgresql://me:{PASSWORD}#x@db/holdfast", "%23 for #"),
    (f"postgresql://me:{PASSWORD}@x@db/holdfast", "write %40 for @"),
    (f"postgresql://me:{PASSWORD}?x@db/holdfast", "cannot be read as a URL"),
    (f"postgresql://me:{PASSWORD}@[db/holdfast", "cannot be read as a URL"),
    (f"postgresql://me:{PASSWORD}@:5432/holdfast", "names no host"),
    (f"postgresql://me:{PASSWORD}@a,b/holdfast?port=1,2,3", "it has 2 hosts and 3 ports"),
]


@pytest.mark.parametrize(("dsn", "server"), [
    ("postgresql://me:pw@db.example/holdfast", "db.example:5432"),
    ("postgres://me:pw@db.example:6000/holdfast?sslmode=require", "db.example:6000"),
    ("postgresql://me:p%40w@a:1,b/holdfast", "a:1, b:5432"),
    ("postgresql://me:pw@a,b/holdfast?port=7", "a:7, b:7"),
    ("postgresql://[::1]:6000/holdfast", "[::1]:6000"),
    ("postgresql://me:pw@/holdfast?host=/run/pg&port=6000", "/run/pg/.s.PGSQL.6000"),
    ("postgresql://%2Frun%2Fpg/holdfast", "/run/pg/.s.PGSQL.5432"),
    ("postgresql:///holdfast", "localhost:5432"),
])  # fmt: skip
def test_a_dsn_names_its_server(dsn: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    assert server_of(dsn) == server


@pytest.mark.parametrize(("dsn", "reason"), MALFORMED)
def test_a_malformed_dsn_is_explained_without_its_password(dsn: str, reason: str) -> None:
    with pytest.raises(WrongDsn) as wrong:
        server_of(dsn)
    assert reason in str(wrong.value)
    assert PASSWORD not in str(wrong.value)


@pytest.mark.parametrize("command", ["up", "serve", "migrate"])
@pytest.mark.parametrize(("dsn", "reason"), [MALFORMED[1], MALFORMED[3], MALFORMED[6]])
def test_a_malformed_dsn_is_refused_at_once_and_nothing_is_created(tmp_path: Path, command: str, dsn: str, reason: str) -> None:
    done = _holdfast(tmp_path, command, dsn)
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stderr.startswith("holdfast: the DSN (--dsn or HOLDFAST_DSN): ")
    assert len(done.stderr.splitlines()) == 1
    assert PASSWORD not in done.stderr + done.stdout
    assert not (tmp_path / "data").exists()


def test_migrate_with_an_option_that_postgres_does_not_know_names_the_option(tmp_path: Path) -> None:
    done = _holdfast(tmp_path, "migrate", f"postgresql://me:{PASSWORD}@127.0.0.1/holdfast?sslmode=perhaps")
    assert done.returncode == 1
    assert "sslmode" in done.stderr
    assert "bug" not in done.stderr
    assert PASSWORD not in done.stderr


def test_migrate_without_a_server_names_host_and_port(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    done = _holdfast(tmp_path, "migrate", f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/holdfast")
    expected = f"holdfast: nothing was migrated: Postgres at 127.0.0.1:{port} is not available (Connection refused)\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize("command", ["migrate", "up", "serve"])
def test_a_login_that_postgres_refuses_ends_the_command_with_the_servers_reason(
    tmp_path: Path, shared_postgres: EmbeddedPostgres, command: str
) -> None:
    login, _, rest = shared_postgres.dsn.rpartition("@")
    done = _holdfast(tmp_path, command, f"{login.rpartition(':')[0]}:{PASSWORD}@{rest}")
    assert done.returncode == 1
    assert 'refused it: password authentication failed for user "holdfast"' in done.stderr
    assert "bug" not in done.stderr
    assert PASSWORD not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_command_that_waits_for_postgres_names_it_and_stops_at_once(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    port = free_ports(1)[0]
    with _started(tmp_path, command, f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/holdfast") as process:
        reason = f"Postgres at 127.0.0.1:{port} is not available (Connection refused)"
        # The second line shows that it goes on trying.
        eventually(lambda: (tmp_path / "log").read_text().count(reason) > 1, 30, "two lines with host and port")
        process.send_signal(number)
        code = process.wait(5)
    assert code in ((0,) if command == "up" else (0, -number))
    printed = (tmp_path / "log").read_text()
    assert "Traceback" not in printed
    assert PASSWORD not in printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_stops_at_once_while_a_server_takes_the_connection_and_never_answers(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with _started(tmp_path, "up", f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/holdfast", "--stop-workers") as process:
            silent.settimeout(60)
            connection, _ = silent.accept()
            with connection:
                process.send_signal(number)
                assert process.wait(5) == 0, (tmp_path / "log").read_text()


def _arguments(home: Path, command: str, *options: str) -> list[str]:
    ports = [] if command == "migrate" else ["--port", str(free_ports(1)[0])]
    return [sys.executable, "-m", "holdfast", command, "--data-dir", str(home / "data"), *ports, *options]


def _holdfast(home: Path, command: str, dsn: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(_arguments(home, command, "--dsn", dsn), capture_output=True, text=True, timeout=120)


@contextlib.contextmanager
def _started(home: Path, command: str, dsn: str, *options: str) -> "Iterator[subprocess.Popen[bytes]]":
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            _arguments(home, command, *options), stdout=log, stderr=log, env={**os.environ, "HOLDFAST_DSN": dsn}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
