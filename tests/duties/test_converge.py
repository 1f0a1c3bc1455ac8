"""What `converge` never does, for any combination of rows, pods, heartbeats and claims."""

from collections.abc import Iterable

from converge_views import NAME, heartbeats, pods, rows, seen, state, views
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.duties.actions import (
    Action,
    Bury,
    Clear,
    Condemn,
    CreatePod,
    DeletePod,
    EndClaim,
    ForgetPod,
    NoteUid,
    Requeue,
    ShowFacts,
    Spawn,
)
from holdfast.duties.cases import classify
from holdfast.duties.converge import Converge
from holdfast.duties.facts import new_facts
from holdfast.duties.observed import Case, Observed
from holdfast.model.claim import LIVE
from holdfast.model.pod import Heartbeat, Pod
from holdfast.ports.store import Row
from holdfast.recovery.actions import Adopt, AdoptFree, BeginRecovery, EndRecovery

LOOK = settings(deadline=None, max_examples=400)
ENDS = (Condemn, DeletePod, Bury, EndClaim, Requeue, ForgetPod, Clear)


def about(actions: Iterable[Action], kinds: type | tuple[type, ...]) -> set[str]:
    """Returns the workers, pods or claims that actions of these kinds concern."""
    return {
        getattr(action, "worker", None) or getattr(action, "name", None) or getattr(action, "claim", None)
        for action in actions
        if isinstance(action, kinds)
    }


@LOOK
@given(st.none() | rows(), st.none() | pods(), st.none() | heartbeats(), st.booleans(), st.booleans())
def test_anything_is_exactly_one_case(
    one: Row | None, its_pod: Pod | None, report: Heartbeat | None, recovering: bool, before: bool
) -> None:
    if one is None and its_pod is None:
        return
    view = seen(
        one,
        its_pod,
        heartbeats={NAME: report} if report and one is None else {},
        state=state(recovering=recovering),
        missing_before=frozenset({NAME} if before else ()),
    )
    verdict = classify(one, its_pod, view)
    assert isinstance(verdict.case, Case)
    assert classify(one, its_pod, view) == verdict


@LOOK
@given(views())
def test_the_same_view_gives_the_same_plan_in_whatever_order_it_was_read(view: Observed) -> None:
    duty = Converge()
    plan = duty.plan(view)
    assert duty.plan(view) == plan
    turned = Observed(
        dict(reversed(view.pods.items())),
        dict(reversed(view.rows.items())),
        dict(reversed(view.heartbeats.items())),
        view.state,
        view.now,
        view.missing_before,
        view.quarantined,
        view.whole,
    )
    assert Converge().plan(turned) == plan


@LOOK
@given(views())
def test_busy_is_sacred(view: Observed) -> None:
    """P2: a held row with a live claim is not condemned, deleted or buried, and does not lose its protection."""
    busy = {name for name, one in view.rows.items() if one.worker.state == "held" and one.claim_state in LIVE}
    assert not busy & about(Converge().plan(view), (Condemn, DeletePod, Bury, ForgetPod, Clear))


@LOOK
@given(rows(), pods())
def test_a_claim_is_not_ended_or_requeued_while_its_pod_lives(one: Row, its_pod: Pod) -> None:
    lives = its_pod.phase != "ended" and its_pod.uid == one.worker.pod_uid
    verdict = classify(one, its_pod, seen(one, its_pod))
    for action in verdict.actions:
        if isinstance(action, EndClaim | Requeue):
            assert not lives
            assert action.proof is not None, "only after a direct read"
            assert (action.proof.name, action.proof.uid) == (one.worker.id, one.worker.pod_uid or its_pod.uid)


@LOOK
@given(views(recovering=True))
def test_nothing_ends_while_commits_may_be_missing(view: Observed) -> None:
    plan = Converge().plan(view)
    assert all(isinstance(a, Adopt | AdoptFree | NoteUid | EndRecovery | BeginRecovery | ShowFacts) for a in plan), plan
    ends = [action for action in plan if isinstance(action, EndRecovery)]
    assert len(ends) <= 1
    effects = [action for action in plan if not isinstance(action, ShowFacts)]
    assert not ends or (effects[-1] == ends[0] and view.whole)


