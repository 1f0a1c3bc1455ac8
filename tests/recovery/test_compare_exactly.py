"""The conditions of an adoption and of the end of recovery, one by one: each alone changes the decision."""

from typing import Any

import pytest

from duties.converge_views import EPOCH, FENCE, NAME, STAMP, UID, heartbeat, pod, row, seen, state
from holdfast.duties.actions import NoteUid
from holdfast.duties.cases import classify
from holdfast.model.pod import Pod, Stamp
from holdfast.ports.recovery import Adoption
from holdfast.ports.store import Row
from holdfast.recovery.actions import Adopt, AdoptFree, BeginRecovery, EndRecovery
from holdfast.recovery.compare import LISTEN, adopt_free, compare, finish, from_before, left_to, may_be_forgotten

REPORTED = {"reported_since_recovery": True}
RUNS = {"claim": "c-1", "fence": FENCE, "tenant": "acme"}
HELD = ("c-1", "acme", FENCE)


def test_an_adoption_carries_everything_that_the_pod_shows() -> None:
    assert compare(None, pod(stamp=STAMP, endpoint="10.0.0.1:80"), None) == [
        Adopt(
            Adoption(
                worker=NAME,
                uid=UID,
                pool="etl",
                pool_id="p-1",
                revision="r1",
                claim="c-1",
                tenant="acme",
                fence=FENCE,
                endpoint="10.0.0.1:80",
            )
        )
    ]


@pytest.mark.parametrize("missing", ["claim", "fence", "tenant"])
def test_a_report_that_lacks_a_part_of_its_claim_leaves_the_decision_to_the_stamp(missing: str) -> None:
    other: dict[str, Any] = {"claim": "c-2", "fence": FENCE + 1, "tenant": "other", missing: None}
    [adopt] = compare(None, pod(stamp=STAMP), heartbeat(doing="running", **other, **REPORTED))
    assert isinstance(adopt, Adopt)
    assert (adopt.adoption.claim, adopt.adoption.tenant, adopt.adoption.fence) == HELD


@pytest.mark.parametrize(("doing", "adopted"), [("idle", False), ("resetting", False), ("activating", True), ("draining", True)])
def test_the_stamp_counts_unless_the_agent_reports_that_it_is_free(doing: str, adopted: bool) -> None:
    assert bool(compare(row(), pod(stamp=STAMP), heartbeat(doing=doing, **REPORTED))) is adopted


def test_a_stamp_of_another_assignment_than_the_agent_left_for_does_not_count_more_than_the_report() -> None:
    report = heartbeat(doing="running", claim="c-2", fence=FENCE + 1, tenant="acme", **REPORTED)
    [adopt] = compare(None, pod(stamp=STAMP, left_to=FENCE - 1), report)
    assert isinstance(adopt, Adopt)
    assert adopt.adoption.claim == "c-2"


@pytest.mark.parametrize(
    ("one", "doing", "adopted"),
    [
        (row("held", claim_state="assigned"), "running", True),
        (row("held", claim_state="assigned"), "draining", True),
        (row("held", claim_state="assigned"), "activating", False),
        (row("held", claim_state="active"), "running", False),
        (row("held", claim_state="assigned", claim="c-9"), "running", False),
        (row("held", claim_state="assigned", fence=FENCE + 1), "running", False),
        (row("held", claim_state="assigned", fence=FENCE - 1), "running", True),
    ],
)
def test_a_lost_acknowledgement_is_that_of_this_claim_and_this_assignment(one: Row, doing: str, adopted: bool) -> None:
    assert bool(compare(one, pod(), heartbeat(doing=doing, **RUNS, **REPORTED))) is adopted


def test_what_another_claim_of_the_row_left_behind_is_not_a_lost_acknowledgement() -> None:
    """Only the stamp and the agent's exit agree. The row has assigned the worker to another claim with the same fence."""
    assert compare(row("held", claim_state="assigned", claim="c-9"), pod(stamp=STAMP, left_to=FENCE), None) == []


@pytest.mark.parametrize(
    ("one", "adopted"), [({}, True), ({"terminating": True}, False), ({"left_to": FENCE}, False), ({"phase": "ended"}, False)]
)
def test_a_free_pod_is_adopted_while_its_agent_runs(one: dict[str, Any], adopted: bool) -> None:
    assert bool(compare(None, pod(**one), heartbeat(**REPORTED))) is adopted
    assert compare(row(), pod(**one), heartbeat(**REPORTED)) == [], "it has a row"
    assert compare(None, pod(**one), heartbeat()) == [], "this report is from before the loss"


@pytest.mark.parametrize(
    ("its_pod", "report", "spent"),
    [(pod(), {}, False), (pod(), {"served_fence": FENCE}, True), (pod(stamp=STAMP), {}, True)],
)
def test_a_free_worker_that_may_have_served_a_claim_is_spent(its_pod: Pod, report: dict[str, Any], spent: bool) -> None:
    assert compare(None, its_pod, heartbeat(**report, **REPORTED)) == [AdoptFree(NAME, UID, "p-1", "etl", "r1", spent)]


