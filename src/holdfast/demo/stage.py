"""Where the demo plays: a fleet of its own in a temporary folder on free ports, and nothing left of it afterwards."""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..postgres.embedded import EmbeddedPostgres, PostgresFailed, find_binaries
from ..up import Plan
from ..wiring import Layout
from . import machine

REPLICAS = 2


class Stage:
    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hf-demo-")).resolve()
        self.home.chmod(0o755)  # as root, Postgres runs as another account
        self.plan = Plan(self.home / "data", port=free_ports(REPLICAS), replicas=REPLICAS)
        self.layout = Layout(self.plan.data_dir)
        self.begun = self.home / "begun"
        self.done = self.home / "done"
        self._log = self.home / "log"

    @property
    def token(self) -> str:
        return self.layout.token.read_text().strip()

    @contextlib.contextmanager
    def logs_aside(self) -> Iterator[None]:
        """What the replicas and their supervisor log goes to a file: the story is told on stdout alone."""
        sys.stderr.flush()
        own = os.dup(2)
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)
            os.close(log)
            os.close(own)

    def last_words(self, lines: int = 20) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()[-lines:] if self._log.exists() else []

    def clear_away(self) -> None:
        """End what is left and remove every file. The ordinary end leaves nothing to do but the files."""
        postgres = self.layout.postgres
        with contextlib.suppress(PostgresFailed):
            EmbeddedPostgres(postgres, find_binaries()).kill()
        machine.end_all(self.home)
        if postgres.is_symlink():  # it lies elsewhere where its account cannot reach our folder
            shutil.rmtree(postgres.resolve(), ignore_errors=True)
        shutil.rmtree(EmbeddedPostgres(postgres, find_binaries()).socket_dir, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        with contextlib.ExitStack() as held:
            first = held.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                for n in range(1, count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port + n))
                return port
