"""The package that `pip install .` builds holds everything that the command needs."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from fleet import free_ports
from holdfast import __version__
from install.helm import REPO


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the package as pip does, with the build backend of this environment, so that nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"import hatchling.build; print(hatchling.build.build_wheel({str(folder)!r}))"
    built = subprocess.run([sys.executable, "-c", build], cwd=REPO, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.splitlines()[-1]


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("holdfast/")}
    source = REPO / "src"
    files = {str(path.relative_to(source)) for path in (source / "holdfast").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} == packed


def test_the_command_runs_from_it(wheel: Path, tmp_path: Path) -> None:
    """The package is unpacked before all others, as an installation would put it beside them."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    command = [sys.executable, "-c", "import holdfast.cli.main as cli; print(cli.__file__); cli.main()", "--help"]
    ran = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.startswith(str(tmp_path))) == (0, True), ran.stderr
    assert "Fleets of warm workers" in ran.stdout
    entry = next(tmp_path.glob("*.dist-info")) / "entry_points.txt"
    assert "holdfast = holdfast.cli.main:main" in entry.read_text()


def test_who_installed_it_starts_a_fleet_and_stops_it(wheel: Path, tmp_path: Path) -> None:
    """Postgres, a replica and a pool start with the files of the package alone, outside the checkout."""
    package = tmp_path / "package"
    zipfile.ZipFile(wheel).extractall(package)
    start = f"import sys; sys.path.insert(0, {str(package)!r}); import holdfast.cli.main as cli; print(cli.__file__); cli.main()"
    env = {**os.environ, "PYTHONPATH": str(package), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", start]
    version = subprocess.run([*command, "--version"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert version.stdout.splitlines() == [str(package / "holdfast" / "cli" / "main.py"), __version__], version.stderr
    up = subprocess.Popen(
        [*command, "up", "--port", str(free_ports(1)[0]), "--stop-workers"],
        cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert up.stdout is not None
    limit = threading.Timer(90, up.kill)
    limit.start()
    try:
        printed = list(itertools.takewhile(lambda line: "Holdfast is up" not in line, up.stdout))
        assert up.poll() is None, printed
        up.send_signal(signal.SIGINT)
        up.stdout.read()
        assert up.wait(90) == 0, printed
    finally:
        limit.cancel()
        up.kill()
        up.wait()
