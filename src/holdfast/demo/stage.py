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
    """A folder that everything which is started names, the marks that jobs leave in it, and a log."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hf-demo-")).resolve()
        self.home.chmod(0o755)  # as root, Postgres runs as another account
        self.begun = self.home / "begun"
        self.done = self.home / "done"
        self.log = self.home / "log"

    @contextlib.contextmanager
    def logs_aside(self) -> Iterator[None]:
        """What the replicas and their supervisor log goes to a file: the story is told on stdout alone."""
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

    def last_words(self, lines: int = 20) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []

    def clear_away(self) -> None:
        """End what is left and remove every file. The ordinary end leaves nothing to do but the files."""
        machine.end_all(self.home)
        shutil.rmtree(self.home, ignore_errors=True)


class LocalStage(Stage):
    """A fleet on this machine."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = Plan(self.home / "data", port=free_ports(REPLICAS), replicas=REPLICAS)
        self.layout = Layout(self.plan.data_dir)

    @property
    def token(self) -> str:
        return self.layout.token.read_text().strip()

    def clear_away(self) -> None:
        end_postgres(self.layout.postgres)
        super().clear_away()


def end_postgres(data_dir: Path) -> None:
    """At once, with the files that it may have elsewhere."""
    postgres = EmbeddedPostgres(data_dir, find_binaries())
    with contextlib.suppress(PostgresFailed):
        postgres.kill()
    shutil.rmtree(postgres.socket_dir, ignore_errors=True)
    if data_dir.is_symlink():  # it lies elsewhere where its account cannot reach our folder
        shutil.rmtree(data_dir.resolve(), ignore_errors=True)


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
