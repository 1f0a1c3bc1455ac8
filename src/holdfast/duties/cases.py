"""Classify every worker as exactly one case of the failure table, with the actions for that case. Pure."""

from dataclasses import replace

import msgspec
import structlog

from ..model.claim import MAX_LOST_RETRIES, can_be_given
from ..model.pod import Heartbeat, Pod
from ..ports.store import Row
from ..recovery import compare
from ..recovery.actions import BeginRecovery
from .actions import (
    Acknowledged,
    Action,
    Bury,
    Clear,
    Condemn,
    CreatePod,
    DeletePod,
    EndClaim,
    ForgetPod,
    HeardAgain,
    NoteUid,
    Proof,
    Protect,
    Quarantine,
    Requeue,
    Seal,
    StartBlocked,
    Suspect,
    Warm,
)
from .observed import Case, Observed, Verdict

log = structlog.get_logger()

SILENT = 60.0  # seconds of heard time without a report: three missed polls of 20 s
SPAWN_LOOK = 5.0  # seconds; a row still without a pod then means that its creator died, or that the outcome is unknown
RETIRING_LOOK = 2.0  # seconds after which a retiring worker's pod is read again, between two full passes
ASK_AGAIN = 30.0  # seconds; then a pod that should end is deleted again, because the process that enforces its grace may be dead
RETIRING_GRACE = 30.0  # seconds; without a holder, a container that ignores SIGTERM must not keep its slot for drain.grace (1 h)
STAMP_GRACE = 2.0  # seconds; reports are stored within 1 s, so by then we know what the agent did since the stamp
ORPHAN_GRACE = 45.0  # seconds, because pods and rows are not read at the same moment; 60 s with the period of full passes


def classify(row: Row | None, pod: Pod | None, observed: Observed) -> Verdict:
    """Returns exactly one case per worker. The order of the checks is the order of precedence."""
    if pod is not None and pod.stamp is not None and not can_be_given(pod.stamp.fence, observed.state.epoch):
        return damaged(row, pod, observed)
    compared = _compared(row, pod, observed) if observed.state.recovering else []
    if pod is not None and pod.stamp is not None and pod.stamp.fence > observed.state.last_fence:
        reason = "a pod carries a fence that this database never gave"
        return Verdict(Case.AHEAD, [BeginRecovery(reason, pod.stamp.fence), *compared])
    if observed.state.recovering:
        return Verdict(Case.RECOVERING, compared)
    if row is None:
        assert pod is not None
        return stranger(pod, observed)
    if pod is not None and row.worker.pod_uid is not None and pod.uid != row.worker.pod_uid:
        pod = None  # the UID is the identity: another pod of the same name is not this worker's
    if pod is None:
        return without_pod(row, observed)
    if row.claim_state == "assigned" and (left := compare.left_to(row, pod)) is not None:
        return Verdict(Case.UNHEARD, [Acknowledged(row.worker.id, left[2])])  # its command runs or has run: its exit code counts
    if pod.phase == "ended":
        return ended(row, pod)
    if row.worker.state == "retiring" and row.worker.tenant is None and row.worker.confirmed:
        return retiring(row, pod, observed)  # it was free, and a plan, its agent or an operator has decided
    if (report := row.heartbeat) is not None and report.ahead and report.age < SILENT / 2:
        # The row is written before its assignment is delivered, so that commit was lost. A recovery adopts what the agent holds.
        # An old report begins none: recovery adopts only reports that were sent after it began, so recoveries would repeat. A
        # worker that retires after a claim may hold a later one: a holder can release the row's claim before the loss is noticed.
        assert report.fence is not None
        reason = f"the agent of {row.worker.id} holds an assignment that its row does not show"
        return Verdict(Case.AHEAD, [BeginRecovery(reason, report.fence)])
    if row.worker.state == "retiring":
        return retiring(row, pod, observed)
    if row.worker.pod_uid is None:
        return Verdict(Case.UID_UNKNOWN, [NoteUid(row.worker.id, pod.uid)])
    if pod.terminating:
        return terminating(row)
    if row.worker.state == "spawning":
        return starting(row, pod)
    return living(row, pod, observed)


