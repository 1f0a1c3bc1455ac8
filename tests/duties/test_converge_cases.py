"""Every case of `converge` with an example: one test per row of the failure table, and the other cases."""

from typing import Any

import msgspec
import pytest
from converge_views import BUSY, EPOCH, FENCE, NAME, NOW, STAMP, UID, heartbeat, pod, row, seen, state

from holdfast.duties.actions import (
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
    Suspect,
    Warm,
)
from holdfast.duties.cases import ORPHAN_GRACE, SILENT, SPAWN_LOOK, STAMP_GRACE, classify
from holdfast.duties.observed import Case, Observed
from holdfast.model.claim import MAX_LOST_RETRIES, fence_of
from holdfast.model.pod import Pod, Stamp
from holdfast.ports.store import Row
from holdfast.recovery.actions import AdoptFree, BeginRecovery

BEFORE = {"missing_before": frozenset({NAME})}
RECOVERING = {"state": state(recovering=True)}
YOUNG = msgspec.structs.replace(STAMP, at=NOW - 1)
FREE_POD, BUSY_POD = pod(), pod(stamp=STAMP, protected=True)

# The holder of an unconfirmed worker has released its claim.
RELEASED: dict[str, Any] = {"tenant": "acme", "fence": FENCE, "unconfirmed_since": NOW - 9}

