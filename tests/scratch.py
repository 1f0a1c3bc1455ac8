"""Chooses the folder for the tests' files, and copies a prepared Postgres cluster, because creating one takes seconds."""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from holdfast.postgres.embedded import EmbeddedPostgres, find_binaries

MEMORY = Path("/dev/shm")
NEEDED = 8 * 1024**3  # bytes that must be free in memory; the whole suite uses less than half of them


def use_memory() -> None:
    """Puts the temporary files of this process and its children into memory, because tests wait for the disk most of the time.

    They stay where they are if memory is short, or if programs cannot be started from there.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < NEEDED:
        return
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def prepared_postgres(data_dir: Path) -> EmbeddedPostgres:
    """Returns a Postgres that has a new cluster in this folder and was not started yet. All such clusters share a password."""
    subprocess.run(["cp", "-a", "--", str(_cluster()), str(data_dir)], check=True)
    return EmbeddedPostgres(data_dir, find_binaries())


@functools.cache
def _cluster() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # because Postgres runs as another account when the tests run as root
    made = EmbeddedPostgres(folder / "postgres", find_binaries())
    made.start()
    made.stop()
    return made.data_dir
