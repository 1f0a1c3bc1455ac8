"""Write one aligned line per event to stderr. Callers pass names and numbers, never a claim's payload or secrets."""

import sys
import time
from collections.abc import Callable

_worker = "-"
_copy: Callable[[bytes], None] | None = None


def set_worker(worker: str) -> None:
    """Sets the worker that all lines name."""
    global _worker
    _worker = worker


def copy_to(write: Callable[[bytes], None]) -> None:
    """Writes all lines to this place as well."""
    global _copy
    _copy = write


def log(event: str, **facts: object) -> None:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    shown = " ".join(f"{name}={_one_line(value)}" for name, value in facts.items() if value not in (None, ""))
    line = f"{stamp} {_worker:<16} {event:<12} {shown}".rstrip() + "\n"
    sys.stderr.write(line)
    sys.stderr.flush()
    if _copy is not None:
        _copy(line.encode(errors="replace"))


def _one_line(value: object) -> str:
    text = str(value)
    return repr(text) if not text.isprintable() or " " in text else text
