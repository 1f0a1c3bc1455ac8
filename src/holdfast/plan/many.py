"""Run several settings at the same time, in several processes on one Postgres, and report their progress."""

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from ..sim.many import server
from .figures import Figures
from .fleet import PlannedFleet, Setting, Unfit
from .interruption import signals_held
from .trace import Trace

LOOK = 0.5  # seconds between two updates of the progress
Progress = Callable[[dict[int, float]], None]  # called with the finished share of each setting

_shares: Any = None  # in a child process: the queue for its progress


class RunFailed(Exception):
    """A run failed. The message says why."""


def run_settings(settings: Iterable[Setting], trace: Trace, jobs: int, progress: Progress) -> list[Figures]:
    """Returns the figures of all settings, ordered by their number of warm workers. Raises Interrupted after SIGINT or SIGTERM,
    when all processes have ended and the files are removed."""
    # The largest settings start first, because they take longest and would otherwise delay the end.
    ordered = sorted(settings, key=lambda setting: -setting.spec.warm)
    with signals_held() as check, server() as postgres:
        check()
        context = multiprocessing.get_context("spawn")
        shares = context.SimpleQueue()
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_listen, initargs=(shares,)) as pool:
            try:
                running = {pool.submit(_run_one, setting, trace, postgres.dsn): setting.spec.warm for setting in ordered}
                return sorted(_collect(running, shares, progress, check), key=lambda figures: figures.warm)
            except BaseException:
                for child in multiprocessing.active_children():
                    child.kill()  # otherwise the pool waits for their results, which takes minutes
                pool.shutdown(wait=True, cancel_futures=True)
                raise


def _collect(running: dict[Future[Figures], int], shares: Any, progress: Progress, check: Callable[[], None]) -> list[Figures]:
    """Returns the figures of all settings. Reports the progress and calls `check` every LOOK seconds."""
    done = dict.fromkeys(running.values(), 0.0)
    left, found = set(running), []
    while left:
        ended, left = wait(left, LOOK, FIRST_COMPLETED)
        check()
        while not shares.empty():
            warm, share = shares.get()
            done[warm] = max(done[warm], share)
        for one in ended:
            warm = running[one]
            try:
                found.append(one.result())
            except Unfit as unfit:
                raise RunFailed(f"warm {warm}: {unfit}") from None
            except BrokenProcessPool:
                raise RunFailed(f"warm {warm}: its process was killed, perhaps for lack of memory; try fewer --jobs") from None
            except Exception as error:
                raise RunFailed(f"warm {warm}: the simulation has a bug: {type(error).__name__}: {error}") from error
            done[warm] = 1.0
        progress(done)
    return found


def _listen(shares: Any) -> None:
    global _shares
    _shares = shares


def _run_one(setting: Setting, trace: Trace, dsn: str) -> Figures:
    return PlannedFleet(setting, trace, dsn, lambda share: _shares.put((setting.spec.warm, min(share, 0.99)))).run()