# An example of each case: the row, the pod, and other facts.
EXAMPLES: list[tuple[Case, Row | None, Pod | None, dict[str, Any]]] = [
    (Case.QUIET, row(), FREE_POD, {}),
    (Case.QUIET, row("held"), BUSY_POD, {}),
    (Case.STARTING, row("spawning"), FREE_POD, {}),
    (Case.STARTING, row("spawning", pod_uid=None, age=SPAWN_LOOK - 1), None, {}),
    (Case.UID_UNKNOWN, row("spawning", pod_uid=None), FREE_POD, {}),
    (Case.READY, row("spawning", agent=False), FREE_POD, {}),
    (Case.SPAWN_UNKNOWN, row("spawning", pod_uid=None, age=SPAWN_LOOK + 1), None, {}),
    (Case.NEVER_READY, row("spawning", age=601.0), pod(phase="pending", ready=False), {}),
    (Case.NEVER_READY, row("spawning", age=601.0, pod_uid=None), None, {}),
    (Case.START_BLOCKED, row("spawning"), pod(phase="pending", trouble="image: ErrImagePull"), {}),
    (Case.POD_ENDED_FREE, row(), pod(phase="ended"), {}),
    (Case.POD_ENDED_ASSIGNED, row("held", claim_state="assigned"), pod(phase="ended"), {}),
    (Case.POD_ENDED_ACTIVE, row("held"), pod(phase="ended"), {}),
    (Case.POD_ENDED_UNTOUCHED, row("held"), pod(phase="ended", untouched=True), {}),
    (Case.POD_ENDED_ACTIVE, row("held"), pod(uid="uid-2"), {}),
    (Case.POD_ENDED_ACTIVE, row("held"), None, {}),
    (Case.TERMINATING_FREE, row(), pod(terminating=True), {}),
    (Case.TERMINATING_BUSY, row("held"), pod(terminating=True), {}),
    (Case.CORDONED_FREE, row("parked"), pod(schedulable=False), {}),
    (Case.SILENT, row("held", heartbeat=heartbeat(SILENT + 1)), BUSY_POD, {}),
    (Case.SILENT, row(heartbeat=None), FREE_POD, {}),
    (Case.SILENT_RETIRE, row(heartbeat=heartbeat(SILENT + 1), silence="retire"), FREE_POD, {}),
    (Case.HEARD_AGAIN, row("held", suspect_since=NOW - 9), BUSY_POD, {}),
    (Case.HEARD_AGAIN, row("held", suspect_since=NOW - 9, heartbeat=None), pod(stamp=STAMP, protected=True, left_to=FENCE), {}),
    (Case.UNHEARD, row("held", claim_state="assigned"), pod(stamp=STAMP, protected=True, left_to=FENCE), {}),
    (Case.UNHEARD, row("held", claim_state="assigned"), pod(phase="ended", left_to=FENCE, exit_code=0, exit_fence=FENCE), {}),
    (Case.POD_ENDED_ASSIGNED, row("held", claim_state="assigned"), pod(phase="ended", left_to=FENCE - 1), {}),
    (Case.STRANGE_HOLD, row(heartbeat=heartbeat(doing="running", **BUSY)), FREE_POD, {}),
    (Case.STRANGE_HOLD, row(), pod(left_to=FENCE, schedulable=False), {}),
    (Case.POD_ENDED_ACTIVE, row("held", claim_secret=True), pod(phase="ended", untouched=True), {}),
    (Case.HOLDS_ON, row(heartbeat=heartbeat(doing="running", claim_ended=True, **BUSY)), FREE_POD, {}),
    (Case.AGENT_IDLE, row("held", heartbeat=heartbeat()), BUSY_POD, {}),
    (Case.PROTECTION_MISSING, row("held"), FREE_POD, {}),
    (Case.PROTECTION_MISSING, row("held", protection="always"), FREE_POD, {}),
    (Case.QUIET, row("held", protection="always"), pod(protected=True), {}),
    (Case.QUIET, row("held", protection="off"), FREE_POD, {}),
    (Case.PROTECTION_LEFT, row(), BUSY_POD, {}),
    (Case.PROTECTION_LEFT, row(), pod(partly_protected=True), {}),
    (Case.STAMP_YOUNG, row(heartbeat=heartbeat(3.0)), pod(stamp=YOUNG), {}),
    (Case.QUIET, row(heartbeat=heartbeat(doing="running", **BUSY), age=2.0), BUSY_POD, {}),
    (Case.UNSEALED, row("held", seal=True), pod(stamp=STAMP, protected=True, left_to=FENCE), {}),
    (Case.RETIRING, row("retiring"), FREE_POD, {}),
    (Case.RETIRING_ENDING, row("retiring", age=2.0), pod(terminating=True), {}),
    (Case.RETIRING_ENDING, row("retiring", pool_frozen=True), FREE_POD, {}),
    (Case.RETIRING_UNCONFIRMED, row("retiring", **RELEASED), FREE_POD, {}),
    (Case.RETIRING_ENDING, row("retiring", age=2.0, **RELEASED), pod(terminating=True), {}),
    (Case.HEARD_AGAIN, row("retiring", **RELEASED), pod(left_to=FENCE), {}),
    (Case.RETIRED, row("retiring"), pod(phase="ended"), {}),
    (Case.RETIRED, row("retiring"), None, {}),
    (Case.POD_MISSING_ONCE, row(), None, {}),
    (Case.POD_MISSING, row(), None, BEFORE),
    (Case.ORPHAN_YOUNG, None, pod(created_at=NOW - ORPHAN_GRACE + 1), {}),
    (Case.ORPHAN, None, FREE_POD, {}),
    (Case.ORPHAN, None, pod(created_at=NOW + 200), {"strange": {NAME: ORPHAN_GRACE + 1}}),
    (Case.ORPHAN_YOUNG, None, pod(created_at=NOW + 200), {"strange": {NAME: ORPHAN_GRACE - 1}}),
    (Case.ORPHAN_ENDED, None, pod(phase="ended"), {}),
    (Case.ORPHAN_BUSY, None, BUSY_POD, {}),
    (Case.ORPHAN_BUSY, None, pod(left_to=FENCE), {}),
    (Case.ORPHAN_BUSY, None, FREE_POD, {"heartbeats": {NAME: heartbeat(doing="running", **BUSY)}}),
    (Case.ORPHAN_FROM_BEFORE, None, pod(epoch=EPOCH - 1), {}),
    (Case.ORPHAN_FROM_BEFORE, None, pod(epoch=EPOCH - 1), {"heartbeats": {NAME: heartbeat(age=61.0)}}),
    (Case.ORPHAN_FROM_BEFORE, None, pod(epoch=EPOCH - 1), {"heartbeats": {NAME: heartbeat(doing="resetting")}}),
    (Case.ORPHAN_IDLE, None, pod(epoch=EPOCH - 1), {"heartbeats": {NAME: heartbeat()}}),
    (Case.ORPHAN, None, pod(epoch=EPOCH - 1, phase="pending"), {}),
    (Case.ORPHAN_FROM_BEFORE, None, pod(epoch=EPOCH - 1, phase="pending"), {"heartbeats": {NAME: heartbeat(age=61.0)}}),
    (Case.ORPHAN_FROM_BEFORE, None, pod(epoch=EPOCH - 1, phase="pending", protected=True), {}),
    (Case.ORPHAN_BUSY, None, pod(epoch=EPOCH - 1, phase="pending", stamp=STAMP), {}),
    (Case.AHEAD, row(), pod(stamp=Stamp("acme", "c-9", fence_of(EPOCH, 1001))), {}),
    (Case.RECOVERING, row("held"), None, RECOVERING),
]


