"""Runs a real PgBouncer in transaction mode in front of a test's Postgres. A test can kill it and start it again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.postgres.embedded import EmbeddedPostgres

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None,
    reason="NOT TESTED: there is no pgbouncer here, and scripts/test_tools.sh could not install it (it needs root and apt-get)",
)
CONFIG = """
[databases]
* = host={socket_dir} port=5432
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 400
logfile = {log}
{more}
"""


class PgBouncer:
    """`with PgBouncer(postgres, folder) as bouncer`. `bouncer.through(dsn)` is the DSN of the same database through PgBouncer."""

    def __init__(self, postgres: EmbeddedPostgres, folder: Path, size: int = 3, more: str = "") -> None:
        """`size` is the number of server connections for all clients, fewer than one replica has, so that clients share them."""
        self.folder, self.log = folder, folder / "pgbouncer.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        # PgBouncer refuses to run as root, and only the account of Postgres can open the socket of Postgres. So PgBouncer runs as
        # that account.
        owner = postgres.socket_dir.stat()
        self._account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        folder.mkdir(mode=0o700)
        login, self._users = urlsplit(postgres.dsn), folder / "users.txt"
        self._users.write_text(f'"{login.username}" "{login.password}"\n')
        self._config = folder / "pgbouncer.ini"
        self._config.write_text(
            CONFIG.format(socket_dir=postgres.socket_dir, port=self.port, users=self._users, size=size, log=self.log, more=more)
        )
        for path in (folder, self._users, self._config) if self._account else ():
            os.chown(path, owner.st_uid, owner.st_gid)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PgBouncer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def through(self, dsn: str) -> str:
        login = urlsplit(dsn)
        return f"postgresql://{login.username}:{login.password}@127.0.0.1:{self.port}{login.path}?sslmode=disable"

    def start(self) -> None:
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, "--quiet", str(self._config)], cwd=self.folder, start_new_session=True, **self._account
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.02)

    def knows(self, user: str, password: str) -> None:
        with self._users.open("a") as users:
            users.write(f'"{user}" "{password}"\n')
        self.signal(signal.SIGHUP)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kills PgBouncer, which breaks every client connection in the middle of its work."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
