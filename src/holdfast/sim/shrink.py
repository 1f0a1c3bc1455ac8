"""Shorten a failing run: leave out faults as long as the same promise is still broken."""

from collections.abc import Callable

from .faults import Fault
from .run import RunResult


def shrink(failed: RunResult, run: Callable[[list[Fault]], RunResult], tries: int = 40) -> RunResult:
    """Returns the shortest failing run found. First large parts of the plan are left out, then single faults."""
    assert failed.failure is not None
    best, part = failed, max(1, len(failed.faults) // 2)
    while tries > 0 and best.faults:
        begin, shorter = 0, False
        while begin < len(best.faults) and tries > 0:
            tries -= 1
            tried = run(best.faults[:begin] + best.faults[begin + part :])
            if tried.failure is not None and tried.failure.promise == failed.failure.promise:
                best, shorter = tried, True
            else:
                begin += part
        if part == 1 and not shorter:
            break
        part = max(1, part // 2)
    return best
