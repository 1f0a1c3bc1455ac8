"""Runs the command line in this process, against the fake server of the client's tests or the real API of the API's tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

from cli_results import Cli, Result
from fake_holdfast import TOKEN, FakeHoldfast

from holdfast.cli import connection
from holdfast.cli.main import main
from served_api import Stage


@pytest.fixture
def server() -> Iterator[FakeHoldfast]:
    fake = FakeHoldfast(replicas=2)
    yield fake
    fake.close()


@pytest.fixture
def stage(served: Stage) -> Stage:
    return served


@pytest.fixture
def run_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Returns a function that runs a command in an empty home folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        connection._hidden.clear()
        code: object = 0
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code
        sys.stdout.flush()
        printed = capfd.readouterr()
        return Result(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run


@pytest.fixture
def cli(server: FakeHoldfast, run_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`cli("get", "pools")` runs a command against the fake server. Server and token come from the environment."""
    monkeypatch.setenv("HOLDFAST_URL", ",".join(server.urls))
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    return run_cli


@pytest.fixture
def real_cli(stage: Stage, run_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command against the real API on a real Postgres, as its admin. No duty runs there."""
    monkeypatch.setenv("HOLDFAST_URL", stage.url)
    monkeypatch.setenv("HOLDFAST_TOKEN", "admin")
    return run_cli
