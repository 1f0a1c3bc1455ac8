"""Run many seeds at the same time, one process per core, on one Postgres."""

import contextlib
import multiprocessing
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from ..postgres.embedded import EmbeddedPostgres, find_binaries
from ..postgres.server_files import discard
from .faults import Fault
from .run import Run, RunResult
from .server import DATA, launch
from .shrink import shrink


@contextlib.contextmanager
def server() -> Iterator[EmbeddedPostgres]:
    with tempfile.TemporaryDirectory(prefix="hf-sim-") as folder:
        Path(folder).chmod(0o755)  # as root, Postgres runs as another account
        try:
            yield launch(Path(folder))
        finally:  # also if a signal interrupts `launch`, when the server may run already
            EmbeddedPostgres(Path(folder) / DATA, find_binaries()).stop()
            discard(Path(folder) / DATA)  # it is a link if the account of Postgres cannot reach the folder


def run_one(seed: str, dsn: str, faults: list[Fault] | None = None) -> RunResult:
    return Run(seed, dsn, faults).run()


def shrunk(failed: RunResult, dsn: str) -> RunResult:
    return shrink(failed, lambda faults: run_one(failed.seed, dsn, faults))


def run_many(seeds: Iterable[str], dsn: str, jobs: int) -> Iterator[RunResult]:
    """Yield the results as the runs finish. A run without failure sends no trace, because it has thousands of lines."""
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(_brief, seed, dsn) for seed in seeds]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            for one in waiting:
                one.cancel()


def _brief(seed: str, dsn: str) -> RunResult:
    result = run_one(seed, dsn)
    if result.failure is not None:
        return result
    return RunResult(seed, None, result.faults, [], result.digest, result.statements, result.seconds)
