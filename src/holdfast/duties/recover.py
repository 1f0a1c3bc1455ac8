"""After lost commits: compare each pod's stamp and each agent's word with the rows, adopt, and only then go on."""

from collections.abc import Iterable, Mapping

from ..model.pod import Pod, Pulse
from ..ports.store import Adoption, Recovery, Row
from .actions import Action, Adopt, AdoptFree, EndRecovery, NoteUid

# An agent polls at least every 20 s and tries every replica: one that has not spoken after this is silent, not slow.
LISTEN = 30.0


def compare(row: Row | None, pod: Pod | None, pulse: Pulse | None, state: Recovery) -> list[Action]:
    """What one worker's pod and agent know that the database does not."""
    if pod is None or pod.phase == "ended":
        return []  # judged after recovery, as any other pod that ended
    spoke = pulse is not None and pulse.spoke_since_recovery
    held = _held(pod, pulse if spoke else None)
    if held is not None:
        claim, tenant, fence = held
        known = row is not None and row.worker.claim == claim and row.worker.fence == fence
        newer = row is None or row.worker.fence is None or fence >= row.worker.fence
        if known or not newer:
            return []
        return [
            Adopt(
                Adoption(
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
            )
        ]
    if row is None:
        # Free by the agent's own word, or never stamped: it has served nobody.
        if spoke and pod.stamp is None and not pod.terminating:
            return [AdoptFree(pod.worker, pod.uid, pod.pool_id, pod.pool, pod.revision)]
        return []
    if row.worker.pod_uid is None:
        return [NoteUid(row.worker.id, pod.uid)]
    return []


def _held(pod: Pod, word: Pulse | None) -> tuple[str, str, int] | None:
    """What the worker holds. Its agent's word counts more than the stamp, which may be left over."""
    if word is not None:
        if word.claim is not None and word.fence is not None and word.tenant is not None:
            return word.claim, word.tenant, word.fence
        return None
    return (pod.stamp.claim, pod.stamp.owner, pod.stamp.fence) if pod.stamp is not None else None


def finish(
    pods: Iterable[Pod], rows: Mapping[str, Row], pulses: Mapping[str, Pulse], state: Recovery, adopting: bool
) -> list[Action]:
    """Recovery ends when every living pod's agent has spoken since it began, or had time enough to."""
    if state.age >= LISTEN:
        return [EndRecovery()]
    if adopting:
        return []  # the next pass shows whether it took
    for pod in pods:
        if pod.phase == "ended" or pod.terminating:
            continue
        row = rows.get(pod.name)
        if row is not None and not row.agent:
            continue
        pulse = row.pulse if row is not None else pulses.get(pod.name)
        if pulse is None or not pulse.spoke_since_recovery:
            return []
    return [EndRecovery()] if state.age >= 5.0 else []  # a first pass may have been planned from before the epoch grew
