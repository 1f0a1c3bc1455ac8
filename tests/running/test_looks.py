"""Checks of single workers: one step leads to the next, and a worker that always needs something does not keep a replica busy."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.claimpath.signals import Signals
from holdfast.duties.actions import Action, HeardAgain
from holdfast.duties.duty import Ports
from holdfast.metrics import Metrics
from holdfast.model.effect import Done, Effect, Failed, Skipped, Stale
from holdfast.running.looks import STEP, Looks
from holdfast.running.passes import Passes
from holdfast.running.terms import Terms

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
        return [HeardAgain(name, 1) for name in seen.names]


async def looked(effect: Effect, seconds: float, trusted: bool = True) -> list[list[str]]:
    """Returns the checks that one signal causes within so many seconds, if every step has this effect."""
    converge, terms, signals = Restless(), Terms("r-1"), Signals()
    if trusted:
        terms.took("converge", 1, asyncio.get_running_loop().time())

    async def apply(_action: Action) -> Effect:
        return effect

    passes = Passes(NOWHERE, cast(Any, apply), terms, Metrics(), signals)
    looks = Looks(NOWHERE, cast(Any, converge), terms, passes, signals)
    task = asyncio.create_task(looks.at_changed())
    signals.workers.changed("w-2", "w-1")
    signals.workers.changed("w-1")
    await asyncio.sleep(seconds)  # this duration itself is measured
    task.cancel()
    return converge.looks


async def test_a_chain_of_steps_goes_on_by_itself_but_never_in_a_hurry() -> None:
    steps = 5
    looks = await looked(Done(), (steps + 0.5) * STEP)
    assert 2 <= len(looks) <= steps + 1, "the first at once, then one for each pause"
    assert all(names == ["w-1", "w-2"] for names in looks)


@pytest.mark.parametrize("effect", [Stale(), Skipped("braked"), Failed("the cluster is away")], ids=repr)
async def test_a_step_that_was_not_taken_leads_to_no_other(effect: Effect) -> None:
    assert await looked(effect, 2.5 * STEP) == [["w-1", "w-2"]]


async def test_changed_workers_are_left_to_the_replica_that_runs_converge() -> None:
    assert await looked(Done(), STEP, trusted=False) == []
