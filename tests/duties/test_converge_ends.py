"""How starts fail and workers end, in every field of each action: reasons, proofs, what the brake counts."""

from typing import Any

import pytest
from converge_views import BUSY, FENCE, NAME, NOW, STAMP, UID, heartbeat, pod, row
from verdicts import BEFORE, FREE, FREE_POD, PROOF, case, condemned, done, failed_start

from holdfast.duties.actions import (
    Acknowledged,
    Action,
    Bury,
    CreatePod,
    DeletePod,
    EndClaim,
    ForgetPod,
    HeardAgain,
    NoteUid,
    Proof,
    Requeue,
    StartBlocked,
    Suspect,
    Warm,
)
from holdfast.duties.cases import ASK_AGAIN, SILENT, SPAWN_LOOK
from holdfast.duties.observed import Case
from holdfast.model.claim import MAX_LOST_RETRIES
from holdfast.model.pod import Pod

# Starts.


def test_a_worker_without_an_agent_is_warm_as_soon_as_its_pod_is_ready() -> None:
    assert done(row("spawning", agent=False), pod(ready=True, endpoint="10.0.0.1:80")) == [Warm(NAME, 5, "10.0.0.1:80")]
    assert case(row("spawning", agent=False), pod(ready=False)) == Case.STARTING
    assert case(row("spawning", agent=True), pod(ready=True)) == Case.STARTING, "its agent has to report first"


@pytest.mark.parametrize(
    ("its_pod", "why"),
    [
        (pod(ready=False), "it never became ready"),
        (pod(ready=False, phase="pending"), "unschedulable"),
        (pod(ready=False, phase="pending", trouble="no image"), "no image"),
    ],
)
def test_a_start_that_takes_too_long_fails_with_its_reason(its_pod: Pod, why: str) -> None:
    reason = f"not ready within its start timeout: {why}"
    assert done(row("spawning", age=600.1), its_pod) == [failed_start(reason)]
    assert done(row("spawning", age=1.0, scheduled_age=600.1), its_pod) == [failed_start(reason)]
    assert case(row("spawning", age=600.0), its_pod) in (Case.STARTING, Case.START_BLOCKED)


def test_why_a_pod_does_not_start_is_shown_after_a_few_seconds() -> None:
    blocked = pod(phase="pending", ready=False, trouble="no image")
    assert done(row("spawning", age=SPAWN_LOOK + 0.1), blocked) == [StartBlocked("p-1", "no image")]
    assert done(row("spawning", age=SPAWN_LOOK), blocked) == []
    assert done(row("spawning", age=300.0), pod(phase="pending", ready=False)) == []


@pytest.mark.parametrize(
    ("its_row", "its_pod"),
    [({}, pod(stamp=STAMP)), ({}, pod(left_to=FENCE)), ({"heartbeat": heartbeat(doing="running", **BUSY)}, pod())],
    ids=["stamped", "its agent has exited", "its agent reports a claim"],
)
def test_a_starting_worker_that_shows_a_claim_is_neither_made_warm_nor_ended(its_row: dict[str, Any], its_pod: Pod) -> None:
    for agent in (True, False):
        [suspect] = done(row("spawning", age=601.0, agent=agent, **its_row), its_pod)
        assert suspect == Suspect(NAME, 5, "it is starting, but its pod or its agent shows a claim")
        assert done(row("spawning", age=601.0, agent=agent, suspect_since=NOW - 9, **its_row), its_pod) == []


def test_a_starting_worker_whose_reported_claim_has_ended_fails_like_any_other() -> None:
    over = row("spawning", age=601.0, heartbeat=heartbeat(doing="running", claim_ended=True, **BUSY))
    assert done(over, pod(ready=False)) == [failed_start("not ready within its start timeout: it never became ready")]


def test_an_unconfirmed_worker_that_is_starting_is_left_alone_unless_its_pod_has_not_run_yet() -> None:
    for agent in (True, False):
        unconfirmed = row("spawning", age=601.0, agent=agent, unconfirmed_since=NOW - 9, heartbeat=None)
        assert (case(unconfirmed, pod()), done(unconfirmed, pod())) == (Case.STARTING, [])
        assert done(unconfirmed, pod(phase="pending", ready=False)) == [HeardAgain(NAME, 5)]
        assert done(unconfirmed, pod(phase="ended")) == [condemned("its process ended", counted=False, proof=PROOF)]
    reported = row("spawning", age=601.0, unconfirmed_since=NOW - 9)
    assert done(reported, pod(phase="pending", ready=False)) == [], "it has reported once, so it has run"


def test_an_unconfirmed_start_without_a_pod_is_not_created_again_but_closed() -> None:
    unconfirmed = row("spawning", pod_uid=None, unconfirmed_since=NOW - 9)
    assert case(unconfirmed, None) == Case.POD_MISSING_ONCE
    [gone] = done(unconfirmed, None, **BEFORE)
    assert gone == condemned("its pod is gone", counted=False, proof=Proof(NAME, None))


