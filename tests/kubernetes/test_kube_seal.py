"""A sealed job: its control channel is closed only after the acknowledgement. From then on its pod's status is its report."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kube_fleet import KubeFleet, Made
from pool_specs import Gate, jobs

from cluster_pods import state
from holdfast.kubernetes import names
from waiting import always, eventually

SEALED = {"network": {"seal": True}}
AGES = 3.0  # seconds, about ten times the time in which a replica reads a changed pod


@contextmanager
def unacknowledged(fleet: KubeFleet, uid: str) -> Iterator[None]:
    """Pauses the agent, so that it is given a claim and cannot acknowledge it."""
    agent = fleet.kubelet.pid(uid, names.AGENT)
    assert agent is not None
    os.kill(agent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


def sealed(fleet: KubeFleet, worker: str) -> bool:
    pod = fleet.pod(worker)
    assert pod is not None
    return names.SEALED in pod["metadata"]["labels"]


class Observer(threading.Thread):
    """Records every version of one pod."""

    def __init__(self, fleet: KubeFleet, worker: str, seconds: int) -> None:
        super().__init__()
        version = fleet.access.ask("GET", fleet.pods_path)["metadata"]["resourceVersion"]
        watch = f"watch=1&timeoutSeconds={seconds}&resourceVersion={version}"
        self._ask = lambda: fleet.access.ask("GET", f"{fleet.pods_path}?{watch}&fieldSelector=metadata.name%3D{worker}")
        self.seen: list[dict[str, Any]] = []
        self.start()

    def run(self) -> None:
        self.seen = [event["object"] for event in self._ask()]


def test_a_seal_is_put_only_after_the_acknowledgement(fleet_of: Made, tmp_path: Path) -> None:
    fleet, gate = fleet_of(pools={"linux": jobs(warm=1, **SEALED)}), Gate(tmp_path)
    warm = fleet.warm(1, within=90)[0]
    worker = warm["id"]
    observer = Observer(fleet, worker, seconds=20)
    with unacknowledged(fleet, warm["uid"]):
        claim = fleet.claim("linux", command=gate.job(4), wait="0s")
        stamped = lambda: (fleet.pod(worker) or {})["metadata"]["labels"].get(names.CLAIM) == claim["id"]  # noqa: E731
        eventually(stamped, 20, "it is held")
        always(lambda: not sealed(fleet, worker) and fleet.see(claim["id"])["state"] == "assigned", AGES, "an answer is due")
    eventually(lambda: sealed(fleet, worker), 30, "sealed")
    assert fleet.see(claim["id"])["state"] == "active", fleet.last_log()
    gate.open()
    ended = fleet.see(claim["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], ended["worker"]) == ("failed", 4, worker), fleet.last_log()
    observer.join()
    closed = [pod for pod in observer.seen if names.SEALED in pod["metadata"]["labels"]]
    assert closed, "the observer saw the seal"
    assert len(closed) < len(observer.seen)
    for pod in closed:  # an agent exits with 0 only if its acknowledgement was accepted
        assert state(pod, names.AGENT)["terminated"]["exitCode"] == 0


def test_a_sealed_jobs_result_waits_on_its_pod_for_replicas_that_are_away(fleet_of: Made, tmp_path: Path) -> None:
    """P8: no replica runs to receive the result, and the pod is deleted. Its finalizer keeps the record."""
    fleet, gate = fleet_of(pools={"linux": jobs(warm=1, **SEALED)}), Gate(tmp_path)
    fleet.warm(1, within=90)
    claim = fleet.claim("linux", command=gate.job(9), wait="30s")
    worker = claim["worker"]
    eventually(lambda: sealed(fleet, worker) and gate.ran == 1, 30, "it runs, sealed")
    for n in list(fleet.replicas):
        fleet.kill(n)
    gate.open()
    eventually(lambda: (fleet.pod(worker) or {})["status"]["phase"] == "Failed", 30, "its container has ended")
    fleet.access.kubectl("delete", "pod", worker, "-n", fleet.namespace, "--wait=false")

    def kept() -> bool:
        """Returns whether only our finalizer keeps the pod, after its kubelet has finished with it."""
        meta = (fleet.pod(worker) or {})["metadata"]
        return bool(meta["deletionGracePeriodSeconds"] == 0 and meta["finalizers"] == [names.FINALIZER])

    eventually(kept, 30, "only the record holds it")
    for n in range(len(fleet.ports)):
        fleet.start(n)
    eventually(lambda: fleet.api("GET", "/readyz").status == 200, 60, "a replica is back")
    ended = fleet.see(claim["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"], ended["attempts"]) == ("failed", 9, 1), fleet.last_log()
    eventually(lambda: fleet.pod(worker) is None, 60, "recorded, it goes")
    assert gate.ran == 1