def damaged(row: Row | None, pod: Pod, observed: Observed) -> Verdict:
    """Judges a pod whose stamp no database can have written. With a row, the pod counts as not stamped, so that its stamp is
    written again or removed. Without one the pod may belong to a claim, so it is neither adopted nor ended."""
    if row is not None:
        return classify(row, msgspec.structs.replace(pod, stamp=None), observed)
    return Verdict(Case.RECOVERING) if observed.state.recovering else stranger(pod, observed)


def living(row: Row, pod: Pod, observed: Observed) -> Verdict:
    """Judges a warm, parked or held worker whose pod is alive."""
    worker, heartbeat = row.worker, row.heartbeat
    free = worker.state in ("warm", "parked")
    doubted = worker.suspect_since is not None or not worker.confirmed
    if doubted and compare.left_to(row, pod) is not None:
        return Verdict(Case.HEARD_AGAIN, [HeardAgain(worker.id, worker.version)])  # its agent has sent its last report and exited
    if free and not pod.agent_running:
        # It works for a claim that has no row, so it must be neither ended nor given out.
        reason = "its agent has left it to a claim that we do not know"
        return Verdict(Case.STRANGE_HOLD, [] if worker.suspect_since else [Suspect(worker.id, worker.version, reason)])
    if free and not pod.schedulable:
        return Verdict(Case.CORDONED_FREE, _let_go(row, "its node is cordoned", counted=False))
    if worker.state == "held" and row.protection != "off" and row.claim_state == "active":
        assert worker.claim is not None
        assert worker.tenant is not None
        assert worker.fence is not None
        stamped = row.protection == "always" or (pod.stamp is not None and pod.stamp.fence == worker.fence)
        if not (pod.protected and stamped):
            return Verdict(
                Case.PROTECTION_MISSING,
                [Protect(worker.id, pod.uid, worker.claim, worker.tenant, worker.fence)],
            )
    if worker.state == "held" and row.claim_state == "active" and row.seal and not pod.agent_running and not pod.sealed:
        # Only after the acknowledgement, because closing the channel earlier could lose an answer that is being sent.
        return Verdict(Case.UNSEALED, [Seal(worker.id, pod.uid)])
    if row.agent and pod.agent_running:  # a job's agent exits after the hand-over, so no heartbeat is expected then
        silent = (heartbeat.age if heartbeat else row.age) > SILENT
        idle = heartbeat is not None and not silent and heartbeat.doing == "idle" and heartbeat.claim is None
        if worker.state == "held" and row.claim_state == "active" and idle and row.age > SILENT:
            # P2's list has no end for this, so the worker is only marked as suspect.
            known = worker.suspect_since is not None
            reason = "its agent is idle although its claim is active"
            return Verdict(Case.AGENT_IDLE, [] if known else [Suspect(worker.id, worker.version, reason)])
        if silent and free and row.silence == "retire":
            return Verdict(Case.SILENT_RETIRE, _let_go(row, "silent for 60 s (silence: retire)"))
        if silent and worker.suspect_since is None:
            return Verdict(Case.SILENT, [Suspect(worker.id, worker.version, "its agent has not reported for 60 s")])
        current = heartbeat is not None and heartbeat.age < SILENT / 2 and (worker.confirmed or heartbeat.reported_since_recovery)
        if not silent and doubted and current and not free:
            assert heartbeat is not None
            if heartbeat.claim is not None and (heartbeat.claim, heartbeat.fence) != (worker.claim, worker.fence):
                # The report confirms another assignment than the row's. Ending the row's claim would end the agent's as well.
                reason = f"its agent holds {heartbeat.claim}, and its row shows {worker.claim}"
                return Verdict(Case.STRANGE_HOLD, [] if worker.suspect_since else [Suspect(worker.id, worker.version, reason)])
            return Verdict(Case.HEARD_AGAIN, [HeardAgain(worker.id, worker.version)])
        if free and heartbeat is not None and heartbeat.claim is not None and row.age > SILENT:
            if heartbeat.claim_ended:
                # The agent was sent the end a minute ago and still holds the claim, so the worker can never be given out again.
                reason = f"its agent does not let go of {heartbeat.claim}, which has ended"
                return Verdict(Case.HOLDS_ON, _let_go(row, reason, counted=False))
            if worker.suspect_since is None:
                # It works for a claim that has no row, so it must be neither ended nor given out.
                reason = f"its agent holds {heartbeat.claim}, which we do not know"
                return Verdict(Case.STRANGE_HOLD, [Suspect(worker.id, worker.version, reason)])
    held_by_agent = row.agent and (
        not pod.agent_running or (heartbeat is not None and heartbeat.claim is not None and not heartbeat.claim_ended)
    )
    partly_protected = pod.protected or pod.partly_protected or pod.stamp is not None
    if free and row.protection != "always" and partly_protected and not held_by_agent:
        if row.agent and _just_stamped(pod, heartbeat, observed.now):
            return Verdict(Case.STAMP_YOUNG)
        return Verdict(Case.PROTECTION_LEFT, [Clear(worker.id, worker.version, pod.uid, pod.version)])
    return Verdict(Case.QUIET)


