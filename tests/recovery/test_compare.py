"""After lost commits: which pods and agents are adopted, which report counts, and when recovery may end."""

from typing import Any

import pytest

from duties.converge_views import EPOCH, FENCE, NAME, STAMP, UID, heartbeat, pod, row, seen, state
from holdfast.duties.actions import Action, NoteUid, ShowFacts
from holdfast.duties.cases import classify
from holdfast.duties.converge import Converge
from holdfast.model.claim import fence_of
from holdfast.model.pod import Heartbeat, Phase, Pod, Stamp
from holdfast.ports.store import Row
from holdfast.recovery.actions import Adopt, AdoptFree, EndRecovery
from holdfast.recovery.compare import LISTEN, adopt_free, compare, finish, holds_no_other

LOST = state(recovering=True, age=6.0)
REPORTED = {"reported_since_recovery": True}
BUSY_POD = pod(stamp=STAMP, protected=True)


def adopted(actions: list[Action]) -> tuple[str, str, int] | None:
    if not actions:
        return None
    (adopt,) = actions
    assert isinstance(adopt, Adopt)
    assert (adopt.adoption.worker, adopt.adoption.uid) == (NAME, UID)
    return adopt.adoption.claim, adopt.adoption.tenant, adopt.adoption.fence


@pytest.mark.parametrize(
    "one", [None, row(), row("spawning"), row("parked", fence=FENCE - 1)], ids=["no row", "warm", "new", "old"]
)
def test_a_claim_that_only_its_pod_knows_is_adopted(one: Row | None) -> None:
    assert adopted(compare(one, BUSY_POD, None)) == ("c-1", "acme", FENCE)


def test_an_agents_report_counts_more_than_a_stamp() -> None:
    other = {"claim": "c-2", "fence": FENCE + 1, "tenant": "acme"}
    assert adopted(compare(None, BUSY_POD, heartbeat(doing="running", **other, **REPORTED))) == ("c-2", "acme", FENCE + 1)
    assert compare(row(), BUSY_POD, heartbeat(**REPORTED)) == [], "idle by its own report: the stamp is left over"


def test_a_report_from_before_the_loss_does_not_count() -> None:
    other = {"claim": "c-2", "fence": FENCE + 1, "tenant": "acme"}
    assert adopted(compare(None, BUSY_POD, heartbeat(doing="running", **other))) == ("c-1", "acme", FENCE)


def test_what_the_row_knows_already_is_left_alone() -> None:
    assert compare(row("held"), BUSY_POD, None) == []
    newer = row("held", claim="c-5", fence=FENCE + 5)
    assert compare(newer, BUSY_POD, None) == [], "the row is ahead of the stamp"


def test_a_hold_whose_end_the_row_knows_is_not_adopted_again() -> None:
    """The row has this fence and does not hold the claim any more, so no commit about it was lost: it ended, or went to another
    worker. If it were adopted again, it would be taken from the worker that serves it now.
    """
    for one in (row("retiring", fence=FENCE), row("parked", fence=FENCE)):
        assert compare(one, BUSY_POD, None) == []


def test_a_free_pod_without_a_row_is_adopted_by_its_agents_report_only() -> None:
    (free,) = compare(None, pod(), heartbeat(**REPORTED))
    assert free == AdoptFree(NAME, UID, "p-1", "etl", "r1")
    (spent,) = compare(None, pod(), heartbeat(served_fence=FENCE, **REPORTED))
    assert spent == AdoptFree(NAME, UID, "p-1", "etl", "r1", spent=True), "it served a tenant, so it can only retire"
    assert compare(None, pod(), None) == []
    assert compare(None, pod(terminating=True), heartbeat(**REPORTED)) == []
    (stamped,) = compare(None, BUSY_POD, heartbeat(**REPORTED))
    assert isinstance(stamped, AdoptFree)
    assert stamped.spent, "stamped: it may have served a tenant, so it can only retire"


def test_a_pod_that_ended_or_is_gone_is_judged_later() -> None:
    assert compare(row("held"), pod(phase="ended"), None) == []
    assert classify(row("held"), None, seen(row("held"), None, state=LOST)).actions == []
    assert compare(None, pod(phase="ended"), heartbeat(**REPORTED)) == []


def test_a_claim_whose_pod_ended_is_adopted_so_that_its_exit_code_ends_it() -> None:
    ended = pod(phase="ended", stamp=STAMP, exit_code=0, exit_fence=FENCE)
    assert adopted(compare(None, ended, None)) == ("c-1", "acme", FENCE)
    assert compare(row("held"), ended, None) == []
    assert adopted(compare(None, ended, heartbeat(**REPORTED))) == ("c-1", "acme", FENCE), "its last report is older than its end"


def test_a_lost_acknowledgement_is_replaced_by_the_agents_report_that_it_runs() -> None:
    assigned = row("held", claim_state="assigned")
    busy = {"claim": "c-1", "fence": FENCE, "tenant": "acme"}
    assert adopted(compare(assigned, BUSY_POD, heartbeat(doing="running", **busy, **REPORTED))) == ("c-1", "acme", FENCE)
    assert compare(assigned, BUSY_POD, heartbeat(doing="activating", **busy, **REPORTED)) == [], "it will acknowledge by itself"
    assert compare(assigned, BUSY_POD, None) == []


def test_the_last_report_of_an_agent_that_has_exited_counts_more_than_one_that_was_stored_late() -> None:
    """The agent reported idle just before its claim. That report was stored just after the database had lost the claim."""
    late = heartbeat(doing="idle", **REPORTED)
    assert adopted(compare(row(), pod(stamp=STAMP, protected=True, left_to=FENCE), late)) == ("c-1", "acme", FENCE)
    assert adopted(compare(None, pod(stamp=STAMP, protected=True, left_to=FENCE), late)) == ("c-1", "acme", FENCE)
    assert compare(None, pod(left_to=FENCE), late) == [], "its claim is not known, and it is not free"