def test_a_report_of_an_assignment_that_no_row_shows_begins_a_recovery() -> None:
    for state_ in ("spawning", "warm", "parked", "held"):
        for age, begins in ((SILENT / 2 - 0.1, True), (SILENT / 2, False)):
            one = row(state_, heartbeat=heartbeat(age, "running", ahead=True, **BUSY))
            assert (case(one, pod()) == Case.AHEAD) == begins
    retiring = row("retiring", heartbeat=heartbeat(1.0, "running", ahead=True, **BUSY))
    assert case(retiring, pod()) == Case.RETIRING, "it was free, and that it ends was decided"
    released = row("retiring", tenant="acme", heartbeat=heartbeat(1.0, "running", ahead=True, **BUSY))
    assert case(released, pod()) == Case.AHEAD, "the row's claim was released before the loss was noticed"


def test_a_spawn_of_unknown_outcome_is_looked_up_until_its_start_timeout() -> None:
    def look(age: float, **more: Any) -> list[Action]:
        return done(row("spawning", pod_uid=None, age=age, epoch=2, **more), None)

    assert look(SPAWN_LOOK - 0.1) == []
    assert look(SPAWN_LOOK) == [CreatePod(NAME, 2)]
    assert look(600.0) == [CreatePod(NAME, 2)]
    assert look(300.0, pool_frozen=True) == []
    for frozen in (False, True):
        assert look(600.1, pool_frozen=frozen) == [failed_start("its pod could not be created within its start timeout")]


@pytest.mark.parametrize("state_", FREE)
def test_a_free_worker_without_a_known_pod_is_not_spawned_again(state_: str) -> None:
    """Only a spawn with an unknown outcome is created again by its name. A worker that was ready had a pod, and lost it."""
    assert case(row(state_, pod_uid=None), None) == Case.POD_MISSING_ONCE


def test_a_row_that_does_not_know_its_pods_uid_learns_it() -> None:
    for state_ in ("spawning", "warm", "parked"):
        assert done(row(state_, pod_uid=None), pod(terminating=True)) == [NoteUid(NAME, UID)]


# Ends.


@pytest.mark.parametrize("state_", FREE)
def test_a_free_workers_pod_that_ended_costs_the_worker_after_a_direct_read(state_: str) -> None:
    assert done(row(state_), pod(phase="ended")) == [condemned("its process ended", counted=False, proof=PROOF)]


def test_a_start_that_ended_is_a_failed_start() -> None:
    assert done(row("spawning"), pod(phase="ended")) == [failed_start("it ended before it was ready", proof=PROOF)]


@pytest.mark.parametrize(
    ("its_pod", "reason"), [(pod(phase="ended"), "its worker's process ended"), (None, "its pod is gone")], ids=["ended", "gone"]
)
def test_an_assigned_claim_keeps_its_place_when_its_worker_dies(its_pod: Pod | None, reason: str) -> None:
    again = Requeue("c-1", FENCE, reason, proof=PROOF)
    assert done(row("held", claim_state="assigned", claim_delivered=False), its_pod) == [again]
    assert done(row("held", claim_state="assigned", terminating=True), its_pod) == [again]


def test_a_worker_that_dies_while_it_is_activated_counts_as_a_failed_activation() -> None:
    failed = Requeue("c-1", FENCE, "its worker's process ended", proof=PROOF, activation=True)
    assert done(row("held", claim_state="assigned"), pod(phase="ended")) == [failed]
    gone = Requeue("c-1", FENCE, "its pod is gone", proof=PROOF)  # its node may have been reclaimed
    assert done(row("held", claim_state="assigned"), None) == [gone]


@pytest.mark.parametrize(
    ("code", "outcome", "kept"),
    [
        (None, "lost", None),
        (0, "completed", 0),
        (1, "failed", 1),
        (-9, "failed", -9),
        (1024, "failed", 1024),
        (-1024, "failed", -1024),
        (1025, "lost", None),
        (-1025, "lost", None),
    ],
)
def test_an_active_claim_ends_by_its_exit_code(code: int | None, outcome: str, kept: int | None) -> None:
    ended = EndClaim("c-1", FENCE, ("active",), outcome, "death", "its worker's process ended", kept, PROOF)
    assert done(row("held"), pod(phase="ended", exit_code=code, exit_fence=FENCE)) == [ended]


def test_an_exit_code_of_another_assignment_proves_nothing() -> None:
    (ended,) = done(row("held"), pod(phase="ended", exit_code=0, exit_fence=FENCE - 1))
    assert isinstance(ended, EndClaim)
    assert (ended.outcome, ended.exit_code) == ("lost", None)


def test_a_claim_whose_pod_is_gone_is_lost() -> None:
    assert done(row("held"), None) == [EndClaim("c-1", FENCE, ("active",), "lost", "death", "its pod is gone", None, PROOF)]


