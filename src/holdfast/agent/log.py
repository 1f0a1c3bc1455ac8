"""One aligned line an event, to stderr. Callers pass names and numbers, never what a claim carries."""

import sys
import time

_who = "-"


def speak_for(worker: str) -> None:
    global _who
    _who = worker


def log(event: str, **facts: object) -> None:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    told = " ".join(f"{name}={_one_line(value)}" for name, value in facts.items() if value not in (None, ""))
    sys.stderr.write(f"{stamp} {_who:<16} {event:<12} {told}".rstrip() + "\n")
    sys.stderr.flush()


def _one_line(value: object) -> str:
    text = str(value)
    return repr(text) if not text.isprintable() or " " in text else text
