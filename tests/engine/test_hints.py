"""Hints: one step leads to the next by itself, and what never comes to rest keeps nobody busy."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.duties.actions import Action, HeardAgain
from holdfast.duties.duty import Ports
from holdfast.engine.hints import STEP, Hints
from holdfast.engine.metrics import Metrics
from holdfast.engine.passes import Passes
from holdfast.engine.terms import Terms
from holdfast.model.outcome import Done, Failed, Outcome, Skipped, Stale

NOWHERE = Ports(cast(Any, None), cast(Any, None))


class Restless:
    """A `converge` that finds something to do for every worker at every look."""

    name = "converge"
    period = 15.0

    def __init__(self) -> None:
        self.looks: list[list[str]] = []

    async def observe_some(self, _ports: Ports, names: Iterable[str]) -> Any:
        self.looks.append(sorted(names))
        return SimpleNamespace(rows={}, names=sorted(names))

    def plan(self, seen: Any) -> list[Action]:
        return [HeardAgain(name) for name in seen.names]


async def looked(outcome: Outcome, seconds: float, trusted: bool = True) -> list[list[str]]:
    """Returns the looks that one hint leads to within so many seconds, if every step ends like this."""
    converge, terms = Restless(), Terms("r-1")
    if trusted:
        terms.took("converge", 1, asyncio.get_running_loop().time())

    async def apply(_action: Action) -> Outcome:
        return outcome

    passes = Passes(NOWHERE, cast(Any, apply), terms, Metrics(), lambda _names: None)
    hints = Hints(NOWHERE, cast(Any, converge), terms, passes)
    task = asyncio.create_task(hints.looks())
    hints.hint({"w-2", "w-1"})
    hints.hint({"w-1"})
    await asyncio.sleep(seconds)  # the time itself is what is measured
    task.cancel()
    return converge.looks


async def test_a_chain_of_steps_goes_on_by_itself_but_never_in_a_hurry() -> None:
    steps = 5
    looks = await looked(Done(), (steps + 0.5) * STEP)
    assert 2 <= len(looks) <= steps + 1, "the first at once, then one for each pause"
    assert all(names == ["w-1", "w-2"] for names in looks)


@pytest.mark.parametrize("outcome", [Stale(), Skipped("braked"), Failed("the cluster is away")], ids=repr)
async def test_a_step_that_was_not_taken_leads_to_no_other(outcome: Outcome) -> None:
    assert await looked(outcome, 2.5 * STEP) == [["w-1", "w-2"]]


async def test_hints_for_a_duty_that_another_replica_does_are_left_to_it() -> None:
    assert await looked(Done(), STEP, trusted=False) == []
