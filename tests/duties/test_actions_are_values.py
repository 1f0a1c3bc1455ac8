"""Actions and views are frozen values, and the defaults of an action's fields are safe."""

import dataclasses
from typing import Any, get_args

import pytest

from holdfast.duties import actions, duty, observed
from holdfast.duties.actions import Action, Condemn, DeletePod, EndClaim, PruneOutputs, Requeue
from holdfast.duties.pool_actions import DrainPool
from holdfast.duties.pools import ObservedPools
from holdfast.recovery.actions import AdoptFree

VALUES = [*get_args(Action), actions.Proof, observed.Observed, observed.Verdict, duty.Ports, ObservedPools]


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_value_cannot_be_changed_after_it_was_planned(kind: Any) -> None:
    """A plan is applied later and in another place, so it must still be what was decided."""
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    one = object.__new__(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.anything = 1


def left_out(kind: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}


DEFAULTS = [
    (EndClaim, {"exit_code": None, "proof": None}),
    (Requeue, {"keep_worker": False, "suspect": False, "proof": None, "untouched": False, "idle": None, "activation": False}),
    (Condemn, {"counted": True, "pool_id": None, "trouble": None, "proof": None, "floor": None}),
    (DeletePod, {"orphan": False, "counted": True, "reason": ""}),
    (DrainPool, {"gone": None}),
    (AdoptFree, {"spent": False}),
]


@pytest.mark.parametrize(("kind", "defaults"), DEFAULTS, ids=[kind.__name__ for kind, _ in DEFAULTS])
def test_what_an_action_leaves_out_is_on_the_safe_side(kind: Any, defaults: dict[str, Any]) -> None:
    """P7: the brake counts every ending, unless the plan excludes it."""
    assert left_out(kind) == defaults


def test_only_these_actions_leave_anything_out() -> None:
    assert {kind for kind in get_args(Action) if left_out(kind)} == {kind for kind, _ in DEFAULTS}


def test_a_list_of_outputs_is_not_printed_with_its_action() -> None:
    assert repr(PruneOutputs(frozenset({"c-1"}))) == "PruneOutputs()"
