"""Pairs of similar cases of `converge`: warm and parked, just before a limit and just at it, with and without a condition."""

from typing import Any

import msgspec
import pytest
from converge_views import BUSY, EPOCH, FENCE, NAME, NOW, STAMP, UID, heartbeat, pod, row, seen, state
from verdicts import BEFORE, FREE, FREE_POD, PROOF, case, condemned, done

from holdfast.duties.actions import Acknowledged, Action, Clear, HeardAgain, Protect, Seal, Suspect
from holdfast.duties.cases import SILENT, STAMP_GRACE, classify
from holdfast.duties.observed import Case
from holdfast.model.claim import fence_of
from holdfast.model.pod import Heartbeat, Stamp
from holdfast.recovery.actions import AdoptFree, BeginRecovery

BUSY_POD = pod(stamp=STAMP, protected=True)
LEFT = pod(stamp=STAMP, protected=True, left_to=FENCE)


# A pod that carries a fence.


def test_a_fence_is_ahead_only_beyond_the_last_that_was_given() -> None:
    last = Stamp("acme", "c-9", fence_of(EPOCH, 1000))
    assert case(row("held"), pod(stamp=last)) != Case.AHEAD
    ahead = done(row(), pod(stamp=Stamp("acme", "c-9", fence_of(EPOCH + 2, 1))))
    assert ahead == [BeginRecovery("a pod carries a fence that this database never gave", fence_of(EPOCH + 2, 1))]


def test_while_recovering_a_pod_that_is_ahead_is_compared_as_well() -> None:
    ahead = Stamp("acme", "c-9", fence_of(EPOCH + 1, 1))
    begin, adopt = done(None, pod(stamp=ahead), state=state(recovering=True))
    assert isinstance(begin, BeginRecovery)
    assert type(adopt).__name__ == "Adopt"


def test_while_recovering_the_report_of_an_agent_without_a_row_counts() -> None:
    reported = heartbeat(reported_since_recovery=True)
    assert done(None, FREE_POD, state=state(recovering=True), heartbeats={NAME: reported}) == [
        AdoptFree(NAME, UID, "p-1", "etl", "r1", False)
    ]


# Identity and acknowledgement.


@pytest.mark.parametrize("state_", FREE)
def test_a_pod_with_another_uid_is_not_this_workers(state_: str) -> None:
    assert case(row(state_), pod(uid="uid-2")) == Case.POD_MISSING_ONCE
    assert done(row(state_), pod(uid="uid-2"), **BEFORE) == [condemned("its pod is gone", counted=False, proof=PROOF)]


def test_an_agent_that_left_to_its_claim_has_acknowledged_it_whether_the_pod_runs_or_ended() -> None:
    for its_pod in (LEFT, pod(phase="ended", left_to=FENCE, exit_code=0, exit_fence=FENCE)):
        assert done(row("held", claim_state="assigned"), its_pod) == [Acknowledged(NAME, FENCE)]
    assert case(row("held"), LEFT) != Case.UNHEARD


# Free workers: warm and parked alike.


@pytest.mark.parametrize("state_", FREE)
def test_a_free_worker_on_a_cordoned_node_goes_uncounted(state_: str) -> None:
    assert done(row(state_), pod(schedulable=False)) == [condemned("its node is cordoned", counted=False)]


@pytest.mark.parametrize("state_", FREE)
def test_a_free_worker_whose_agent_left_it_to_an_unknown_claim_is_suspect_once(state_: str) -> None:
    reason = "its agent has left it to a claim that we do not know"
    for its_pod in (pod(left_to=FENCE + 1), pod(left_to=FENCE + 1, schedulable=False)):
        assert done(row(state_), its_pod) == [Suspect(NAME, 5, reason)]
        known = classify(row(state_, suspect_since=NOW - 9), its_pod, seen(None, None))
        assert (known.case, known.actions) == (Case.STRANGE_HOLD, [])


@pytest.mark.parametrize("state_", FREE)
def test_a_silent_free_worker_is_suspect_or_retired_by_its_pools_setting(state_: str) -> None:
    at, past = heartbeat(SILENT), heartbeat(SILENT + 0.1)
    assert case(row(state_, heartbeat=at), FREE_POD) == Case.QUIET
    assert done(row(state_, heartbeat=past), FREE_POD) == [Suspect(NAME, 5, "its agent has not reported for 60 s")]
    assert case(row(state_, heartbeat=past, suspect_since=NOW - 9), FREE_POD) == Case.QUIET
    assert case(row(state_, heartbeat=at, silence="retire"), FREE_POD) == Case.QUIET
    for since in (None, NOW - 9):
        assert done(row(state_, heartbeat=past, silence="retire", suspect_since=since), FREE_POD) == [
            condemned("silent for 60 s (silence: retire)")
        ]


