"""Hold back SIGINT and SIGTERM while a plan runs, so that an interrupted plan ends its processes and removes its files."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """This signal requested a stop."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Blocks the signals, and yields a function that raises Interrupted if one has arrived. The end of the block calls it too.

    No handler raises an exception, because an exception at any line of a library can leave a lock taken, and then the clean-up
    would wait forever. Processes that start in the block inherit the mask. A terminal sends Ctrl-C to all of them, and otherwise
    each would print a traceback or leave its work half done.
    """
    held = {each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN}  # nohup(1) ignores signals for us
    resource_tracker.ensure_running()  # before the block, because its start unblocks the signals again

    def check() -> None:
        if arrived := signal.sigpending() & held:
            raise Interrupted(min(arrived))

    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield check
        check()
    finally:
        while arrived := signal.sigpending() & held:
            signal.sigwait(arrived)  # otherwise the signal would end this process when the mask is restored
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