@pytest.mark.parametrize(
    ("case", "one", "its_pod", "more"), EXAMPLES, ids=[f"{n}-{example[0]}" for n, example in enumerate(EXAMPLES)]
)
def test_the_example_is_this_case(case: Case, one: Row | None, its_pod: Pod | None, more: dict[str, Any]) -> None:
    assert classify(one, its_pod, seen(one, its_pod, **more)).case == case


def test_every_case_has_an_example() -> None:
    assert {example[0] for example in EXAMPLES} == set(Case)


def done(one: Row | None, its_pod: Pod | None, **more: Any) -> list[Action]:
    view: Observed = seen(one, its_pod, **more)
    return classify(one, its_pod, view).actions


# The failure table, row by row.

PROOF = Proof(NAME, UID)


@pytest.mark.parametrize("fence", [None, 7])
def test_a_pod_of_another_epoch_whose_agent_reports_idle_gets_a_row(fence: int | None) -> None:
    (adopt,) = done(None, pod(epoch=EPOCH - 1), heartbeats={NAME: heartbeat(served_fence=fence)})
    assert isinstance(adopt, AdoptFree)
    assert (adopt.worker, adopt.uid, adopt.spent) == (NAME, UID, fence is not None)


@pytest.mark.parametrize(
    ("exit_code", "exit_fence", "outcome"),
    [(None, None, "lost"), (0, FENCE, "completed"), (3, FENCE, "failed"), (0, FENCE - 1, "lost"), (0, None, "lost")],
)
def test_container_terminated_under_a_claim_ends_it_by_its_exit_code_else_lost(
    exit_code: int | None, exit_fence: int | None, outcome: str
) -> None:
    (end,) = done(row("held"), pod(phase="ended", exit_code=exit_code, exit_fence=exit_fence))
    assert isinstance(end, EndClaim)
    assert (end.claim, end.fence, end.states, end.outcome, end.how) == ("c-1", FENCE, ("active",), outcome, "death")
    assert end.exit_code == (None if outcome == "lost" else exit_code)
    assert end.proof == PROOF


@pytest.mark.parametrize("its_pod", [None, pod(uid="uid-2")], ids=["absent", "another UID"])
def test_uid_gone_under_a_claim_ends_it_lost_after_a_direct_read(its_pod: Pod | None) -> None:
    (end,) = done(row("held"), its_pod)
    assert isinstance(end, EndClaim)
    assert (end.outcome, end.how, end.proof) == ("lost", "death", PROOF)


@pytest.mark.parametrize("losses", range(MAX_LOST_RETRIES))
def test_worker_dies_and_the_claim_asked_for_retry_lost(losses: int) -> None:
    (again,) = done(row("held", claim_retry="lost", claim_losses=losses), pod(phase="ended"))
    assert isinstance(again, Requeue)
    assert (again.keep_worker, again.proof) == (False, PROOF)


def test_worker_dies_once_more_than_retries_are_promised() -> None:
    (end,) = done(row("held", claim_retry="lost", claim_losses=MAX_LOST_RETRIES), pod(phase="ended"))
    assert isinstance(end, EndClaim)
    assert end.outcome == "lost"


def test_a_known_exit_code_is_a_result_and_never_retried() -> None:
    (end,) = done(row("held", claim_retry="lost"), pod(phase="ended", exit_code=1, exit_fence=FENCE))
    assert isinstance(end, EndClaim)
    assert end.outcome == "failed"


def test_worker_dies_before_it_acknowledged_its_claim_keeps_its_place() -> None:
    (again,) = done(row("held", claim_state="assigned"), pod(phase="ended", exit_code=0, exit_fence=FENCE))
    assert isinstance(again, Requeue)
    assert (again.keep_worker, again.proof) == (False, PROOF)


def test_worker_silent_60_s_pod_alive_is_suspect_busy_or_free() -> None:
    for one, its_pod in [
        (row("held", heartbeat=heartbeat(SILENT + 1)), BUSY_POD),
        (row(heartbeat=heartbeat(SILENT + 1)), FREE_POD),
    ]:
        (suspect,) = done(one, its_pod)
        assert isinstance(suspect, Suspect)
    assert done(row(heartbeat=heartbeat(SILENT)), FREE_POD) == []


def test_worker_silent_in_a_pool_with_silence_retire_goes_only_if_it_is_free() -> None:
    (gone,) = done(row(heartbeat=heartbeat(SILENT + 1), silence="retire"), FREE_POD)
    assert isinstance(gone, Condemn)
    assert gone.counted, "silence is not proof of death: the brake counts it"
    (suspect,) = done(row("held", heartbeat=heartbeat(SILENT + 1), silence="retire"), BUSY_POD)
    assert isinstance(suspect, Suspect)