@pytest.mark.parametrize("state_", [*FREE, "held"])
def test_an_agent_that_never_reported_is_silent_by_its_rows_age(state_: str) -> None:
    its_pod = BUSY_POD if state_ == "held" else FREE_POD
    assert case(row(state_, heartbeat=None, age=SILENT), its_pod) == Case.QUIET
    assert case(row(state_, heartbeat=None, age=SILENT + 0.1), its_pod) == Case.SILENT


def test_a_busy_worker_is_suspect_by_silence_and_never_retired_for_it() -> None:
    silent = heartbeat(SILENT + 0.1, "running", **BUSY)
    for silence in ("alert", "retire"):
        assert done(row("held", heartbeat=silent, silence=silence), BUSY_POD) == [
            Suspect(NAME, 5, "its agent has not reported for 60 s")
        ]
        assert done(row("held", heartbeat=silent, silence=silence, suspect_since=NOW - 9), BUSY_POD) == []


@pytest.mark.parametrize("state_", FREE)
def test_a_free_workers_suspicion_is_lifted_by_the_store_not_by_a_pass(state_: str) -> None:
    assert done(row(state_, suspect_since=NOW - 9), FREE_POD) == []


def test_a_busy_worker_is_no_longer_suspect_once_its_report_is_at_most_half_a_minute_old() -> None:
    def after_report(age: float) -> list[Action]:
        return done(row("held", suspect_since=NOW - 9, heartbeat=heartbeat(age, "running", **BUSY)), BUSY_POD)

    assert after_report(SILENT / 2 - 0.1) == [HeardAgain(NAME, 5)]
    assert after_report(SILENT / 2) == []
    assert done(row("held", suspect_since=NOW - 9, heartbeat=None, age=1.0), BUSY_POD) == []


def test_a_worker_whose_agent_has_exited_is_no_longer_suspect() -> None:
    assert done(row("held", suspect_since=NOW - 9, heartbeat=None), LEFT) == [HeardAgain(NAME, 5)]
    assert done(row("held", heartbeat=None), LEFT) == []


def test_silence_proves_nothing_about_a_worker_without_an_agent_or_whose_agent_has_exited() -> None:
    for state_ in FREE:
        assert done(row(state_, agent=False, heartbeat=None, age=1e6), FREE_POD) == []
    assert done(row("held", agent=False, heartbeat=None, age=1e6), BUSY_POD) == []
    assert done(row("held", heartbeat=heartbeat(1e6, "running", **BUSY)), LEFT) == []


# An agent that is idle under a claim, or holds one that it should not.


def test_an_idle_agent_under_an_active_claim_is_suspect_after_a_minute() -> None:
    reason = "its agent is idle although its claim is active"
    assert done(row("held", heartbeat=heartbeat(), age=SILENT + 0.1), BUSY_POD) == [Suspect(NAME, 5, reason)]
    assert case(row("held", heartbeat=heartbeat(), age=SILENT), BUSY_POD) == Case.QUIET
    known = row("held", heartbeat=heartbeat(), suspect_since=NOW - 9)
    assert (case(known, BUSY_POD), done(known, BUSY_POD)) == (Case.AGENT_IDLE, [])


@pytest.mark.parametrize(
    "word_",
    [heartbeat(SILENT + 1), heartbeat(doing="draining"), heartbeat(**BUSY), heartbeat(doing="running", **BUSY)],
    ids=["silent", "not idle", "names its claim", "busy"],
)
def test_an_agent_is_idle_only_by_a_fresh_report_without_a_claim(word_: Heartbeat) -> None:
    assert case(row("held", heartbeat=word_), BUSY_POD) != Case.AGENT_IDLE


def test_an_agent_may_be_idle_before_its_claim_is_active() -> None:
    assert case(row("held", heartbeat=heartbeat(), claim_state="assigned"), BUSY_POD) == Case.QUIET


@pytest.mark.parametrize("state_", FREE)
def test_a_free_worker_whose_agent_does_not_let_go_of_an_ended_claim_goes_after_a_minute(state_: str) -> None:
    holds = heartbeat(doing="running", claim_ended=True, **BUSY)
    gone = condemned("its agent does not let go of c-1, which has ended", counted=False)
    assert done(row(state_, heartbeat=holds, age=SILENT + 0.1), FREE_POD) == [gone]
    assert done(row(state_, heartbeat=holds, suspect_since=NOW - 9), FREE_POD) == [gone]
    assert case(row(state_, heartbeat=holds, age=SILENT), FREE_POD) == Case.QUIET
    assert case(row("held", heartbeat=holds), BUSY_POD) == Case.QUIET


