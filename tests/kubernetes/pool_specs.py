"""Pools of jobs and sessions for a fleet on Kubernetes, and jobs that run until the test opens their gate."""

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from kube_fleet import job

from holdfast.kubernetes import names

SERVE = "import http.server, os; http.server.test(http.server.SimpleHTTPRequestHandler, bind=os.environ['IP'], port=8080)"
ADDRESS = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
# Spreads the pods evenly over the nodes, so that each node of a test has some.
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {names.INSTALL: "one"}},
}


def jobs(**spec: Any) -> dict[str, Any]:
    """Returns a pool of jobs whose image has a shell."""
    pod = {"containers": [{"name": "work", "image": "work:test"}], "topologySpreadConstraints": [SPREAD]}
    return {"mode": "job", "warm": 2, "max": 10, "drain": {"grace": "60s"}, "pod": {"spec": pod}, **spec}


def sessions(**spec: Any) -> dict[str, Any]:
    """Returns a pool of sessions. Their server ignores SIGTERM as PID 1, as the programs of many images do."""
    container = {"name": "work", "image": "notebook:test", "command": ["python", "-c", SERVE], "env": [ADDRESS]}
    pod = {"containers": [container], "topologySpreadConstraints": [SPREAD]}
    return {"mode": "session", "warm": 1, "max": 10, "claim": {"lease": "10m"}, "pod": {"spec": pod}, **spec}


class Gate:
    """A job that runs until the gate is opened. Each run appends a line to a file."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self.path, self.runs = folder / name, folder / f"{name}.runs"
        folder.chmod(0o755)

    def job(self, code: int = 0) -> list[str]:
        return ["sh", "-c", f"echo ran >> {self.runs}; until [ -e {self.path} ]; do sleep 0.1; done; exit {code}"]

    def open(self) -> None:
        self.path.touch()

    @property
    def ran(self) -> int:
        return len(self.runs.read_text().split()) if self.runs.exists() else 0


def get(endpoint: str, credential: str) -> int:
    """Sends a request to a session's worker, as its holder does. Returns the status."""
    request = urllib.request.Request(endpoint, headers={"Authorization": f"Bearer {credential}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def sized(resources: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Returns a pool of jobs whose container has these resources."""
    pool = job(**spec)
    pool["pod"]["spec"]["containers"][0]["resources"] = resources
    return pool
