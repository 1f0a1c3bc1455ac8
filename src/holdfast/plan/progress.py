"""Show the progress of the settings on stderr: one changing line on a terminal, otherwise a new line every 10 s."""

import sys
import time

from ..model.duration import text

SELDOM = 10.0  # seconds between two lines in a log


class Progress:
    def __init__(self, settings: int) -> None:
        self._settings = settings
        self._began = self._printed = time.monotonic()
        self._live = sys.stderr.isatty()
        self._open = False  # whether the cursor is in the changing line

    def __call__(self, done: dict[int, float]) -> None:
        share, now = sum(done.values()) / self._settings, time.monotonic()
        if not self._live and now - self._printed < SELDOM and share < 1:
            return
        self._printed = now
        passed, ready = now - self._began, sum(each >= 1 for each in done.values())
        left = f", about {text(passed / share - passed)} left" if 0.02 < share < 1 else ""
        line = f"{ready} of {self._settings} settings, {share:.0%}, {text(passed)}{left}"
        if self._live:
            self._open = share < 1
            print(f"\r{line:<70}", end="" if self._open else "\n", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def leave(self) -> None:
        """Ends the changing line, so that a message does not continue it."""
        if self._open:
            print(file=sys.stderr, flush=True)