def test_worker_silent_since_its_pod_is_terminating_and_busy_drains() -> None:
    assert done(row("held", heartbeat=heartbeat(1e6)), pod(terminating=True)) == []


def test_worker_terminating_and_free_leaves_the_pool() -> None:
    for one in (row(), row("parked"), row("spawning")):
        (gone,) = done(one, pod(terminating=True))
        assert isinstance(gone, Condemn)


def test_spawn_outcome_unknown_is_looked_up_by_its_name() -> None:
    assert done(row("spawning", pod_uid=None, age=SPAWN_LOOK + 1), None) == [CreatePod(NAME, EPOCH)]
    assert done(row("spawning", pod_uid=None, age=SPAWN_LOOK - 1), None) == []
    assert done(row("spawning", pod_uid=None), FREE_POD) == [NoteUid(NAME, UID)]


@pytest.mark.parametrize(
    ("its_pod", "why"),
    [
        (pod(phase="pending", ready=False), "unschedulable"),
        (pod(ready=False), "never became ready"),
        (pod(phase="pending", ready=False, trouble="image not found"), "image not found"),
    ],
)
def test_scheduled_never_ready_is_condemned_with_its_reason_on_the_pool(its_pod: Pod, why: str) -> None:
    (gone,) = done(row("spawning", age=601.0), its_pod)
    assert isinstance(gone, Condemn)
    assert (gone.pool_id, gone.trouble) == ("p-1", gone.reason)
    assert why in gone.reason
    assert not gone.counted


def test_a_start_is_timed_from_when_it_was_scheduled() -> None:
    assert done(row("spawning", age=5000.0, scheduled_age=599.0), pod(ready=False)) == []


def test_stamped_pod_without_a_live_claim_is_warm_again() -> None:
    assert done(row(), BUSY_POD) == [Clear(NAME, 5, UID, "v1")]
    assert done(row("parked"), pod(stamp=STAMP)) == [Clear(NAME, 5, UID, "v1")]


def test_a_young_stamp_waits_until_its_agent_has_reported_since_or_it_is_old() -> None:
    """A report from before the stamp does not show what the pod does now, and the age of the pod does not either."""

    def left(stamped: float, after_report: float, *, agent: bool = True) -> bool:
        its_pod = pod(stamp=msgspec.structs.replace(STAMP, at=NOW - stamped), protected=True, created_at=NOW - 9_000)
        did = done(row(agent=agent, heartbeat=heartbeat(after_report)), its_pod)
        assert did in ([], [Clear(NAME, 5, UID, "v1")])
        return did == []

    assert left(1.0, 3.0), "the agent reported before the stamp"
    assert left(-1.0, 3.0), "by a clock that is a second ahead"
    assert not left(1.0, 0.5), "the agent has reported since"
    assert not left(STAMP_GRACE, 55.0), "old enough, whatever was reported"
    assert not left(-300.0, 3.0), "stamped far in the future: a clock jumped, and nothing stays young for that"
    assert not left(1.0, 3.0, agent=False), "without an agent there will be no report"


def test_stamped_pod_without_a_live_claim_is_cleared_also_when_the_pool_protects_no_more() -> None:
    """`protection` is not part of the revision, so workers stamped under `claim` stay after a change to `off`."""
    assert done(row(protection="off"), BUSY_POD) == [Clear(NAME, 5, UID, "v1")]


def test_protection_missing_on_a_busy_worker_is_restored() -> None:
    restored = [Protect(NAME, UID, "c-1", "acme", FENCE)]
    older = Stamp("acme", "c-0", FENCE - 1)
    for its_pod in (FREE_POD, pod(stamp=STAMP), pod(protected=True), pod(stamp=older, protected=True)):
        assert done(row("held"), its_pod) == restored
    assert done(row("held", suspect_since=NOW - 9, heartbeat=heartbeat(1e6)), FREE_POD) == restored, "silent, and still not ended"


def test_our_pod_without_a_row_is_deleted_after_its_grace() -> None:
    (delete,) = done(None, FREE_POD)
    assert isinstance(delete, DeletePod)
    assert (delete.name, delete.uid, delete.orphan) == (NAME, UID, True)
    assert done(None, pod(created_at=NOW - ORPHAN_GRACE + 1)) == []
    assert done(None, pod(phase="ended")) == [ForgetPod(NAME, UID)]


