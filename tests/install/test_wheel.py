"""The package that `pip install .` builds holds everything that the command needs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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
