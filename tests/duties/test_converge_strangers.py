"""Pods without a row, condition by condition, and which facts of a pod are shown."""

from typing import Any

import msgspec
import pytest
from converge_views import EPOCH, FENCE, NAME, NOW, STAMP, UID, heartbeat, pod, row
from verdicts import FREE_POD, case, done

from holdfast.duties.actions import Action, DeletePod, ForgetPod, Quarantine
from holdfast.duties.cases import ORPHAN_GRACE, SILENT
from holdfast.duties.facts import new_facts
from holdfast.duties.observed import Case
from holdfast.model.pod import Heartbeat, Pod
from holdfast.ports.store import Facts
from holdfast.recovery.actions import AdoptFree

# Pods without a row.


def orphan(its_pod: Pod, word_: Heartbeat | None = None, **more: Any) -> list[Action]:
    return done(None, its_pod, heartbeats={NAME: word_} if word_ else {}, **more)


def test_an_orphan_has_its_grace_by_either_clock() -> None:
    delete = [DeletePod(NAME, UID, 30.0, orphan=True, counted=True, reason="a pod without a row")]
    assert orphan(pod(created_at=NOW - ORPHAN_GRACE + 0.1)) == []
    assert orphan(pod(created_at=NOW - ORPHAN_GRACE)) == delete
    assert orphan(pod(created_at=NOW), strange={NAME: ORPHAN_GRACE}) == delete
    assert orphan(pod(created_at=NOW), strange={"w-other": 1e6}) == []


def test_an_orphan_that_ended_is_forgotten_after_its_grace() -> None:
    assert orphan(pod(phase="ended", created_at=NOW - ORPHAN_GRACE)) == []
    assert orphan(pod(phase="ended", created_at=NOW - ORPHAN_GRACE - 0.1)) == [ForgetPod(NAME, UID)]


@pytest.mark.parametrize(
    ("its_pod", "word_"),
    [(pod(stamp=STAMP), None), (pod(left_to=FENCE), None), (pod(), heartbeat(1e6, claim="c-1"))],
    ids=["stamped", "left to a claim", "its agent names a claim"],
)
def test_a_busy_orphan_is_quarantined_once_and_never_touched(its_pod: Pod, word_: Heartbeat | None) -> None:
    assert orphan(its_pod, word_) == [Quarantine(NAME, "a pod without a row that is stamped or busy")]
    assert orphan(its_pod, word_, quarantined=frozenset({NAME})) == []
    assert orphan(its_pod, word_, quarantined=frozenset({"w-other"})) != []


@pytest.mark.parametrize(("fence", "spent"), [(None, False), (FENCE, True)])
def test_an_idle_orphan_of_another_epoch_is_adopted_and_spent_if_it_served(fence: int | None, spent: bool) -> None:
    old = pod(epoch=EPOCH - 1)
    assert orphan(old, heartbeat(served_fence=fence)) == [AdoptFree(NAME, UID, "p-1", "etl", "r1", spent)]
    assert orphan(old, heartbeat(SILENT - 0.1)) == [AdoptFree(NAME, UID, "p-1", "etl", "r1", False)]


EPOCHS = [
    (pod(epoch=EPOCH - 1), None),
    (pod(epoch=EPOCH + 1), None),
    (pod(epoch=EPOCH - 1), heartbeat(SILENT)),
    (pod(epoch=EPOCH - 1), heartbeat(doing="running")),
    (pod(epoch=EPOCH - 1, phase="pending"), heartbeat(SILENT)),
    (pod(epoch=EPOCH - 1, phase="pending", protected=True), None),
]


@pytest.mark.parametrize(("its_pod", "word_"), EPOCHS)
def test_an_orphan_of_another_epoch_that_began_is_quarantined_once(its_pod: Pod, word_: Heartbeat | None) -> None:
    assert orphan(its_pod, word_) == [Quarantine(NAME, "a pod without a row, of another epoch")]
    assert orphan(its_pod, word_, quarantined=frozenset({NAME})) == []


def test_an_orphan_of_our_epoch_is_deleted_whatever_its_idle_agent_reports() -> None:
    delete = DeletePod(NAME, UID, 30.0, orphan=True, counted=True, reason="a pod without a row")
    assert orphan(FREE_POD, heartbeat()) == [delete]
    assert orphan(pod(protected=True)) == [delete]
    assert orphan(pod(phase="pending", epoch=EPOCH - 1)) == [delete], "it never began: its row alone was lost"


def test_an_orphan_that_ends_already_is_asked_again_by_full_passes_and_not_counted() -> None:
    ending = pod(terminating=True)
    assert orphan(ending) == [DeletePod(NAME, UID, 30.0, orphan=True, counted=False, reason="a pod without a row")]
    assert (case(None, ending, whole=False), orphan(ending, whole=False)) == (Case.ORPHAN, [])
    assert orphan(FREE_POD, whole=False) != []


# Facts.


SHOWN = {"node": "n-1", "terminating": False, "schedulable": True, "pod_protected": False}
FACTS = Facts(worker=NAME, uid=UID, node="n-1", terminating=False, schedulable=True, protected=False, endpoint="10.0.0.1:80")


@pytest.mark.parametrize(("fact", "value"), [("node", "n-2"), ("terminating", True), ("schedulable", False), ("protected", True)])
def test_each_fact_that_changed_is_shown_with_all_others(fact: str, value: Any) -> None:
    its_pod = pod(node="n-1", endpoint="10.0.0.1:80")
    assert new_facts(row(**SHOWN), its_pod) is None
    changed = msgspec.structs.replace(its_pod, **{fact: value})
    assert new_facts(row(**SHOWN), changed) == msgspec.structs.replace(FACTS, **{fact: value})


def test_a_deletion_mark_once_seen_stays() -> None:
    marked = row(**{**SHOWN, "terminating": True})
    assert new_facts(marked, pod(node="n-1")) is None
    assert new_facts(row(**SHOWN), pod(uid="uid-2", node="n-9")) is None, "another pod's facts are not this worker's"
