"""The trace of a run: one aligned line per event, and the same bytes for the same seed."""

import hashlib
from collections.abc import Callable


class Trace:
    def __init__(self, clock: Callable[[], float], begin: float) -> None:
        self._clock = clock
        self._begin = begin
        self.lines: list[str] = []

    def line(self, what: str, subject: str, text: str) -> None:
        self.lines.append(f"{self._clock() - self._begin:9.3f}  {what:<12} {subject:<14} {text}".rstrip())

    def tail(self, count: int) -> list[str]:
        return self.lines[-count:]

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]
