"""Fixtures for tests of plans: a Postgres for simulations, processes in which fleets run, and the command line."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from cli_results import Cli, Result
from plan_runs import run_fleet

from holdfast.cli.main import main
from holdfast.plan.figures import Figures
from holdfast.plan.fleet import Setting
from holdfast.plan.trace import Trace
from holdfast.postgres.embedded import EmbeddedPostgres
from holdfast.sim.many import server
from served_api import Stage

Run = Callable[..., Future[Figures]]


@pytest.fixture(scope="session")
def simulated() -> Iterator[EmbeddedPostgres]:
    with server() as postgres:
        yield postgres


@pytest.fixture(scope="session")
def run(simulated: EmbeddedPostgres) -> Iterator[Run]:
    """Runs one fleet in its own process, because a run changes logging and garbage collection of the whole process."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:

        def start(setting: Setting, trace: Trace, exact: bool = False) -> Future[Figures]:
            return pool.submit(run_fleet, setting, trace, simulated.dsn, exact)

        yield start


@pytest.fixture
def stage(served: Stage) -> Stage:
    return served


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)

    def type_(*arguments: str) -> Result:
        code: object = 0
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code
        sys.stdout.flush()
        printed = capfd.readouterr()
        return Result(code if isinstance(code, int) else 0, printed.out, printed.err)

    return type_