@LOOK
@given(views(recovering=False, unconfirmed_since=1.0))
def test_an_unconfirmed_worker_is_not_ended_without_proof_that_its_pod_has(view: Observed) -> None:
    for action in Converge().plan(view):
        if isinstance(action, Condemn) and view.rows[action.worker].worker.state != "spawning":
            assert action.proof is not None, "it may be busy, whatever its row shows"


@LOOK
@given(views(recovering=False))
def test_strangers_that_are_stamped_busy_young_or_began_in_another_epoch_are_left_alone(view: Observed) -> None:
    deleted = about(Converge().plan(view), DeletePod)
    for name in deleted - view.rows.keys():
        pod, report = view.pods[name], view.heartbeats.get(name)
        assert pod.stamp is None
        assert report is None or report.claim is None
        began = pod.phase != "pending" or report is not None or pod.protected
        assert pod.epoch == view.state.epoch or not began
        assert view.now - pod.created_at >= 45


@LOOK
@given(views(recovering=False))
def test_only_retiring_workers_lose_their_pod_and_only_theirs(view: Observed) -> None:
    for action in Converge().plan(view):
        if isinstance(action, DeletePod) and not action.orphan:
            assert view.rows[action.name].worker.state == "retiring"
            assert view.rows[action.name].worker.confirmed
            assert action.uid == view.pods[action.name].uid
            assert view.rows[action.name].worker.pod_uid in (None, action.uid)
        if isinstance(action, Bury):
            one, pod = view.rows[action.worker], view.pods.get(action.worker)
            assert one.worker.state == "retiring"
            assert pod is None or pod.phase == "ended" or pod.uid != one.worker.pod_uid
        if isinstance(action, Condemn):
            assert view.rows[action.worker].worker.state in ("spawning", "warm", "parked")
            assert action.version == view.rows[action.worker].worker.version


@LOOK
@given(views(recovering=False, pool_frozen=True))
def test_a_frozen_pool_creates_and_deletes_no_pod(view: Observed) -> None:
    """A condemn may be planned, because the store refuses it for a frozen pool. The end of a pod could not be undone."""
    plan = [action for action in Converge().plan(view) if not (isinstance(action, DeletePod) and action.orphan)]
    assert not about(plan, (DeletePod, CreatePod, Spawn))


@LOOK
@given(rows(), pods())
def test_protection_is_taken_off_only_what_is_free(one: Row, its_pod: Pod) -> None:
    for action in classify(one, its_pod, seen(one, its_pod)).actions:
        if isinstance(action, Clear):
            assert one.worker.state in ("warm", "parked")
            assert (action.version, action.uid, action.pod_version) == (one.worker.version, its_pod.uid, its_pod.version)


@LOOK
@given(rows(), pods())
def test_facts_are_shown_of_the_workers_own_pod_only_and_once(one: Row, its_pod: Pod) -> None:
    fact = new_facts(one, its_pod)
    if its_pod.uid != one.worker.pod_uid:
        assert fact is None
        return
    shown = (one.worker.node, one.worker.schedulable, one.pod_protected)
    reported = (its_pod.node, its_pod.schedulable, its_pod.protected)
    assert (fact is not None) == (shown != reported or (its_pod.terminating and not one.worker.terminating))


@LOOK
@given(views())
def test_a_plan_concerns_each_worker_by_one_case_only(view: Observed) -> None:
    for name in view.rows.keys() | view.pods.keys():
        verdict = classify(view.rows.get(name), view.pods.get(name), view)
        kinds = {type(action) for action in verdict.actions}
        assert len(verdict.actions) <= 1 or kinds == {Bury, ForgetPod}
        assert sum(isinstance(action, ENDS) for action in verdict.actions) <= 2
