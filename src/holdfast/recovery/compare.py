"""Compare each pod's stamp and each agent's report with the rows, decide what to adopt, and when recovery may end."""

from collections.abc import Iterable, Mapping

from ..model.pod import Heartbeat, Pod
from ..ports.recovery import Adoption, Recovery
from ..ports.store import Row
from .actions import Adopt, AdoptFree, BeginRecovery, EndRecovery

# An agent polls at least every 20 s and tries every replica: one that has not spoken after this is silent, not slow.
LISTEN = 30.0


def compare(row: Row | None, pod: Pod, heartbeat: Heartbeat | None) -> list[Adopt | AdoptFree]:
    """Returns what to adopt because one worker's pod or agent knows it and the database does not. A pod that has ended counts as
    well: its stamp shows whose exit code it carries, and the passes after recovery end that claim by it."""
    spoke = heartbeat if heartbeat is not None and heartbeat.spoke_since_recovery else None
    held = _held(pod, spoke) or left_to(row, pod)
    if held is not None:
        claim, tenant, fence = held
        fenced = row.worker.fence if row is not None else None
        unheard = (  # the acknowledgement was among the lost commits: the command runs, and the row says assigned
            row is not None and row.worker.claim == claim and fenced == fence and row.claim_state == "assigned"
            and (pod.left_to == fence or (spoke is not None and spoke.doing in ("running", "draining")))
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
        if spoke is None or pod.terminating or not pod.agent_running:
            return []
        return [adopt_free(pod, spent=spoke.reset_fence is not None or pod.stamp is not None)]
    return []


def adopt_free(pod: Pod, *, spent: bool) -> AdoptFree:
    """`spent`: it has served a claim, and can only go."""
    return AdoptFree(pod.worker, pod.uid, pod.pool_id, pod.pool, pod.revision, spent)


def from_before(pod: Pod, state: Recovery) -> bool:
    """Whether the pod was created before commits were lost: then its row may be among them."""
    return pod.epoch != state.epoch


def may_be_forgotten(pod: Pod, state: Recovery) -> bool:
    """Whether the pod's row may be in commits that the database lost, or is about to be found so."""
    return state.recovering or pod.epoch < state.epoch


def _held(pod: Pod, word: Heartbeat | None) -> tuple[str, str, int] | None:
    """Returns claim, tenant and fence that the worker holds. Its agent's report counts more than the stamp, which may be left
    over. What the agent left behind when it went counts most."""
    if pod.stamp is not None and pod.stamp.fence == pod.left_to:
        return pod.stamp.claim, pod.stamp.owner, pod.stamp.fence
    if word is not None and pod.phase != "ended":
        if word.claim is not None and word.fence is not None and word.tenant is not None:
            return word.claim, word.tenant, word.fence
        if word.doing in ("idle", "resetting"):
            return None  # else it is busy with something that it could not prove: then the stamp says with what
    return (pod.stamp.claim, pod.stamp.owner, pod.stamp.fence) if pod.stamp is not None else None


def left_to(row: Row | None, pod: Pod) -> tuple[str, str, int] | None:
    """Returns claim, tenant and fence to which the agent has left its container, if the row knows them. An unprotected pod has no
    stamp that would show them."""
    worker = row.worker if row is not None and row.worker.pod_uid in (pod.uid, None) else None
    if worker is None or worker.claim is None or worker.tenant is None or worker.fence is None or worker.fence != pod.left_to:
        return None
    return worker.claim, worker.tenant, worker.fence


def finish(
    pods: Iterable[Pod],
    rows: Mapping[str, Row],
    heartbeats: Mapping[str, Heartbeat],
    state: Recovery,
    planned: Iterable[object] = (),
) -> list[EndRecovery]:
    """Ends recovery once every living pod's agent has reported since it began, or had time enough to."""
    finding = any(isinstance(action, BeginRecovery | Adopt | AdoptFree) for action in planned)
    if finding and state.age < 2 * LISTEN:
        return []  # the next pass shows whether it took
    if state.age >= LISTEN:
        return [EndRecovery()]
    for pod in pods:
        row = rows.get(pod.name)
        if pod.phase == "ended" or pod.terminating or (row is not None and not row.agent):
            continue
        if left_to(row, pod) is not None:
            continue  # its agent's last word is what its row says, and it will not speak again
        heartbeat = row.heartbeat if row is not None else heartbeats.get(pod.name)
        if heartbeat is None or not heartbeat.spoke_since_recovery:
            return []
    return [EndRecovery()] if state.age >= 5.0 else []  # a first pass may have been planned from before the epoch grew