@pytest.mark.parametrize("phase", ["running", "ended"])
@pytest.mark.parametrize("stamp", [STAMP, None])
def test_a_lost_acknowledgement_is_replaced_by_the_last_report_of_an_agent_that_has_exited(
    phase: Phase, stamp: Stamp | None
) -> None:
    """Its command runs or has run. If it were given to another worker, it would run twice (P8)."""
    assigned, left = row("held", claim_state="assigned"), pod(phase=phase, stamp=stamp, left_to=FENCE)
    assert adopted(compare(assigned, left, None)) == ("c-1", "acme", FENCE)
    assert compare(assigned, pod(phase=phase, stamp=stamp, left_to=FENCE - 1), None) == [], "that was another assignment"
    assert compare(row("held"), left, None) == [], "acknowledged"


def test_a_row_learns_its_pods_uid_meanwhile() -> None:
    starting = row("spawning", pod_uid=None)
    assert classify(starting, pod(), seen(starting, pod(), state=LOST)).actions == [NoteUid(NAME, UID)]


def ends(*, age: float, its_pod: Pod | None = None, one: Row | None = None, adopting: bool = False, **more: Any) -> bool:
    pods = [its_pod] if its_pod else []
    rows = {NAME: one} if one else {}
    found = [adopt_free(pod(), spent=False)] if adopting else []
    return finish(pods, rows, more.get("heartbeats", {}), state(recovering=True, age=age), found) == [EndRecovery()]


def test_recovery_waits_for_every_living_agent_but_not_forever() -> None:
    silent, reported = row(heartbeat=heartbeat()), row(heartbeat=heartbeat(**REPORTED))
    assert not ends(age=LISTEN - 1, its_pod=pod(), one=silent)
    assert ends(age=LISTEN, its_pod=pod(), one=silent)
    assert ends(age=6, its_pod=pod(), one=reported)
    assert not ends(age=4, its_pod=pod(), one=reported), "a pass may have been planned from before the epoch grew"
    assert not ends(age=6, its_pod=pod(), heartbeats={})
    assert ends(age=6, its_pod=pod(), heartbeats={NAME: heartbeat(**REPORTED)})


def test_recovery_waits_for_no_agent_that_cannot_report() -> None:
    assert ends(age=6)
    assert ends(age=6, its_pod=pod(phase="ended"), one=row(heartbeat=None))
    assert ends(age=6, its_pod=pod(terminating=True), one=row(heartbeat=None))
    assert ends(age=6, its_pod=pod(), one=row(agent=False, heartbeat=None))
    assert ends(age=6, its_pod=pod(left_to=FENCE), one=row("held", heartbeat=None))
    assert not ends(age=6, its_pod=pod(left_to=FENCE), one=row(heartbeat=None)), "its row does not know that it is held"


def test_recovery_looks_once_more_after_an_adoption() -> None:
    assert not ends(age=6, its_pod=pod(), one=row(heartbeat=heartbeat(**REPORTED)), adopting=True)
    plan = Converge().plan(seen(row(), BUSY_POD, state=LOST))
    assert [type(action) for action in plan if not isinstance(action, EndRecovery | ShowFacts)][-1] is Adopt
    assert EndRecovery() not in plan


def test_a_look_at_some_workers_never_ends_recovery() -> None:
    view = seen(row(heartbeat=heartbeat(**REPORTED)), pod(), state=state(recovering=True, age=1e6), whole=False)
    assert EndRecovery() not in Converge().plan(view)


@pytest.mark.parametrize("age", [6.0, LISTEN, 1e6])
def test_recovery_does_not_end_before_a_pod_that_is_ahead_was_compared(age: float) -> None:
    """The backup is from before the last failover. Its epoch grows to the epoch of the pods' stamps, and their fences are still
    ahead. If recovery ended now, it would leave rows that show a busy worker as free, until a pass begins another recovery.
    """
    ahead = pod(stamp=Stamp("acme", "c-9", fence_of(EPOCH, 5000)), protected=True)
    report = heartbeat(doing="running", claim="c-9", fence=fence_of(EPOCH, 5000), tenant="acme", **REPORTED)
    plan = Converge().plan(seen(row(heartbeat=report), ahead, state=state(recovering=True, age=age)))
    assert EndRecovery() not in plan or any(isinstance(action, Adopt) for action in plan)


@pytest.mark.parametrize(
    ("report", "its_pod", "known"),
    [
        (None, pod(), False),
        (None, pod(phase="pending"), True),
        (heartbeat(), pod(phase="pending"), False),
        (heartbeat(), pod(), False),
        (heartbeat(**REPORTED), pod(), True),
        (heartbeat(doing="resetting", **REPORTED), pod(), True),
        (heartbeat(doing="running", **REPORTED), pod(), False),  # the agent could not prove which claim it holds
        (heartbeat(doing="running", claim="c-1", fence=FENCE, **REPORTED), pod(), True),
        (heartbeat(doing="running", claim="c-1", fence=FENCE), pod(), False),
        (heartbeat(doing="running", claim="c-2", fence=FENCE + 1, **REPORTED), pod(), False),
        (None, pod(left_to=FENCE), True),
        (None, pod(left_to=FENCE + 1), False),
        (heartbeat(**REPORTED), pod(left_to=FENCE + 1), False),
    ],
)
def test_what_shows_that_a_released_worker_holds_no_later_claim(report: Heartbeat | None, its_pod: Pod, known: bool) -> None:
    assert holds_no_other(row("retiring", fence=FENCE, tenant="acme", heartbeat=report), its_pod) == known
