"""What runs below a folder, as the machine's own process table shows it: none of Holdfast's books are asked."""

import contextlib
import os
import re
import time
from pathlib import Path

import psutil

END_WITHIN = 20.0  # seconds for killed processes to be gone


def processes(home: Path) -> list[psutil.Process]:
    """Every process that works below the folder, or carries its name in its command line or environment."""
    return [process for process, _ in _found(home)]


def workers(home: Path) -> dict[str, list[psutil.Process]]:
    """The same by worker of a local fleet."""
    return by_folder(home / "data" / "workers")


def by_folder(folder: Path) -> dict[str, list[psutil.Process]]:
    """The same by who they belong to: each has a folder of its own in this one, which its processes name."""
    inside = re.compile(re.escape(f"{folder}/") + r"([A-Za-z0-9][\w.-]*)")
    by_owner: dict[str, list[psutil.Process]] = {}
    for process, words in _found(folder):
        if name := inside.search(words):
            by_owner.setdefault(name[1], []).append(process)
    return by_owner


def _found(home: Path) -> list[tuple[psutil.Process, str]]:
    found = []
    for process in psutil.process_iter():
        # psutil compares start times, so a pid that was given away in between never stands for the old process.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = "\n".join([process.cwd(), *process.cmdline(), *process.environ().values()])
            if str(home) in words:
                found.append((process, words))
    return found


def end_all(home: Path) -> None:
    """Kill whatever is left below the folder, until two looks in a row find nothing: one may have forked just before."""
    deadline = time.monotonic() + END_WITHIN
    quiet = 0
    while quiet < 2 and time.monotonic() < deadline:
        left = processes(home)
        quiet = 0 if left else quiet + 1
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)
