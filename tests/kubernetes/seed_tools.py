"""What the tests of the seed documents share: jobs that wait at a gate, marks on pods, and what others do to pods and fleets."""

import asyncio
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
from kube_fleet import KubeFleet

from holdfast.kubernetes import names
from kube.access import MERGE, Access
from kube.control_plane import ControlPlane
from waiting import eventually

SERVE = "import http.server, os; http.server.test(http.server.SimpleHTTPRequestHandler, bind=os.environ['IP'], port=8080)"
ADDRESS = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
# Over the nodes as evenly as may be, so that each of a test's nodes has some.
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {names.INSTALL: "one"}},
}
HELD = (names.BUSY, names.OWNER, names.CLAIM, names.FENCE)


def jobs(**spec: Any) -> dict[str, Any]:
    """A pool of jobs whose image has a shell."""
    pod = {"containers": [{"name": "work", "image": "work:test"}], "topologySpreadConstraints": [SPREAD]}
    return {"mode": "job", "warm": 2, "max": 10, "drain": {"grace": "60s"}, "pod": {"spec": pod}, **spec}


def sessions(**spec: Any) -> dict[str, Any]:
    """A pool of sessions: a server that, as many images do, does not hear SIGTERM as PID 1."""
    container = {"name": "work", "image": "notebook:test", "command": ["python", "-c", SERVE], "env": [ADDRESS]}
    pod = {"containers": [container], "topologySpreadConstraints": [SPREAD]}
    return {"mode": "session", "warm": 1, "max": 10, "claim": {"lease": "10m"}, "pod": {"spec": pod}, **spec}


class Gate:
    """A job runs until the gate is opened; each of its runs leaves a line."""

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


# Pods


def marks(pod: dict[str, Any] | None) -> dict[str, str | None]:
    """Everything on a pod that says whether it is held, and by whom."""
    assert pod is not None, "the pod is gone"
    labels, annotations = pod["metadata"].get("labels", {}), pod["metadata"].get("annotations", {})
    shown = {key: labels.get(key) for key in HELD}
    return shown | {key: annotations.get(key) for key in (names.DO_NOT_DISRUPT, names.SAFE_TO_EVICT)}


def busy_marks(claim: dict[str, Any]) -> dict[str, str | None]:
    labels = {names.BUSY: "true", names.OWNER: claim["tenant"], names.CLAIM: claim["id"], names.FENCE: str(claim["fence"])}
    return labels | {names.DO_NOT_DISRUPT: "true", names.SAFE_TO_EVICT: "false"}


FREE_MARKS: dict[str, str | None] = dict.fromkeys(HELD) | {names.DO_NOT_DISRUPT: None, names.SAFE_TO_EVICT: "true"}


def write(fleet: KubeFleet, pod: str, marks: dict[str, str | None]) -> None:
    """Onto a pod, as somebody else than a living replica does it."""
    labels = {key: value for key, value in marks.items() if key in HELD}
    annotations = {key: value for key, value in marks.items() if key not in HELD}
    body = {"metadata": {"labels": labels, "annotations": annotations}}
    fleet.access.ask("PATCH", f"{fleet.pods_path}/{pod}", body, MERGE)


def evict(fleet: KubeFleet, pod: str) -> int:
    """As `kubectl drain` and autoscalers do; the status of the answer."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": fleet.namespace}}
    return fleet.access.request("POST", f"{fleet.pods_path}/{pod}/eviction", body).status


def force_delete(fleet: KubeFleet, pod: str) -> None:
    """What an operator does when a node is dead. It waits for nothing: a finalizer may hold the object."""
    fleet.access.kubectl("delete", "pod", pod, "-n", fleet.namespace, "--force", "--grace-period=0", "--wait=false")


# Fleets


def worker(fleet: KubeFleet, id_: str, replica: int | None = None) -> dict[str, Any]:
    return dict(fleet.api("GET", f"/v1/workers/{id_}", replica=fleet.alive() if replica is None else replica).json)


def nodes_of_free(fleet: KubeFleet) -> list[str]:
    """Of all warm workers that can be given out, from the API server."""
    at = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in fleet.pods()}
    return [at[each["id"]] for each in fleet.workers("warm", replica=fleet.alive()) if each["ready"]]


def holder_of(fleet: KubeFleet, duty: str) -> int:
    """The replica that does this duty now."""
    query = "SELECT r.pid FROM holdfast.term t JOIN holdfast.replica r ON r.id = t.holder WHERE t.duty = $1"
    pid = fleet.sql(query, duty)[0]["pid"]
    return next(n for n, process in fleet.replicas.items() if process.pid == pid)


@contextmanager
def stopped(fleet: KubeFleet, n: int) -> Iterator[None]:
    """A replica hangs for a moment, for less than its terms last."""
    fleet.signal(n, signal.SIGSTOP)
    try:
        yield
    finally:
        fleet.signal(n, signal.SIGCONT)


@contextmanager
def nobody_looks(fleet: KubeFleet) -> Iterator[None]:
    """Replicas, holders and agents go on, and workers are given out; but `converge` cannot read its rows."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(fleet.postgres.dsn, timeout=60))
    try:
        loop.run_until_complete(connection.execute("BEGIN; LOCK TABLE holdfast.pulse IN ACCESS EXCLUSIVE MODE"))
        yield
    finally:
        loop.run_until_complete(connection.close())
        loop.close()


def quiet(fleet: KubeFleet) -> None:
    """No replica has said anything that a person should look at."""
    errors = [line for line in fleet.log.read_text().splitlines() if '"level": "error"' in line or "Traceback" in line]
    assert not errors, errors[:5]


def metric(fleet: KubeFleet, name: str) -> float:
    """Of all living replicas together, whatever its labels."""
    alive = [n for n, process in fleet.replicas.items() if process.poll() is None]
    texts = [fleet.api("GET", "/metrics", replica=n).raw.decode() for n in alive]
    return sum(float(line.rsplit(" ", 1)[1]) for text in texts for line in text.splitlines() if line.startswith(name))


def pod_patches(access: Access) -> float:
    """How often the API server was asked to patch a pod (its status apart), by its own count."""
    text = access.request("GET", "/metrics").body
    mine = ('resource="pods"', 'verb="PATCH"', 'subresource=""')
    lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total") and all(m in line for m in mine)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def get(endpoint: str, credential: str) -> int:
    """A session's holder asks its worker."""
    request = urllib.request.Request(endpoint, headers={"Authorization": f"Bearer {credential}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def begins_unseen(plane: ControlPlane, fleet: KubeFleet, gate: Gate) -> dict[str, Any]:
    """A job that runs while its node cannot say so. The API server is away afterwards."""
    plane.stop_apiserver()
    claim = fleet.claim("linux", command=gate.job(), wait="30s")
    assert claim["state"] == "active", fleet.said()
    eventually(lambda: gate.ran == 1, 30, "it runs, and its node cannot say so")
    return claim


def judged(fleet: KubeFleet, claim: str) -> dict[str, Any]:
    """The claim, once it has ended or is served again."""
    return eventually(lambda: (c := fleet.see(claim)) and (c["outcome"] or c["attempts"] > 1) and c, 60, "judged")
