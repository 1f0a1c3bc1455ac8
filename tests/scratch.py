"""Chooses the folder of the tests' Postgres servers, and copies a prepared cluster, because creating one takes seconds."""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries

MEMORY = Path("/dev/shm")
NEEDED = 4 * 1024**3  # bytes that must be free in memory; the tests of all processes use less than half of them


def memory() -> Path | None:
    """Returns a folder in memory for Postgres servers, because their tests wait for the disk most of the time. Returns None if
    memory is short. Other files stay on disk: the test cluster's containers do not see this folder."""
    enough = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= NEEDED
    return MEMORY if enough else None


def prepared_postgres(data_dir: Path) -> EmbeddedPostgres:
    """Returns a Postgres that has a new cluster in this folder and was not started yet. All such clusters share a password."""
    subprocess.run(["cp", "-a", "--", str(_cluster()), str(data_dir)], check=True)
    return EmbeddedPostgres(data_dir, find_binaries())


@functools.cache
def _cluster() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir=memory()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # because Postgres runs as another account when the tests run as root
    made = EmbeddedPostgres(folder / "postgres", find_binaries())
    made.start()
    made.stop()
    return made.data_dir
