"""Find the processes that belong to a folder, in the machine's process table and without using Holdfast's own data."""

import contextlib
import os
import re
import time
from pathlib import Path

import psutil

END_WITHIN = 20.0  # seconds for killed processes to be gone


def processes(home: Path) -> list[psutil.Process]:
    """Returns every process that works below the folder, or has the folder's path in its command line or environment."""
    return [process for process, _ in _found(home)]


def workers(home: Path) -> dict[str, list[psutil.Process]]:
    """Returns the processes of a local fleet by worker."""
    return by_folder(home / "data" / "workers")


def by_folder(folder: Path) -> dict[str, list[psutil.Process]]:
    """Returns the processes by the name of the subfolder that they belong to."""
    inside = re.compile(re.escape(f"{folder}/") + r"([A-Za-z0-9][\w.-]*)")
    by_name: dict[str, list[psutil.Process]] = {}
    for process, text in _found(folder):
        if name := inside.search(text):
            by_name.setdefault(name[1], []).append(process)
    return by_name


def _found(home: Path) -> list[tuple[psutil.Process, str]]:
    found = []
    for process in psutil.process_iter():
        # psutil compares start times, so a process that reuses a pid is not mistaken for the old process.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            text = "\n".join([process.cwd(), *process.cmdline(), *process.environ().values()])
            if str(home) in text:
                found.append((process, text))
    return found


def end_all(home: Path) -> None:
    """Kills all processes of the folder, until two scans in a row find none, because a process may fork before it is killed."""
    deadline = time.monotonic() + END_WITHIN
    quiet = 0
    while quiet < 2 and time.monotonic() < deadline:
        left = processes(home)
        quiet = 0 if left else quiet + 1
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)