@pytest.mark.parametrize(
    ("its_pod", "more"),
    [
        (BUSY_POD, {}),
        (pod(epoch=EPOCH - 1), {}),
        (FREE_POD, {"heartbeats": {NAME: heartbeat(1e6, "running", **BUSY)}}),
    ],
    ids=["stamped", "other epoch", "its agent is busy"],
)
def test_our_pod_without_a_row_busy_or_of_another_epoch_is_quarantined_once(its_pod: Pod, more: dict[str, Any]) -> None:
    (alarm,) = done(None, its_pod, **more)
    assert isinstance(alarm, Quarantine)
    assert done(None, its_pod, quarantined=frozenset({NAME}), **more) == []


@pytest.mark.parametrize("state_", ["warm", "parked", "spawning"])
def test_row_without_a_pod_goes_after_two_lists(state_: str) -> None:
    assert done(row(state_), None) == []
    (gone,) = done(row(state_), None, **BEFORE)
    assert isinstance(gone, Condemn)


def test_row_without_a_pod_in_two_lists_goes_only_after_a_direct_read() -> None:
    """P7: two empty lists in a row must not end a whole fleet of free workers."""
    (gone,) = done(row(), None, **BEFORE)
    assert isinstance(gone, Condemn)
    assert gone.proof == PROOF or gone.counted


def test_row_without_a_pod_retiring_is_closed() -> None:
    assert done(row("retiring"), None) == [Bury(NAME, UID, "its pod is gone")]
    assert done(row("retiring"), pod(phase="ended")) == [Bury(NAME, UID, "its process ended"), ForgetPod(NAME, UID)]


def test_a_retiring_workers_pod_is_ended_soon_because_it_has_no_holder() -> None:
    (delete,) = done(row("retiring", reason="not wanted"), FREE_POD)
    assert delete == DeletePod(NAME, UID, 30.0, reason="not wanted")
    (delete,) = done(row("retiring", reason="not wanted", grace=5.0), FREE_POD)
    assert delete == DeletePod(NAME, UID, 5.0, reason="not wanted")
    assert done(row("retiring", age=2.0), pod(terminating=True)) == []
    assert done(row("retiring", pool_frozen=True), FREE_POD) == []


def test_a_worker_without_an_agent_is_warm_once_ready_and_never_silent() -> None:
    assert done(row("spawning", agent=False), pod(endpoint="10.0.0.1:80")) == [Warm(NAME, 5, "10.0.0.1:80")]
    assert done(row(agent=False, heartbeat=None), FREE_POD) == []


def test_a_cordoned_node_loses_its_free_workers_and_keeps_its_busy_ones() -> None:
    (gone,) = done(row(), pod(schedulable=False))
    assert isinstance(gone, Condemn)
    assert done(row("held"), pod(schedulable=False, stamp=STAMP, protected=True)) == []


def test_a_worker_that_reports_after_silence_is_no_longer_suspect() -> None:
    assert done(row("held", suspect_since=NOW - 9), BUSY_POD) == [HeardAgain(NAME, 5)]
    assert done(row("held", suspect_since=NOW - 9, heartbeat=heartbeat(SILENT - 1)), BUSY_POD) == [], (
        "a report that is only just not too old does not end the suspicion"
    )


def test_an_agent_that_is_idle_under_an_active_claim_raises_an_alert_and_the_claim_is_left_alone() -> None:
    (suspect,) = done(row("held", heartbeat=heartbeat()), BUSY_POD)
    assert isinstance(suspect, Suspect)
    assert done(row("held", heartbeat=heartbeat(), age=SILENT - 1), BUSY_POD) == [], "it may just be about to acknowledge"
    assert done(row("held", heartbeat=heartbeat(), suspect_since=NOW - 9), BUSY_POD) == []


def test_an_agent_that_is_idle_under_an_active_claim_does_not_cost_its_protection() -> None:
    """P3: the claim is live, whatever the agent reports, so the pod must keep its protection."""
    known = row("held", heartbeat=heartbeat(), suspect_since=NOW - 9)
    assert done(known, FREE_POD) == [Protect(NAME, UID, "c-1", "acme", FENCE)]


def test_an_agent_that_holds_what_we_do_not_know_is_neither_ended_nor_given_out() -> None:
    (suspect,) = done(row(heartbeat=heartbeat(doing="running", **BUSY)), FREE_POD)
    assert isinstance(suspect, Suspect)


def test_a_pod_that_knows_a_fence_we_never_gave_begins_recovery() -> None:
    (begin,) = done(None, pod(stamp=Stamp("acme", "c-9", fence_of(EPOCH + 1, 1))))
    assert isinstance(begin, BeginRecovery)
    assert begin.fence == fence_of(EPOCH + 1, 1)
