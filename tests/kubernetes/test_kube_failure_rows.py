"""Rows of the failure table on a real API server: silent agents, and creations with an unknown outcome."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from flaky_api import Body, Call, FlakyApi
from fleet_probes import metric, worker
from kube_fleet import KubeFleet, Made, account
from pod_marks import busy_marks, marks
from pool_specs import Gate, get, jobs, sessions

from holdfast.kubernetes import names
from holdfast_testcluster.access import Access
from waiting import always, eventually

SLACK = 25.0  # seconds in addition to the limits of the failure table, because kubelets are slow on a busy machine
POLL = 20.0  # seconds; an agent's last report may be this old when it becomes silent
Instead = int | Callable[[Body], Body] | Literal["lost"] | None
SUSPECTS = "holdfast_workers_suspect"


# Silent agents


def test_a_silent_worker_is_suspect_gets_no_claim_and_keeps_its_own_until_it_reports_again(
    fleet_of: Made, tmp_path: Path
) -> None:
    fleet = fleet_of(pools={"linux": jobs(warm=1, max=2), "notebook": sessions()})
    gate = Gate(tmp_path)
    fleet.warm(2, within=90)
    held = fleet.claim("notebook", tenant="acme", wait="30s")
    assert get(held["endpoint"], held["credential"]) == 200
    free = next(each["id"] for each in fleet.workers("warm") if each["pool"] == "linux")
    fleet.warm(2, within=90)
    silent = (held["worker"], free)
    agents = [agent_of(fleet, each) for each in silent]
    send(agents, signal.SIGSTOP)
    stopped = time.monotonic()
    eventually(lambda: any(worker(fleet, each)["suspect"] for each in silent), 60 + 5 + SLACK, "one is suspect")
    assert time.monotonic() - stopped > 60 - POLL, "not before it was silent for so long"
    eventually(lambda: all(worker(fleet, each)["suspect"] for each in silent), POLL + SLACK, "both are")
    for each in silent:
        assert reasons(fleet, "worker.suspect", each) == ["its agent has not reported for 60 s"]
    assert metric(fleet, SUSPECTS) == 2 * len(fleet.replicas), "each replica exports both"
    _no_claim_goes_to_it(fleet, free, gate)
    pod = fleet.pod(held["worker"])
    assert (fleet.see(held["id"])["state"], marks(pod)) == ("active", busy_marks(held)), "silence ends nothing"
    waits = fleet.claim("linux", command=gate.job(), wait="0s")
    always(lambda: fleet.see(waits["id"])["state"] == "waiting", 5, "a silent worker gets no claim")
    send(agents, signal.SIGCONT)
    served = fleet.see(waits["id"], wait="60s", until="active")
    assert (served["state"], served["worker"]) == ("active", free), fleet.last_log()
    eventually(lambda: not worker(fleet, held["worker"])["suspect"], SLACK, "it is trusted again")
    assert get(held["endpoint"], held["credential"]) == 200
    after = fleet.see(held["id"])
    assert (after["state"], after["fence"], after["attempts"]) == ("active", held["fence"], 1)
    eventually(lambda: metric(fleet, SUSPECTS) == 0, 15 + SLACK, "no alert is raised any more")
    gate.open()


def _no_claim_goes_to_it(fleet: KubeFleet, silent: str, gate: Gate) -> None:
    """A suspect worker is not capacity, so another is made for the claim. Then the pool is full."""
    other = fleet.claim("linux", command=gate.job(), wait="60s")
    assert (other["state"], other["worker"] != silent) == ("active", True), fleet.last_log()


def test_an_activation_that_hangs_retires_its_worker_and_another_gets_the_claim(fleet_of: Made, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    flag = tmp_path / "hung-once"
    hook = ["sh", "-c", f"test -e {flag} || {{ touch {flag}; sleep 600; }}"]
    fleet = fleet_of(pools={"hangs": sessions(warm=2, worker={"activate": hook})})
    fleet.warm(2, within=90)
    claim = fleet.claim("hangs", tenant="acme", wait="0s")
    row = "SELECT worker_id FROM holdfast.claim WHERE id = $1"  # the API does not show the worker before the claim is active
    eventually(flag.exists, 20, "activation hangs")
    hung = str(fleet.sql(row, claim["id"])[0]["worker_id"])
    send([agent_of(fleet, hung)], signal.SIGSTOP)  # so that it sends no progress reports any more
    active = fleet.see(claim["id"], wait=f"{15 + SLACK:.0f}s", until="active")
    assert (active["state"], active["attempts"], active["worker"] != hung) == ("active", 2, True), fleet.last_log()
    assert active["fence"] > claim_fence(marks(fleet.pod(hung))), "what it was stamped with is worth nothing now"
    assert marks(fleet.pod(active["worker"])) == busy_marks(active)
    assert get(active["endpoint"], active["credential"]) == 200
    assert worker(fleet, hung)["state"] in ("retiring", "gone")
    eventually(lambda: fleet.pod(hung) is None, 30 + SLACK, "its pod goes, although its agent ignores SIGTERM")
    assert fleet.see(claim["id"])["state"] == "active"


def claim_fence(shown: dict[str, str | None]) -> int:
    return int(shown[names.FENCE] or 0)


def agent_of(fleet: KubeFleet, worker_: str) -> int:
    agent = fleet.kubelet.pid(worker(fleet, worker_)["uid"], names.AGENT)
    assert agent is not None
    return agent


def send(agents: list[int], number: signal.Signals) -> None:
    for agent in agents:
        os.kill(agent, number)


def reasons(fleet: KubeFleet, kind: str, worker_: str) -> list[str]:
    rows = fleet.sql("SELECT reason FROM holdfast.event WHERE kind = $1 AND worker_id = $2", kind, worker_)
    return [row["reason"] for row in rows]


# Creations with an unknown outcome


def test_a_creation_of_unknown_outcome_is_looked_up_by_its_name_and_makes_one_pod(
    control_plane: Access, namespace: str, fleet_of: Made, tmp_path: Path
) -> None:
    """The first try of each pod fails: once before it was stored, twice after. No watch and no agent reports the pods."""
    with FlakyApi(control_plane, account(control_plane, namespace, "one"), tmp_path) as flaky:
        first = First([503, fails, "lost"])
        flaky.fault = first
        fleet = fleet_of(kubeconfig=flaky.kubeconfig)
        fleet.kubelet.pause()
        assert fleet.api("PUT", "/v1/pools/linux", jobs(warm=3)).status == 201
        eventually(lambda: len(first.met) == 3, 25 + SLACK, "the first try of each pod has failed")
        rows = eventually(lambda: all_known(fleet), 15 + SLACK, "each slot has its pod")
        assert first.met.keys() == rows.keys(), "no slot was given back, and none was filled twice"
        for name, how in first.met.items():
            calls = [call.method for call in about(flaky, name)]
            assert calls[calls.index("POST") + 1] == "GET", "it is looked up before anything else"
            assert len(tries(flaky, name)) == (2 if how == 503 else 1), "it is created again only if it is not there"
        flaky.fault = lambda call: None
        fleet.kubelet.resume()
        fleet.warm(3, within=90)
        assert all_known(fleet) == rows
        assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in fleet.pods()} == rows, "the same pods, and no other"
        ended = fleet.see(fleet.claim("linux", command=["true"])["id"], wait="60s")
        assert ended["outcome"] == "completed"


class First:
    """Makes the first try of each of the first pods fail in one of these ways. Pods cannot be watched."""

    def __init__(self, faults: list[Instead]) -> None:
        self.met: dict[str, Instead] = {}
        self._faults = faults

    def __call__(self, call: Call) -> Instead:
        if call.watches_pods:
            return 503
        name = created(call)
        if name is None or name in self.met or not self._faults:
            return None
        self.met[name] = self._faults.pop(0)
        return self.met[name]


def fails(_: Body) -> Body:
    raise RuntimeError("the caller gets a 500, and the pod is stored")


def created(call: Call) -> str | None:
    creates = call.method == "POST" and call.path.endswith("/pods") and "dryRun" not in call.query
    return str(call.body["metadata"]["name"]) if creates else None


def tries(flaky: FlakyApi, name: str) -> list[Call]:
    return [call for call in flaky.calls if created(call) == name]


def about(flaky: FlakyApi, name: str) -> list[Call]:
    return [call for call in flaky.calls if created(call) == name or call.path.endswith(f"/pods/{name}")]


def all_known(fleet: KubeFleet) -> dict[str, str]:
    """Returns the UID of each worker that ever existed, or nothing while one is missing."""
    rows = fleet.sql("SELECT id, pod_uid FROM holdfast.worker")
    known = {row["id"]: row["pod_uid"] for row in rows if row["pod_uid"] is not None}
    return known if len(known) == len(rows) >= 3 else {}
