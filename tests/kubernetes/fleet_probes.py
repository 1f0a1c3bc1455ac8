"""Reads workers, duties and metrics of a fleet on Kubernetes, and injects faults into its replicas."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
from kube_fleet import KubeFleet
from pool_specs import Gate

from holdfast_testcluster.control_plane import ControlPlane
from waiting import eventually


def worker(fleet: KubeFleet, id_: str, replica: int | None = None) -> dict[str, Any]:
    return dict(fleet.api("GET", f"/v1/workers/{id_}", replica=fleet.alive() if replica is None else replica).json)


def nodes_of_free(fleet: KubeFleet) -> list[str]:
    """Returns the nodes of all warm workers that can be given out, as the API server shows them."""
    at = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in fleet.pods()}
    return [at[each["id"]] for each in fleet.workers("warm", replica=fleet.alive()) if each["ready"]]


def holder_of(fleet: KubeFleet, duty: str) -> int:
    """Returns the replica that holds the term of this duty."""
    query = "SELECT r.pid FROM holdfast.term t JOIN holdfast.replica r ON r.id = t.holder WHERE t.duty = $1"
    pid = fleet.sql(query, duty)[0]["pid"]
    return next(n for n, process in fleet.replicas.items() if process.pid == pid)


@contextmanager
def stopped(fleet: KubeFleet, n: int) -> Iterator[None]:
    """Pauses a replica. Use it for less time than a term lasts."""
    fleet.signal(n, signal.SIGSTOP)
    try:
        yield
    finally:
        fleet.signal(n, signal.SIGCONT)


@contextmanager
def nobody_looks(fleet: KubeFleet) -> Iterator[None]:
    """Blocks the reads of `converge`. Replicas, holders and agents go on, and workers are still given out."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(fleet.postgres.dsn, timeout=60))
    try:
        loop.run_until_complete(connection.execute("BEGIN; LOCK TABLE holdfast.heartbeat IN ACCESS EXCLUSIVE MODE"))
        yield
    finally:
        loop.run_until_complete(connection.close())
        loop.close()


def quiet(fleet: KubeFleet) -> None:
    """Fails if a replica has logged an error or a traceback."""
    errors = [line for line in fleet.log.read_text().splitlines() if '"level": "error"' in line or "Traceback" in line]
    assert not errors, errors[:5]


def metric(fleet: KubeFleet, name: str) -> float:
    """Returns the sum of this metric over all living replicas and all labels."""
    alive = [n for n, process in fleet.replicas.items() if process.poll() is None]
    texts = [fleet.api("GET", "/metrics", replica=n).raw.decode() for n in alive]
    return sum(float(line.rsplit(" ", 1)[1]) for text in texts for line in text.splitlines() if line.startswith(name))


def begins_unseen(plane: ControlPlane, fleet: KubeFleet, gate: Gate) -> dict[str, Any]:
    """Starts a job while its node cannot report it, and returns the claim. The API server stays stopped."""
    plane.stop_apiserver()
    claim = fleet.claim("linux", command=gate.job(), wait="30s")
    assert claim["state"] == "active", fleet.last_log()
    eventually(lambda: gate.ran == 1, 30, "the job runs, and its node cannot report it")
    return claim


def judged(fleet: KubeFleet, claim: str) -> dict[str, Any]:
    """Returns the claim as soon as it has ended or has been given to another worker."""
    return eventually(lambda: (c := fleet.see(claim)) and (c["outcome"] or c["attempts"] > 1) and c, 60, "judged")


def uids(fleet: KubeFleet, workers: list[str]) -> dict[str, Any]:
    """Returns the UID of each worker's pod. Fails if any of them is terminating."""
    pods = {each["metadata"]["name"]: each["metadata"] for each in fleet.pods()}
    assert not [name for name in workers if "deletionTimestamp" in pods[name]]
    return {name: pods[name]["uid"] for name in workers}


def release(fleet: KubeFleet, claim: dict[str, Any], replica: int = 0) -> None:
    assert fleet.api("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]}, replica=replica).status == 200


def ending(fleet: KubeFleet, worker_: str) -> bool:
    """Returns whether the worker's pod is terminating or gone."""
    pod = fleet.pod(worker_)
    return pod is None or "deletionTimestamp" in pod["metadata"]


def parked_session(fleet: KubeFleet, warm: int = 2) -> str:
    """Returns a parked worker of a session. The pool again has as many free workers as before."""
    fleet.warm(warm, within=90)
    held = fleet.claim("notebook", tenant="globex", wait="30s", parkTTL="10m")
    release(fleet, held)
    eventually(lambda: worker(fleet, held["worker"])["state"] == "parked", 20, "parked")
    fleet.warm(warm, within=90)
    return str(held["worker"])