@pytest.mark.parametrize(("epoch", "before"), [(EPOCH - 1, True), (EPOCH, False), (EPOCH + 1, True)])
def test_a_pod_of_another_epoch_is_from_before_the_loss(epoch: int, before: bool) -> None:
    assert from_before(pod(epoch=epoch), state()) is before


@pytest.mark.parametrize(
    ("epoch", "recovering", "forgotten"),
    [(EPOCH, False, False), (EPOCH, True, True), (EPOCH - 1, False, True), (EPOCH + 1, False, False)],
)
def test_the_row_of_an_older_pod_may_be_lost_and_of_every_pod_during_recovery(
    epoch: int, recovering: bool, forgotten: bool
) -> None:
    assert may_be_forgotten(pod(epoch=epoch), state(recovering=recovering)) is forgotten


@pytest.mark.parametrize("missing", ["claim", "tenant", "fence"])
def test_an_agent_that_left_is_matched_only_with_a_row_that_has_claim_tenant_and_fence(missing: str) -> None:
    assert left_to(row("held"), pod(left_to=FENCE)) == HELD
    assert left_to(row("held", **{missing: None}), pod(left_to=None if missing == "fence" else FENCE)) is None


@pytest.mark.parametrize(("uid", "same"), [(UID, True), (None, True), ("uid-2", False)])
def test_an_agent_that_left_is_matched_only_with_the_row_of_its_pod(uid: str | None, same: bool) -> None:
    assert (left_to(row("held", pod_uid=uid), pod(left_to=FENCE)) == HELD) is same
    assert left_to(None, pod(left_to=FENCE)) is None
    assert left_to(row("held", pod_uid=uid), pod(left_to=FENCE + 1)) is None


def ends(age: float, pods: list[Pod] | None = None, rows: dict[str, Row] | None = None, **more: Any) -> bool:
    return finish(
        pods or [], rows or {}, more.get("heartbeats", {}), state(recovering=True, age=age), more.get("planned", ())
    ) == [EndRecovery()]


@pytest.mark.parametrize(("phase", "noted"), [("pending", True), ("running", True), ("ended", False)])
def test_during_recovery_a_row_learns_the_uid_of_a_pod_that_has_not_ended(phase: Any, noted: bool) -> None:
    starting, its_pod = row("spawning", pod_uid=None), pod(phase=phase)
    actions = classify(starting, its_pod, seen(starting, its_pod, state=state(recovering=True, age=6.0))).actions
    assert actions == ([NoteUid(NAME, UID)] if noted else [])


FINDINGS = [
    BeginRecovery("a pod is ahead", FENCE),
    *compare(None, pod(stamp=Stamp("acme", "c-1", FENCE)), None),
    adopt_free(pod(), spent=False),
]


@pytest.mark.parametrize("found", FINDINGS, ids=lambda found: type(found).__name__)
def test_recovery_goes_on_while_something_is_found_for_at_most_twice_its_time(found: object) -> None:
    assert not ends(2 * LISTEN - 0.1, planned=[found])
    assert ends(2 * LISTEN, planned=[found])
    assert ends(LISTEN, planned=[EndRecovery()]), "other actions are not findings"


def test_recovery_lasts_five_seconds_at_least_and_its_time_at_most() -> None:
    silent = {"pods": [pod()], "rows": {NAME: row(heartbeat=None)}}
    assert (ends(4.9), ends(5.0)) == (False, True)
    assert (ends(LISTEN - 0.1, **silent), ends(LISTEN, **silent)) == (False, True)


@pytest.mark.parametrize(
    "first",
    [pod(name="w-0", phase="ended"), pod(name="w-0", terminating=True), pod(name="w-0", left_to=FENCE), pod(name="w-0")],
    ids=["ended", "terminating", "left", "no agent"],
)
def test_one_pod_that_need_not_report_hides_no_other_that_must(first: Pod) -> None:
    rows = {"w-0": row("held", id="w-0", heartbeat=None, agent=first.left_to is not None), NAME: row(heartbeat=heartbeat())}
    assert not ends(10.0, [first, pod()], rows)
    assert ends(10.0, [first, pod()], rows | {NAME: row(heartbeat=heartbeat(**REPORTED))})


def test_the_report_of_a_worker_with_a_row_is_the_one_in_its_row() -> None:
    reported = {NAME: heartbeat(**REPORTED)}
    assert not ends(10.0, [pod()], {NAME: row(heartbeat=None)}, heartbeats=reported)
    assert ends(10.0, [pod()], {}, heartbeats=reported)
    assert not ends(10.0, [pod()], {}, heartbeats={NAME: heartbeat()})