@pytest.mark.parametrize("state_", FREE)
def test_a_free_worker_whose_agent_holds_an_unknown_claim_is_suspect_once(state_: str) -> None:
    holds = heartbeat(doing="running", **BUSY)
    reason = "its agent holds c-1, which we do not know"
    assert done(row(state_, heartbeat=holds, age=SILENT + 0.1), FREE_POD) == [Suspect(NAME, 5, reason)]
    assert done(row(state_, heartbeat=holds, suspect_since=NOW - 9), FREE_POD) == []
    assert case(row(state_, heartbeat=holds, age=SILENT), FREE_POD) == Case.QUIET


# Protection and seal.


def test_protection_is_restored_on_an_active_claims_pod_only_where_the_pool_protects() -> None:
    restored = [Protect(NAME, UID, "c-1", "acme", FENCE)]
    assert done(row("held", claim_state="assigned"), FREE_POD) == []
    assert done(row("held", protection="off"), FREE_POD) == []
    assert done(row("held", protection="always"), pod(protected=True)) == []
    assert done(row("held", protection="always"), pod(stamp=STAMP)) == restored
    assert done(row("held"), pod(protected=True)) == restored
    assert done(row("held"), pod(protected=True, stamp=msgspec.structs.replace(STAMP, fence=FENCE + 1))) == restored


@pytest.mark.parametrize("state_", FREE)
@pytest.mark.parametrize(
    "left", [{"protected": True}, {"partly_protected": True}, {"stamp": STAMP}], ids=lambda left: next(iter(left))
)
def test_any_left_over_part_of_protection_is_taken_off_a_free_worker(state_: str, left: dict[str, Any]) -> None:
    cleared = [Clear(NAME, 5, UID, "v1")]
    assert done(row(state_), pod(**left)) == cleared
    assert done(row(state_, protection="always"), pod(**left)) == []
    holds = heartbeat(doing="running", **BUSY)
    assert done(row(state_, heartbeat=holds, age=2.0), pod(**left)) == [], "its agent works for a claim"
    ended = heartbeat(doing="resetting", claim_ended=True, **BUSY)
    assert done(row(state_, heartbeat=ended, age=2.0), pod(**left)) == cleared, "its agent knows that this claim has ended"
    assert done(row(state_, heartbeat=None, age=2.0), pod(**left)) == cleared
    assert done(row(state_, agent=False, heartbeat=holds), pod(**left)) == cleared, "without an agent nothing holds it"


def test_protection_of_a_worker_that_is_not_free_is_never_taken_off() -> None:
    assert done(row("held", protection="off"), BUSY_POD) == []
    assert done(row("held", claim_state="assigned"), BUSY_POD) == []


@pytest.mark.parametrize(
    ("stamped", "after_report", "young"),
    [
        (STAMP_GRACE - 0.1, 50.0, True),
        (STAMP_GRACE, 50.0, False),
        (-STAMP_GRACE + 0.1, 50.0, True),
        (-STAMP_GRACE, 50.0, False),
        (1.0, 0.9, False),
        (1.0, 1.0, True),
        (1.0, None, True),
    ],
)
@pytest.mark.parametrize("state_", FREE)
def test_a_stamp_is_young_for_two_seconds_unless_its_agent_reported_since(
    state_: str, stamped: float, after_report: float | None, young: bool
) -> None:
    word_ = None if after_report is None else heartbeat(after_report)
    its_pod = pod(stamp=msgspec.structs.replace(STAMP, at=NOW - stamped))
    assert (case(row(state_, heartbeat=word_, age=10.0), its_pod) == Case.STAMP_YOUNG) is young


def test_a_busy_worker_whose_agent_has_left_is_sealed_where_the_pool_seals() -> None:
    assert done(row("held", seal=True), LEFT) == [Seal(NAME, UID)]
    assert done(row("held", seal=True), msgspec.structs.replace(LEFT, sealed=True)) == []
    assert done(row("held", seal=False), LEFT) == []
    assert done(row("held", seal=True), BUSY_POD) == [], "its agent still needs the channel"
    late = row("held", seal=True, claim_state="assigned")
    assert case(late, msgspec.structs.replace(LEFT, left_to=FENCE - 1)) != Case.UNSEALED, "an answer may be on its way"


@pytest.mark.parametrize("case", Case)
def test_a_case_has_the_same_name_in_logs_and_in_code(case: Case) -> None:
    assert case.value == case.name.lower().replace("_", "-")