def test_a_claim_that_provably_never_began_is_served_elsewhere_unless_it_had_a_secret() -> None:
    untouched = pod(phase="ended", untouched=True)
    assert done(row("held"), untouched) == [
        Requeue("c-1", FENCE, "its worker's process ended before it began", proof=PROOF, untouched=True)
    ]
    (ended,) = done(row("held", claim_secret=True), untouched)
    assert isinstance(ended, EndClaim)


@pytest.mark.parametrize("losses", range(4))
def test_a_lost_claim_is_retried_twice_at_most_and_only_without_an_exit_code(losses: int) -> None:
    one = row("held", claim_retry="lost", claim_losses=losses)
    again = [Requeue("c-1", FENCE, "its pod is gone; retry: lost", proof=PROOF)]
    assert (done(one, None) == again) is (losses < MAX_LOST_RETRIES)
    (ended,) = done(one, pod(phase="ended", exit_code=1, exit_fence=FENCE))
    assert isinstance(ended, EndClaim)
    (unasked,) = done(row("held", claim_retry=None, claim_losses=losses), None)
    assert isinstance(unasked, EndClaim)


def test_a_retiring_workers_end_is_noted_with_its_pod() -> None:
    assert done(row("retiring"), pod(phase="ended")) == [Bury(NAME, UID, "its process ended"), ForgetPod(NAME, UID)]
    assert done(row("retiring"), None) == [Bury(NAME, UID, "its pod is gone")]
    assert done(row("retiring", pod_uid=None), None) == [Bury(NAME, None, "its pod is gone")]


@pytest.mark.parametrize("state_", [*FREE, "spawning"])
def test_a_free_workers_pod_that_is_ended_from_outside_leaves_the_pool(state_: str) -> None:
    assert done(row(state_), pod(terminating=True)) == [condemned("its pod is being ended from outside", counted=False)]


def test_a_retiring_pod_is_asked_to_end_and_asked_again_by_full_passes_after_a_while() -> None:
    ask = DeletePod(NAME, UID, 30.0, reason="")
    assert done(row("retiring"), FREE_POD) == [ask]
    assert done(row("retiring", age=1.0), FREE_POD, whole=False) == [ask], "the first time at once"
    assert done(row("retiring", age=ASK_AGAIN - 0.1), pod(terminating=True)) == []
    assert done(row("retiring", age=ASK_AGAIN), pod(terminating=True)) == [ask]
    assert done(row("retiring", age=ASK_AGAIN), pod(terminating=True), whole=False) == []
    assert done(row("retiring", pool_frozen=True), FREE_POD) == []
    assert done(row("retiring", pool_frozen=True, age=ASK_AGAIN), pod(terminating=True)) == []


@pytest.mark.parametrize("state_", [*FREE, "spawning"])
def test_a_missing_pod_costs_its_worker_only_when_it_was_missing_before(state_: str) -> None:
    assert (case(row(state_), None), done(row(state_), None)) == (Case.POD_MISSING_ONCE, [])
    assert done(row(state_), None, **BEFORE) == [condemned("its pod is gone", counted=False, proof=PROOF)]


@pytest.mark.parametrize("doubt", [{"unconfirmed_since": NOW - 9}, {"agent": False}], ids=["unconfirmed", "without an agent"])
def test_an_assigned_claim_that_may_have_begun_before_a_loss_is_not_requeued_for_a_death(doubt: dict[str, Any]) -> None:
    def dead(its_pod: Pod | None = None, **more: Any) -> list[Action]:
        return done(row("held", claim_state="assigned", **doubt, **more), its_pod)

    assert dead() == [EndClaim("c-1", FENCE, ("assigned",), "lost", "death", "its pod is gone", None, PROOF)]
    assert dead(claim_delivered=False) == [Requeue("c-1", FENCE, "its pod is gone", proof=PROOF)], "its worker never got it"
    assert dead(pod(phase="ended", exit_code=0, exit_fence=FENCE)) == [Acknowledged(NAME, FENCE)]
    assert dead(claim_retry="lost") == [Requeue("c-1", FENCE, "its pod is gone; retry: lost", proof=PROOF)]
    untouched = Requeue("c-1", FENCE, "its worker's process ended before it began", proof=PROOF, untouched=True)
    assert dead(pod(phase="ended", untouched=True)) == [untouched]


def test_a_report_of_another_claim_does_not_confirm_a_held_worker() -> None:
    other = heartbeat(doing="running", claim="c-0", fence=FENCE - 1, tenant="acme", reported_since_recovery=True)
    known = pod(stamp=STAMP, protected=True)
    reason = "its agent holds c-0, and its row shows c-1"
    assert done(row("held", unconfirmed_since=NOW - 9, heartbeat=other), known) == [Suspect(NAME, 5, reason)]
    assert done(row("held", unconfirmed_since=NOW - 9, suspect_since=NOW - 9, heartbeat=other), known) == []
    same = heartbeat(doing="running", reported_since_recovery=True, **BUSY)
    assert done(row("held", unconfirmed_since=NOW - 9, heartbeat=same), known) == [HeardAgain(NAME, 5)]
