"""The state machines are those in the docs, row by row, because a change of a table is a change for every reader of events."""

import re
from pathlib import Path

import pytest

from holdfast.model import claim, worker
from holdfast.model.claim import CLAIM, OUTCOMES
from holdfast.model.machine import Machine, sql_list
from holdfast.model.worker import WORKER

PAGE = (Path(__file__).parents[2] / "docs" / "state-machines.md").read_text()
CLAIMS, WORKERS = PAGE.split("\n## A worker\n")
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<sources>[^|]+) \| (?P<target>\w+) \| `(?P<event>[\w.]+)` \|", re.MULTILINE)
BOTH = pytest.mark.parametrize(("machine", "page"), [(CLAIM, CLAIMS), (WORKER, WORKERS)], ids=["claim", "worker"])


@BOTH
def test_every_transition_is_documented_and_every_documented_one_exists(machine: Machine, page: str) -> None:
    drawn = [
        (found["name"], () if found["sources"] == "–" else tuple(found["sources"].split(", ")), found["target"], found["event"])
        for found in ROW.finditer(page)
    ]
    assert [(t.name, t.sources, t.target, t.event) for t in machine.transitions] == drawn


@BOTH
def test_the_diagram_is_the_documented_one(machine: Machine, page: str) -> None:
    assert f"```mermaid\n{machine.diagram()}\n```" in page


def test_the_states_are_in_the_order_in_which_they_are_lived_through() -> None:
    assert (CLAIM.noun, CLAIM.states, CLAIM.final) == ("claim", ("waiting", "assigned", "active", "ended"), "ended")
    assert CLAIM.initial == ("waiting", "active")
    states = ("spawning", "warm", "held", "parked", "retiring", "gone")
    assert (WORKER.noun, WORKER.states, WORKER.final) == ("worker", states, "gone")
    assert WORKER.initial == ("spawning", "held", "retiring")


def test_outcomes_are_the_documented_ones() -> None:
    rows = re.findall(r"^\| (waiting|assigned|active) \| ([\w, ]+) \|$", CLAIMS, re.MULTILINE)
    assert {state: tuple(outcomes.split(", ")) for state, outcomes in rows} == OUTCOMES


def test_the_sets_that_sql_is_filled_with() -> None:
    assert sql_list(claim.LIVE) == "('assigned','active')"
    assert sql_list(worker.FREE) == "('warm','parked')"


def test_retries_keys_and_fences_have_their_documented_size() -> None:
    assert (claim.MAX_LOST_RETRIES, claim.KEY_HOURS, claim.FENCE_BITS) == (2, 24, 40)