def _just_stamped(pod: Pod, heartbeat: Heartbeat | None, now: float) -> bool:
    """Returns whether the stamp is so new that what its agent did since may not be stored yet. It measures the stamp's age, not
    the pod's, and takes its absolute value, because the two clocks may differ."""
    if pod.stamp is None:
        return False
    age = now - pod.stamp.at
    return abs(age) < STAMP_GRACE and not (heartbeat is not None and heartbeat.age < age)


def starting(row: Row, pod: Pod) -> Verdict:
    worker, heartbeat = row.worker, row.heartbeat
    reported = heartbeat is not None and heartbeat.claim is not None and not heartbeat.claim_ended
    if pod.stamp is not None or not pod.agent_running or reported:
        # The commits that made it warm and gave it to a claim were lost, so it must be neither ended nor given out.
        reason = "it is starting, but its pod or its agent shows a claim"
        return Verdict(Case.STRANGE_HOLD, [] if worker.suspect_since else [Suspect(worker.id, worker.version, reason)])
    if not worker.confirmed:
        if pod.phase == "pending" and heartbeat is None:
            return Verdict(Case.HEARD_AGAIN, [HeardAgain(worker.id, worker.version)])  # it has not run yet, so it served no claim
        return Verdict(Case.STARTING)  # it may be busy: its agent reports that it is idle, or an operator decides
    if not row.agent and pod.ready:
        return Verdict(Case.READY, [Warm(worker.id, worker.version, pod.endpoint)])
    waited = row.scheduled_age if row.scheduled_age is not None else row.age
    if waited > row.start_timeout:
        why = pod.trouble or ("unschedulable" if pod.phase == "pending" else "it never became ready")
        reason = f"not ready within its start timeout: {why}"
        return Verdict(Case.NEVER_READY, [_failed_start(row, reason)])
    if pod.trouble is not None and row.age > SPAWN_LOOK:
        return Verdict(Case.START_BLOCKED, [StartBlocked(worker.pool_id, pod.trouble)])
    return Verdict(Case.STARTING)


def ended(row: Row, pod: Pod) -> Verdict:
    """Judges a worker whose pod has ended. Under a claim this is proof of death, once a direct read has confirmed it."""
    worker, proof = row.worker, Proof(pod.name, pod.uid)
    if worker.state == "retiring":
        return Verdict(Case.RETIRED, [Bury(worker.id, pod.uid, "its process ended"), ForgetPod(pod.name, pod.uid)])
    if worker.state == "held":
        known = pod.exit_code if pod.exit_fence == worker.fence else None
        if known is not None and not -1024 <= known <= 1024:
            known = None  # out of range, so it is not an exit code
        return death(row, proof, "its worker's process ended", known, untouched=pod.untouched)
    if worker.state == "spawning" and worker.confirmed:
        return Verdict(Case.POD_ENDED_FREE, [replace(_failed_start(row, "it ended before it was ready"), proof=proof)])
    return Verdict(Case.POD_ENDED_FREE, [Condemn(worker.id, worker.version, "its process ended", counted=False, proof=proof)])


