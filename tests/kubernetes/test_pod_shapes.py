"""What a pod's status proves: whether its worker has ended, how it ended, and that it never started."""

from typing import Any

import msgspec
import pytest

from holdfast.kubernetes import names
from holdfast.kubernetes.shapes import PodObject, facts, is_over
from holdfast.model.pod import Pod

AT = "2026-01-01T00:00:00Z"
WAITS = {"waiting": {"reason": "PodInitializing"}}
RUNS = {"running": {"startedAt": AT}}
# A kubelet writes this for a container that it cannot find when its pod is terminated (TerminatePod in status_manager.go).
MISSED = {
    "terminated": {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
        "startedAt": None,
        "finishedAt": None,
    }
}
# what containerd reports after a reboot
UNSEEN = {"terminated": {"exitCode": 255, "reason": "Unknown", "startedAt": AT, "finishedAt": AT}}


def ended(code: int, reason: str = "Completed", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "startedAt": AT, "finishedAt": AT}}


LEFT = ended(0, message='{"claim": "c-1", "fence": 7}')


def seen(
    worker: dict[str, Any] | None,
    agent: dict[str, Any] = LEFT,
    *,
    phase: str = "Running",
    beside: dict[str, Any] | None = None,
    kind: str = "job",
    disruption: str = "",
    restarts: tuple[int, int] = (0, 0),  # of agent and worker
    last: dict[str, Any] | None = None,
    **meta: Any,
) -> PodObject:
    statuses = [{"name": "work", "state": worker, "restartCount": restarts[1], "lastState": last or {}}] if worker else []
    if beside is not None:
        statuses.insert(0, {"name": "beside", "state": beside})  # a kubelet sorts them by name
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": disruption}] if disruption else []
    pod = {
        "metadata": {
            "name": "w-1",
            "uid": "u-1",
            "labels": {names.KIND: kind, names.CLAIM: "c-1", names.FENCE: "7"},
            "creationTimestamp": AT,
            **meta,
        },
        "spec": {"nodeName": "n-1", "containers": [{"name": "work"}, {"name": "beside"}]},
        "status": {
            "phase": phase,
            "conditions": conditions,
            "initContainerStatuses": [{"name": names.AGENT, "state": agent, "restartCount": restarts[0]}],
            "containerStatuses": statuses,
        },
    }
    return msgspec.convert(pod, PodObject)


def pod(*args: Any, **more: Any) -> Pod:
    return facts(seen(*args, **more), frozenset())


# Ends


@pytest.mark.parametrize("kind", ["job", "session", "plain"])
@pytest.mark.parametrize("code", [0, 3, 137])
def test_a_worker_has_ended_with_its_container_whatever_runs_beside_it(kind: str, code: int) -> None:
    lives: dict[str, Any] = {"agent": RUNS} if kind == "session" else {"beside": RUNS}
    found = pod(ended(code), **lives, kind=kind)
    assert (found.phase, found.exit_code, found.exit_fence, found.untouched) == ("ended", code, 7, False)
    assert not is_over(seen(ended(code), **lives, kind=kind)), "and yet its pod lives"


def test_a_worker_alone_in_its_pod_ends_with_it() -> None:
    """The end of the pod follows at once, and then the pod can be forgotten at once."""
    assert pod(ended(3)).phase == "running"
    assert (pod(ended(3), phase="Failed").phase, pod(ended(3), phase="Failed").exit_code) == ("ended", 3)


@pytest.mark.parametrize("beside", [RUNS, ended(0), ended(1), WAITS])
def test_a_worker_lives_with_its_container_whatever_ended_beside_it(beside: dict[str, Any]) -> None:
    assert pod(RUNS, beside=beside).phase == "running"


def test_a_container_that_its_kubelet_cannot_find_is_no_proof_of_death_while_its_pod_lives() -> None:
    assert pod(MISSED, beside=RUNS).phase == "running"
    assert pod(MISSED, beside=RUNS, phase="Failed").phase == "ended"


@pytest.mark.parametrize("unknown", [MISSED, UNSEEN])
def test_an_end_that_was_not_observed_has_no_exit_code(unknown: dict[str, Any]) -> None:
    found = pod(unknown, phase="Failed")
    assert (found.phase, found.exit_code, found.untouched) == ("ended", None, False)


def test_what_others_killed_is_no_result_though_containers_beside_it_still_end() -> None:
    found = pod(ended(143, "Error"), beside=RUNS, disruption="PreemptionByScheduler", deletionTimestamp=AT)
    assert (found.phase, found.exit_code) == ("ended", None)


# Never started


@pytest.mark.parametrize("agent", [LEFT, ended(3, "Error"), UNSEEN])
def test_a_kubelets_final_status_proves_that_nothing_began_where_its_runtime_remembers_the_agent(agent: dict[str, Any]) -> None:
    """Also if the agent's end is unknown, because the runtime would remember the worker's container, which comes later."""
    assert pod(WAITS, agent, phase="Failed").untouched


@pytest.mark.parametrize(
    "unsure",
    [
        pytest.param({"phase": "Pending"}, id="not a final status"),
        pytest.param({"phase": "Pending", "deletionTimestamp": AT, "deletionGracePeriodSeconds": 0}, id="taken away by force"),
        pytest.param({"disruption": "DeletionByPodGC"}, id="the status is the garbage collector's, not the kubelet's"),
        pytest.param({"worker": MISSED}, id="never started, or forgotten by its runtime"),
        pytest.param({"worker": None}, id="no status of the worker"),
        pytest.param({"agent": MISSED}, id="its runtime has forgotten the agent"),
        pytest.param({"agent": RUNS}, id="an old status of the agent"),
        pytest.param({"restarts": (1, 0)}, id="the agent was begun again by a runtime that forgot it"),
        pytest.param({"restarts": (0, 1)}, id="begun again"),
        pytest.param({"last": MISSED}, id="it used to run"),
        pytest.param({"kind": "session"}, id="a session serves from its start"),
    ],
)
def test_without_proof_that_nothing_began_nothing_may_run_a_second_time(unsure: dict[str, Any]) -> None:
    worker, agent = unsure.pop("worker", WAITS), unsure.pop("agent", LEFT)
    assert not pod(worker, agent, **{"phase": "Failed", **unsure}).untouched
