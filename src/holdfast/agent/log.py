"""Write one aligned line per event to stderr. Callers pass names and numbers, never a claim's payload or secrets."""

import sys
import time

_worker = "-"


def set_worker(worker: str) -> None:
    """Sets the worker that all lines name."""
    global _worker
    _worker = worker


def log(event: str, **facts: object) -> None:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    shown = " ".join(f"{name}={_one_line(value)}" for name, value in facts.items() if value not in (None, ""))
    sys.stderr.write(f"{stamp} {_worker:<16} {event:<12} {shown}".rstrip() + "\n")
    sys.stderr.flush()


def _one_line(value: object) -> str:
    text = str(value)
    return repr(text) if not text.isprintable() or " " in text else text
