"""The environment of a demo: its own fleet in a temporary folder on free ports, which is removed afterwards."""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..postgres.embedded import EmbeddedPostgres, PostgresFailed, find_binaries
from ..up import Plan, prepare
from . import machine

REPLICAS = 2


class Stage:
    """A temporary folder with a log and the files in which jobs record their start and end. All processes of the demo name it."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hf-demo-")).resolve()
        self.home.chmod(0o755)  # if the demo runs as root, Postgres runs as another user
        self.begun = self.home / "begun"
        self.done = self.home / "done"
        self.log = self.home / "log"

    @contextlib.contextmanager
    def redirect_logs(self) -> Iterator[None]:
        """Redirects stderr, to which the replicas and their supervisor log, to a file, so that the demo's lines stay readable."""
        sys.stderr.flush()
        own = os.dup(2)
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)
            os.close(log)
            os.close(own)

    def last_log_lines(self, lines: int = 20) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []

    def clean_up(self) -> None:
        """Ends the processes that are left, which a normal end does not leave, and removes all files."""
        machine.end_all(self.home)
        shutil.rmtree(self.home, ignore_errors=True)


class LocalStage(Stage):
    """A fleet on this machine."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = Plan(self.home / "data", port=free_ports(REPLICAS), replicas=REPLICAS)
        self.layout = prepare(self.plan)  # the demo needs the token before its fleet starts

    @property
    def token(self) -> str:
        return self.layout.token.read_text().strip()

    def clean_up(self) -> None:
        end_postgres(self.layout.postgres)
        super().clean_up()


def end_postgres(data_dir: Path) -> None:
    """Kills Postgres, and removes its files in other folders."""
    postgres = EmbeddedPostgres(data_dir, find_binaries())
    with contextlib.suppress(PostgresFailed):
        postgres.kill()
    shutil.rmtree(postgres.socket_dir, ignore_errors=True)
    if data_dir.is_symlink():  # the data is elsewhere if the user of Postgres cannot reach the demo's folder
        shutil.rmtree(data_dir.resolve(), ignore_errors=True)


def free_ports(count: int) -> int:
    """Returns the first of `count` consecutive free ports."""
    while True:
        with contextlib.ExitStack() as held:
            first = held.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                for n in range(1, count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port + n))
                return port
