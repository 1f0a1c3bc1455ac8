"""A stamp that no database can have written begins no recovery. The worker's row decides, and the stamp is repaired (P5, P6)."""

from typing import Any

import pytest
from converge_views import EPOCH, pod, row, seen, state

from holdfast.duties.actions import Clear, Protect, Quarantine
from holdfast.duties.cases import ORPHAN_GRACE, classify
from holdfast.model.claim import EPOCH_MARGIN, fence_of
from holdfast.model.pod import Pod, Stamp
from holdfast.ports.store import Row
from holdfast.recovery.actions import BeginRecovery

DAMAGED = [0, 8191 << 40, fence_of(EPOCH + EPOCH_MARGIN + 1, 1), 2**53, 2**90]


def actions(known: Row | None, its_pod: Pod, **facts: Any) -> list[type]:
    return [type(action) for action in classify(known, its_pod, seen(known, its_pod, **facts)).actions]


@pytest.mark.parametrize("fence", DAMAGED)
def test_a_damaged_stamp_is_repaired_where_there_is_a_row_and_quarantined_where_there_is_none(fence: int) -> None:
    stamped = pod(stamp=Stamp("acme", "c-9", fence), protected=True)
    assert actions(row("held", claim_state="active"), stamped) == [Protect]
    assert actions(row("warm"), stamped) == [Clear]
    assert actions(None, stamped, strange={stamped.name: ORPHAN_GRACE + 1}) == [Quarantine]


@pytest.mark.parametrize("fence", DAMAGED)
def test_nothing_is_adopted_because_of_a_damaged_stamp(fence: int) -> None:
    for known in (row("warm"), row("held"), None):
        assert actions(known, pod(stamp=Stamp("acme", "c-9", fence)), state=state(recovering=True)) == []


def test_a_stamp_of_some_epochs_later_begins_a_recovery() -> None:
    later = pod(stamp=Stamp("acme", "c-9", fence_of(EPOCH + EPOCH_MARGIN, 1)))
    assert actions(row(), later) == [BeginRecovery]