def death(row: Row, proof: Proof, reason: str, exit_code: int | None, *, untouched: bool = False, gone: bool = False) -> Verdict:
    worker = row.worker
    assert worker.claim is not None
    assert worker.fence is not None
    assigned = row.claim_state == "assigned"
    # After lost commits an assignment may have been acknowledged in one of them, unless its agent has reported since.
    may_have_begun = row.claim_delivered and not (worker.confirmed and row.agent)
    if assigned and not may_have_begun:
        # Not acknowledged, so nothing has started. The claim keeps its place and gets another worker.
        # Unless the pod was ended from outside, its hook may have ended it, for example by using up its memory. A pod
        # that is gone shows nothing about its hook: its node may have been reclaimed.
        activation = row.agent and row.claim_delivered and not worker.terminating and not gone
        return Verdict(Case.POD_ENDED_ASSIGNED, [Requeue(worker.claim, worker.fence, reason, proof=proof, activation=activation)])
    if assigned and exit_code is not None:
        return Verdict(Case.UNHEARD, [Acknowledged(worker.id, worker.fence)])  # it ran; the next pass ends it by its exit code
    if untouched and not row.claim_secret:
        # Acknowledged, but its container provably never started, so the claim may run on another worker for the first time (P8).
        return Verdict(
            Case.POD_ENDED_UNTOUCHED,
            [Requeue(worker.claim, worker.fence, f"{reason} before it began", proof=proof, untouched=True)],
        )
    if exit_code is None and row.claim_retry == "lost" and row.claim_losses < MAX_LOST_RETRIES:
        return Verdict(
            Case.POD_ENDED_ACTIVE,
            [Requeue(worker.claim, worker.fence, f"{reason}; retry: lost", proof=proof)],
        )
    outcome = "lost" if exit_code is None else "completed" if exit_code == 0 else "failed"
    states = ("assigned",) if assigned else ("active",)
    end = EndClaim(worker.claim, worker.fence, states, outcome, "death", reason, exit_code, proof)
    return Verdict(Case.POD_ENDED_ACTIVE, [end])


def terminating(row: Row) -> Verdict:
    worker = row.worker
    if worker.state == "held":
        return Verdict(Case.TERMINATING_BUSY)  # the worker drains; its claim is judged when the pod has ended
    return Verdict(Case.TERMINATING_FREE, _let_go(row, "its pod is being ended from outside", counted=False))


def retiring(row: Row, pod: Pod, observed: Observed) -> Verdict:
    if row.pool_frozen or (pod.terminating and (row.age < ASK_AGAIN or not observed.whole)):
        return Verdict(Case.RETIRING_ENDING)
    if not row.worker.confirmed:
        # Its holder released the row's claim. Its agent may hold a later one, which was in lost commits.
        if compare.holds_no_other(row, pod):
            return Verdict(Case.HEARD_AGAIN, [HeardAgain(row.worker.id, row.worker.version)])
        return Verdict(Case.RETIRING_UNCONFIRMED)
    grace = min(row.grace, RETIRING_GRACE)
    return Verdict(Case.RETIRING, [DeletePod(pod.name, pod.uid, grace, reason=row.worker.reason or "")])


