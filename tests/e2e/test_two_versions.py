"""A replica of the previous version and one of this version share a schema. Both serve, and each can go on alone."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from fleet import JOB, SESSION, Fleet, eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the previous commit that changed the product, built as a wheel and unpacked."""
    log = _git("log", "-2", "--format=%H", "--", "src/holdfast")
    commits = log.split() if log else []
    if len(commits) < 2:
        pytest.skip("there is no earlier version: this checkout has no history")
    tree, wheels, home = (tmp_path_factory.mktemp(name) for name in ("tree", "wheels", "before"))
    archive = subprocess.run(["git", "archive", commits[1]], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(tree, filter="data")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, tree], check=True)
    wheel = next(wheels.glob("*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", home, wheel], check=True)
    return home


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def test_two_versions_serve_side_by_side(before: Path, make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": {**JOB, "warm": 2}, "notebook": SESSION})
    fleet.warm(3)
    session = fleet.claim("notebook", tenant="acme", wait="30s")
    fleet.kill(0)
    fleet.start(0, PYTHONPATH=str(before))  # from now on its agents are of that version as well
    eventually(lambda: fleet.api("GET", "/readyz", replica=0).status == 200, 30)
    assert _loaded(fleet, 0).startswith(str(before)), "the old code really runs"
    for n in range(6):
        claim = fleet.claim("linux", command=["sh", "-c", f"echo {n}"], wait="40s", replica=n % 2)
        ended = fleet.see(claim["id"], wait="40s", replica=(n + 1) % 2)
        assert (ended["outcome"], ended["exit_code"]) == ("completed", 0)
    for replica in (0, 1):
        assert fleet.api("POST", f"/v1/claims/{session['id']}/renew", {"fence": session["fence"]}, replica=replica).status == 200
    # Each version runs alone, with workers and claims of the other version.
    fleet.kill(1)
    eventually(lambda: _duties(fleet, 0) >= {"match", "converge", "scale"}, 30, "the old one does the duties")
    claim = fleet.claim("linux", command=["true"], wait="40s", replica=0)
    assert fleet.see(claim["id"], wait="40s", replica=0)["outcome"] == "completed"
    fleet.start(1)
    eventually(lambda: fleet.api("GET", "/readyz", replica=1).status == 200, 30)
    fleet.kill(0)
    eventually(lambda: _duties(fleet, 1) >= {"match", "converge", "scale"}, 30, "the new one does the duties")
    claim = fleet.claim("linux", command=["true"], wait="40s", replica=1)
    assert fleet.see(claim["id"], wait="40s", replica=1)["outcome"] == "completed"
    assert fleet.see(session["id"], replica=1)["state"] == "active"
    fleet.check_promises()


def _loaded(fleet: Fleet, n: int) -> str:
    """Returns the path from which a replica's process has loaded the product, read from its memory maps."""
    environ = Path(f"/proc/{fleet.replicas[n].pid}/environ").read_bytes().split(b"\0")
    path = next(item for item in environ if item.startswith(b"PYTHONPATH="))
    where = os.fsdecode(path.removeprefix(b"PYTHONPATH="))
    shown = subprocess.run(
        [sys.executable, "-c", "import holdfast; print(holdfast.__file__)"], env={**os.environ, "PYTHONPATH": where},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return shown.stdout.strip()


def _duties(fleet: Fleet, n: int) -> set[str]:
    found = fleet.api("GET", "/v1/replicas", replica=n).json["items"]
    return {duty for r in found if r["port"] == fleet.ports[n] and r["state"] == "live" for duty in r["duties"]}
