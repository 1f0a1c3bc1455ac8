"""Finds the programs of a Kubernetes control plane in $KUBEBUILDER_ASSETS, or in the cache that `make kube` fills."""

import os
import re
from pathlib import Path

NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
REPO = Path(__file__).parents[2]


def version() -> str:
    """Returns the version of Kubernetes from go.mod, because it is written only there."""
    found = re.search(r"^\s*k8s\.io/kubernetes v(\S+)", (REPO / "testcluster" / "go.mod").read_text(), re.MULTILINE)
    assert found, "testcluster/go.mod does not require k8s.io/kubernetes"
    return found[1]


def folder() -> Path:
    """Returns $KUBEBUILDER_ASSETS if it holds all programs, otherwise the cache, because versions must not be mixed."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and not _lacking(Path(assets)):
        return Path(assets)
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = os.environ.get("HOLDFAST_KUBE_CACHE") or f"{caches}/holdfast"
    return Path(home) / f"kube-{version()}"


def path(name: str) -> Path:
    return folder() / name


def missing() -> str | None:
    """Returns what is missing and what to do about it, or None if everything is there."""
    lacking = _lacking(folder())
    if not lacking:
        return None
    return f"no {', '.join(lacking)} in {folder()}: run `make kube` (builds Kubernetes {version()} once, about ten minutes)"


def _lacking(place: Path) -> list[str]:
    return [name for name in NAMES if not os.access(place / name, os.X_OK)]
