"""Judges mutants inside a copy: writes one into its file, runs its tests until one fails, restores the file.

Tasks and verdicts are JSON lines. A run from the start spends seconds on imports and on the collection of tests, so there are two
ways. A change inside of a function is judged in a fork of a process that has collected the tests already; the fork gets the
changed function. Every other change is judged in a fork of a process that has only the libraries loaded.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .python_swap import swap

LIBRARIES = (
    "pytest", "hypothesis", "hypothesis.strategies", "pytest_timeout", "xdist", "schemathesis", "asyncpg", "aiohttp", "msgspec",
    "structlog", "starlette.applications", "uvicorn", "psutil", "yaml", "rich", "typer", "prometheus_client", "lightkube",
)  # fmt: skip
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: what a mutant's tests leave behind becomes our child, so that we can end it
FIRST_CHANGE = 1_000_000_000  # each written file gets another second, because Python caches its bytecode by time and size
READY = "collected\n"
NOT_SWAPPED = 98  # the exit code of a fork that could not take the mutant in
PYTEST = ["-x", "-q", "-s", "--tb=line", "-p", "no:cacheprovider"]


def main() -> None:
    _adopt_orphans()
    for library in LIBRARIES:
        importlib.import_module(library)
    answers = os.fdopen(os.dup(1), "w")
    collected: Collected | None = None
    for number, line in enumerate(sys.stdin):
        task = json.loads(line)
        path = Path(task["path"])
        original = path.read_text()
        if collected is not None and collected.tests != task["tests"]:
            collected.close()
            collected = None
        if collected is None:
            collected = Collected(task["tests"])
        try:
            _write(path, task["code"], FIRST_CHANGE + 2 * number)
            answer = collected.judge(task) if task["scope"] else None
            if answer is None:
                answer = in_fork(partial(_run, task["tests"]), task["seconds"], keep=collected.pid)
        finally:
            _write(path, original, FIRST_CHANGE + 2 * number + 1)
        print(json.dumps(answer), file=answers, flush=True)
    if collected is not None:
        collected.close()


def _write(path: Path, code: str, changed: int) -> None:
    path.write_text(code)
    os.utime(path, (changed, changed))


def in_fork(run: Callable[[], int], seconds: float, keep: int | None = None) -> dict[str, Any]:
    """Returns the outcome: survived (all tests passed), killed (one failed), or slow (they did not end within the limit)."""
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r") as printed:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.setsid()
                out = os.open(printed.name, os.O_WRONLY)
                for number in (1, 2):
                    os.dup2(out, number)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                code = run()
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                os._exit(code)
        ended = _wait(child, began + seconds)
        _end_what_is_left(keep)
        outcome = "slow" if ended is None else "killed" if ended else "survived"
        lines = printed.read().splitlines()
    by = next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), "")
    last = "\n".join(lines[-40:])
    return {"outcome": outcome, "seconds": time.monotonic() - began, "by": by[:200], "printed": last, "code": ended}


def _run(tests: list[str]) -> int:
    import pytest

    _quick_properties()
    return int(pytest.main([*PYTEST, *tests], plugins=[QuickFirst()]))


def _quick_properties() -> None:
    import hypothesis

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # a smaller example would not change the verdict
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases, deadline=None)
    hypothesis.settings.load_profile("mutants")


class QuickFirst:
    """Runs examples before properties, and both before tests that need a Postgres, because an example kills most mutants."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: ("shared_postgres" in item.fixturenames, hasattr(item.obj, "hypothesis")))


class Collected(QuickFirst):
    """A forked process that has collected the tests, and forks for each mutant."""

    def __init__(self, tests: list[str]) -> None:
        self.tests = tests
        tasks, self._tasks = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._tasks)
            os.close(self._answers)
            self._serve(os.fdopen(tasks), os.fdopen(answers, "w"))
        os.close(tasks)
        os.close(answers)
        self._reader = os.fdopen(self._answers)
        # The tests have to be collected before the first mutant is written; otherwise it would be loaded for good.
        self._usable = self._reader.readline() == READY

    def judge(self, task: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the verdict, or None if this mutant cannot be put into a process that has loaded the product."""
        if not self._usable:
            return None
        with contextlib.suppress(BrokenPipeError):
            os.write(self._tasks, (json.dumps(task) + "\n").encode())
        answer = self._reader.readline()
        if not answer:
            self._usable = False
            return None
        found: dict[str, Any] = json.loads(answer)
        return None if found["code"] == NOT_SWAPPED else found

    def close(self) -> None:
        os.close(self._tasks)
        self._reader.close()
        os.waitpid(self.pid, 0)

    def _serve(self, tasks: Any, answers: Any) -> None:
        """Runs in the forked process: collects the tests, then judges until the pipe is closed."""
        import pytest

        _adopt_orphans()
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        _quick_properties()

        class Loop(QuickFirst):
            failed = ""

            def pytest_runtest_logreport(self, report: Any) -> None:
                if report.failed and not self.failed:
                    self.failed = f"FAILED {report.nodeid}"

            def pytest_runtestloop(self, session: Any) -> bool:
                if session.testsfailed:
                    return True  # a test file could not be loaded, so nothing can be judged here
                print(READY, end="", file=answers, flush=True)
                for line in tasks:
                    task = json.loads(line)
                    answer = in_fork(partial(self.one, session, task), task["seconds"])
                    print(json.dumps(answer), file=answers, flush=True)
                return True

            def one(self, session: Any, task: dict[str, Any]) -> int:
                if not swap(task["path"], task["code"], task["scope"]):
                    return NOT_SWAPPED
                for item, after in zip(session.items, [*session.items[1:], None], strict=True):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                    if session.testsfailed:
                        break
                with contextlib.suppress(Exception):
                    session._setupstate.teardown_exact(None)  # stops what tests share, such as their Postgres
                print(f"\n{self.failed}")
                return 1 if session.testsfailed else 0

        with contextlib.suppress(BaseException):
            pytest.main([*PYTEST, *self.tests], plugins=[Loop()])
        os._exit(0)


def _adopt_orphans() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)


def _wait(child: int, until: float) -> int | None:
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _end_what_is_left(keep: int | None) -> None:
    """Ends what the tests left behind, such as a Postgres of a run that was stopped."""
    import psutil

    while left := [process for process in psutil.Process().children(recursive=True) if process.pid != keep]:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=5)


if __name__ == "__main__":
    main()
