"""Compare each pod's stamp and each agent's report with the rows, decide what to adopt, and when recovery may end."""

from collections.abc import Iterable, Mapping

from ..model.pod import Heartbeat, Pod
from ..ports.recovery import Adoption, Recovery
from ..ports.store import Row
from .actions import Adopt, AdoptFree, BeginRecovery, EndRecovery

# An agent polls at least every 20 s and tries every replica, so an agent without a report after this time is silent, not slow.
LISTEN = 30.0  # seconds


def compare(row: Row | None, pod: Pod, heartbeat: Heartbeat | None) -> list[Adopt | AdoptFree]:
    """Returns what to adopt because a worker's pod or agent knows it and the database does not. A pod that has ended is compared
    as well: its stamp shows to which claim its exit code belongs, and the passes after recovery end that claim with it."""
    report = heartbeat if heartbeat is not None and heartbeat.reported_since_recovery else None
    held = _held(pod, report) or left_to(row, pod)
    if held is not None:
        claim, tenant, fence = held
        fenced = row.worker.fence if row is not None else None
        unheard = (  # the acknowledgement is among the lost commits: the command runs, but the row is still assigned
            row is not None and row.worker.claim == claim and fenced == fence and row.claim_state == "assigned"
            and (pod.left_to == fence or (report is not None and report.doing in ("running", "draining")))
        )  # fmt: skip
        if not unheard and fenced is not None and fence <= fenced:
            return []
        adoption = Adoption(
            worker=pod.worker,
            uid=pod.uid,
            pool=pod.pool,
            pool_id=pod.pool_id,
            revision=pod.revision,
            claim=claim,
            tenant=tenant,
            fence=fence,
            endpoint=pod.endpoint,
        )
        return [Adopt(adoption)]
    if pod.phase == "ended":
        return []
    if row is None:
        if report is None or pod.terminating or not pod.agent_running:
            return []
        return [adopt_free(pod, spent=report.served_fence is not None or pod.stamp is not None)]
    return []


def adopt_free(pod: Pod, *, spent: bool) -> AdoptFree:
    """Returns the adoption of a free worker. `spent` means that it has served a claim and must retire."""
    return AdoptFree(pod.worker, pod.uid, pod.pool_id, pod.pool, pod.revision, spent)


def from_before(pod: Pod, state: Recovery) -> bool:
    """Returns whether the pod was created in another epoch, that is, before commits were lost. Its row may be among them."""
    return pod.epoch != state.epoch


def may_be_forgotten(pod: Pod, state: Recovery) -> bool:
    """Returns whether the row of this pod may be among commits that the database has lost."""
    return state.recovering or pod.epoch < state.epoch


def _held(pod: Pod, report: Heartbeat | None) -> tuple[str, str, int] | None:
    """Returns claim, tenant and fence that the worker holds. What the agent left behind when it exited counts most; then the
    agent's report; then the stamp, which may be left over from an earlier claim."""
    if pod.stamp is not None and pod.stamp.fence == pod.left_to:
        return pod.stamp.claim, pod.stamp.tenant, pod.stamp.fence
    if report is not None and pod.phase != "ended":
        if report.claim is not None and report.fence is not None and report.tenant is not None:
            return report.claim, report.tenant, report.fence
        if report.doing in ("idle", "resetting"):
            return None  # otherwise the agent is busy with a claim that it could not prove, and the stamp shows which one
    return (pod.stamp.claim, pod.stamp.tenant, pod.stamp.fence) if pod.stamp is not None else None


def left_to(row: Row | None, pod: Pod) -> tuple[str, str, int] | None:
    """Returns claim, tenant and fence of the assignment for which the job's agent has exited, if the row has the same fence. An
    unprotected pod has no stamp that would show them."""
    worker = row.worker if row is not None and row.worker.pod_uid in (pod.uid, None) else None
    if worker is None or worker.claim is None or worker.tenant is None or worker.fence is None or worker.fence != pod.left_to:
        return None
    return worker.claim, worker.tenant, worker.fence


def holds_no_other(row: Row, pod: Pod) -> bool:
    """Returns whether the pod or its agent has shown, since the database lost commits, that it holds no other claim than the last
    one in its row."""
    report = row.heartbeat
    if pod.left_to is not None:
        return pod.left_to == row.worker.fence
    if report is None:
        return pod.phase == "pending"  # it has not run yet
    if report.claim is None:
        return report.reported_since_recovery and report.doing in ("idle", "resetting")
    return report.reported_since_recovery and report.fence == row.worker.fence


def finish(
    pods: Iterable[Pod],
    rows: Mapping[str, Row],
    heartbeats: Mapping[str, Heartbeat],
    state: Recovery,
    planned: Iterable[object] = (),
) -> list[EndRecovery]:
    """Ends recovery once every living pod's agent has reported since it began, and at the latest after `LISTEN` seconds (twice
    that while there is still something to adopt)."""
    finding = any(isinstance(action, BeginRecovery | Adopt | AdoptFree) for action in planned)
    if finding and state.age < 2 * LISTEN:
        return []  # the next pass shows whether these actions took effect
    if state.age >= LISTEN:
        return [EndRecovery()]
    for pod in pods:
        row = rows.get(pod.name)
        if pod.phase == "ended" or pod.terminating or (row is not None and not row.agent):
            continue
        if left_to(row, pod) is not None:
            continue  # the row agrees with the agent's last report, and no other report follows
        heartbeat = row.heartbeat if row is not None else heartbeats.get(pod.name)
        if heartbeat is None or not heartbeat.reported_since_recovery:
            return []
    return [EndRecovery()] if state.age >= 5.0 else []  # the first pass may be planned from rows read before the epoch grew
