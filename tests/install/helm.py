"""Runs the Helm that scripts/helm.sh built. `render("holdfast", "ns", "replicas=3")` returns the objects of the chart."""

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
    """Returns the version of Helm from go.mod, because it is written only there."""
    found = re.search(r"^\s*helm\.sh/helm/v4 v(\S+)", (REPO / "testcluster" / "helm" / "go.mod").read_text(), re.MULTILINE)
    assert found, "testcluster/helm/go.mod does not require helm.sh/helm/v4"
    return found[1]


def path() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = os.environ.get("HOLDFAST_KUBE_CACHE") or f"{caches}/holdfast"
    return Path(home) / f"helm-{version()}" / "helm"


def missing() -> str | None:
    """Returns what is missing and what to do about it, or None if Helm is there."""
    if os.access(path(), os.X_OK):
        return None
    return f"no helm at {path()}: run `scripts/helm.sh` (builds Helm {version()} once, some minutes)"


def want_helm() -> None:
    """Skips the test if Helm is missing, or fails it where Helm is required."""
    if lacking := missing():
        (pytest.fail if os.environ.get("HOLDFAST_REQUIRE_KUBE") == "1" else pytest.skip)(lacking)


def helm(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Helm without the configuration of the user."""
    private = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run([str(path()), *args], capture_output=True, text=True, env=private | (env or {}))


def refusal(*values: str, release: str = "holdfast") -> str:
    """Returns the error with which the chart refuses these values."""
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
    settings = [name for value in values for name in ("--set", value)]
    return helm("template", release, str(CHART), "--namespace", namespace, *settings)
