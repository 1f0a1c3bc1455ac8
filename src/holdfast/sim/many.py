"""Run many seeds at the same time, one process per core, on one Postgres."""

import contextlib
import multiprocessing
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from ..postgres.embedded import EmbeddedPostgres
from .faults import Fault
from .run import Outcome, Run
from .server import launch
from .shrink import shrink


@contextlib.contextmanager
def server() -> Iterator[EmbeddedPostgres]:
    with tempfile.TemporaryDirectory(prefix="hf-sim-") as folder:
        Path(folder).chmod(0o755)  # as root, Postgres runs as another account
        postgres = launch(Path(folder))
        try:
            yield postgres
        finally:
            postgres.stop()


def run_one(seed: str, dsn: str, faults: list[Fault] | None = None) -> Outcome:
    return Run(seed, dsn, faults).run()


def shrunk(failed: Outcome, dsn: str) -> Outcome:
    return shrink(failed, lambda faults: run_one(failed.seed, dsn, faults))


def run_many(seeds: Iterable[str], dsn: str, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes as the runs finish. A run without failure sends no trace, because it has thousands of lines."""
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(_brief, seed, dsn) for seed in seeds]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            for one in waiting:
                one.cancel()


def _brief(seed: str, dsn: str) -> Outcome:
    outcome = run_one(seed, dsn)
    if outcome.failure is not None:
        return outcome
    return Outcome(seed, None, outcome.faults, [], outcome.digest, outcome.statements, outcome.seconds)
