"""Helm as scripts/helm.sh built it: `render("holdfast", "ns", "replicas=3")` gives the chart's objects."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).parents[2]
CHART = REPO / "charts" / "holdfast"


def version() -> str:
    """The one that go.mod builds: the only place where it is written."""
    found = re.search(r"^\s*helm\.sh/helm/v4 v(\S+)", (REPO / "testcluster" / "helm" / "go.mod").read_text(), re.MULTILINE)
    assert found, "testcluster/helm/go.mod does not require helm.sh/helm/v4"
    return found[1]


def path() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = os.environ.get("HOLDFAST_KUBE_CACHE") or f"{caches}/holdfast"
    return Path(home) / f"helm-{version()}" / "helm"


def missing() -> str | None:
    """What is not there, and what to do about it; None when it is there."""
    if os.access(path(), os.X_OK):
        return None
    return f"no helm at {path()}: run `scripts/helm.sh` (builds Helm {version()} once, some minutes)"


def want_helm() -> None:
    """Skip the test when there is none, or fail it where it is required."""
    if lacking := missing():
        (pytest.fail if os.environ.get("HOLDFAST_REQUIRE_KUBE") == "1" else pytest.skip)(lacking)


def helm(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Nothing of the person's own set-up is read."""
    private = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run([str(path()), *args], capture_output=True, text=True, env=private | (env or {}))


def refusal(*values: str, release: str = "holdfast") -> str:
    """Why the chart is not rendered with these values."""
    done = _template(release, "holdfast", values)
    assert done.returncode != 0, done.stdout
    return done.stderr


def render(release: str, namespace: str, *values: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text(release, namespace, *values)) if each is not None]


def text(release: str, namespace: str, *values: str) -> str:
    done = _template(release, namespace, values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _template(release: str, namespace: str, values: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    settings = [word for value in values for word in ("--set", value)]
    return helm("template", release, str(CHART), "--namespace", namespace, *settings)