def without_pod(row: Row, observed: Observed) -> Verdict:
    worker, proof = row.worker, Proof(row.worker.id, row.worker.pod_uid)
    if worker.state == "retiring":
        return Verdict(Case.RETIRED, [Bury(worker.id, worker.pod_uid, "its pod is gone")])
    if worker.state == "held":
        return death(row, proof, "its pod is gone", None, gone=True)
    if worker.state == "spawning" and worker.pod_uid is None and worker.confirmed:
        if row.age > row.start_timeout:
            return Verdict(
                Case.NEVER_READY,
                [_failed_start(row, "its pod could not be created within its start timeout")],
            )
        if row.age < SPAWN_LOOK or row.pool_frozen:
            return Verdict(Case.STARTING)
        return Verdict(Case.SPAWN_UNKNOWN, [CreatePod(worker.id, row.epoch)])
    if worker.id not in observed.missing_before:
        return Verdict(Case.POD_MISSING_ONCE)
    return Verdict(Case.POD_MISSING, [Condemn(worker.id, worker.version, "its pod is gone", counted=False, proof=proof)])


def stranger(pod: Pod, observed: Observed) -> Verdict:
    """Judges a pod of this installation that has no row."""
    heartbeat = observed.heartbeats.get(pod.name)
    age = max(observed.now - pod.created_at, observed.strange.get(pod.name, 0.0))
    if pod.phase == "ended":
        return Verdict(Case.ORPHAN_ENDED, [ForgetPod(pod.name, pod.uid)] if age > ORPHAN_GRACE else [])
    if age < ORPHAN_GRACE:
        return Verdict(Case.ORPHAN_YOUNG)
    if pod.stamp is not None or not pod.agent_running or (heartbeat is not None and heartbeat.claim is not None):
        return Verdict(Case.ORPHAN_BUSY, _quarantine(pod, observed, "a pod without a row that is stamped or busy"))
    from_before = compare.from_before(pod, observed.state)
    if from_before and heartbeat is not None and _says_idle(heartbeat):
        return Verdict(Case.ORPHAN_IDLE, [compare.adopt_free(pod, spent=heartbeat.served_fence is not None)])
    # A pod that has not started and whose agent has never reported was never given out: only its row is lost, so it may be ended.
    began = pod.phase != "pending" or heartbeat is not None or pod.protected
    if from_before and began:
        return Verdict(Case.ORPHAN_FROM_BEFORE, _quarantine(pod, observed, "a pod without a row, of another epoch"))
    if pod.terminating and not observed.whole:
        return Verdict(Case.ORPHAN)  # only full passes delete it again, because every change of the pod leads to a look
    delete = DeletePod(pod.name, pod.uid, 30.0, orphan=True, counted=not pod.terminating, reason="a pod without a row")
    return Verdict(Case.ORPHAN, [delete])


def _says_idle(heartbeat: Heartbeat) -> bool:
    """Returns whether the agent has recently reported that it is idle. Then only the worker's row was lost, and the report came
    too late for the comparison."""
    return heartbeat.age < SILENT and heartbeat.doing == "idle" and heartbeat.claim is None


def _quarantine(pod: Pod, observed: Observed, reason: str) -> list[Action]:
    return [] if pod.name in observed.quarantined else [Quarantine(pod.name, reason)]


def _let_go(row: Row, reason: str, *, counted: bool = True) -> list[Action]:
    """Condemns a free worker unless it is unconfirmed. An unconfirmed worker may be busy, and only the end of its pod would prove
    that it is not."""
    worker = row.worker
    return [Condemn(worker.id, worker.version, reason, counted=counted)] if worker.confirmed else []


def _failed_start(row: Row, reason: str) -> Condemn:
    worker = row.worker
    return Condemn(worker.id, worker.version, reason, counted=False, pool_id=worker.pool_id, trouble=reason)


def _compared(row: Row | None, pod: Pod | None, observed: Observed) -> list[Action]:
    """Returns what to store because the pod or its agent knows it and the database does not."""
    if pod is None:
        return []  # judged after recovery, as any other missing pod
    heartbeat = row.heartbeat if row is not None else observed.heartbeats.get(pod.name)
    if adoptions := compare.compare(row, pod, heartbeat):
        return [*adoptions]
    unknown = row is not None and row.worker.pod_uid is None and pod.phase != "ended"
    return [NoteUid(pod.worker, pod.uid)] if unknown else []
