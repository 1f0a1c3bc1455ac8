"""Turn signals into an exception, so that an interrupted plan stops its processes and removes its files."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """This signal requested a stop."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raises Interrupted at the first SIGINT or SIGTERM. Later signals are ignored until the block ends, because a second Ctrl-C
    would otherwise stop the clean-up and leave a Postgres behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        ignore_signals()
        raise Interrupted(number)

    before = {each: signal.signal(each, interrupt) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def ignore_signals() -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Delays signals to the end of the block. Processes that start in the block never receive them. A terminal sends Ctrl-C to
    all processes, and each of them would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
