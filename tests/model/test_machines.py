"""The state tables of claim and worker: every state can be reached and left, and no change leads outside of the table."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import claim, worker
from holdfast.model.claim import CLAIM
from holdfast.model.machine import Machine, sql_list
from holdfast.model.worker import WORKER

MACHINES = pytest.mark.parametrize("machine", [CLAIM, WORKER], ids=lambda machine: machine.noun)


def reached(machine: Machine, starts: set[str]) -> set[str]:
    found = set(starts)
    while True:
        more = {t.target for t in machine.transitions if found & set(t.sources)} - found
        if not more:
            return found
        found |= more


@MACHINES
def test_every_state_can_be_reached_from_a_birth(machine: Machine) -> None:
    assert reached(machine, set(machine.initial)) == set(machine.states)


@MACHINES
def test_the_initial_states_are_exactly_where_births_lead(machine: Machine) -> None:
    assert set(machine.initial) == {t.target for t in machine.transitions if not t.sources}


@MACHINES
def test_the_end_can_be_reached_from_every_state(machine: Machine) -> None:
    for state in machine.states:
        assert machine.final in reached(machine, {state}), f"a {machine.noun} that is {state} can never end"


@MACHINES
def test_final_is_final(machine: Machine) -> None:
    """Lost commits are the exception: a pod that still holds a claim counts, even if its worker's row was closed."""
    leaving = [t for t in machine.transitions if machine.final in t.sources]
    assert {t.event for t in leaving} <= {f"{machine.noun}.adopted"}
    assert {t.target for t in leaving} <= {"held"}
    if machine is CLAIM:
        assert leaving == [], "an ended claim is ended for good"


@MACHINES
def test_transitions_name_only_states_of_the_table_and_each_has_its_own_name(machine: Machine) -> None:
    names = [t.name for t in machine.transitions]
    assert len(set(names)) == len(names)
    for t in machine.transitions:
        assert {t.target, *t.sources} <= set(machine.states), t.name
        # `rehold` goes from held to held, for another claim that a pod shows after lost commits.
        assert t.target not in t.sources or t.name == "rehold", f"{t.name} changes nothing"
        assert t.event.startswith(f"{machine.noun}."), t.name
        assert t.why, t.name


@MACHINES
def test_sources_guard_and_allows_agree(machine: Machine) -> None:
    for t in machine.transitions:
        assert machine.sources(t.name) == t.sources
        assert all(machine.allows(source, t.target) for source in t.sources)
        if t.sources:
            assert machine.guard(t.name) == "(" + ",".join(f"'{source}'" for source in t.sources) + ")"
    for source in machine.states:
        for target in machine.states:
            ways = [t for t in machine.transitions if t.target == target and source in t.sources]
            assert machine.allows(source, target) == bool(ways)


@MACHINES
def test_a_birth_has_no_guard_and_an_unknown_name_is_refused(machine: Machine) -> None:
    births = [t.name for t in machine.transitions if not t.sources]
    assert births
    for name in births:
        with pytest.raises(AssertionError):
            machine.guard(name)
    with pytest.raises(KeyError, match=machine.noun):
        machine["explode"]


@MACHINES
def test_the_diagram_draws_every_way(machine: Machine) -> None:
    drawn = machine.diagram().splitlines()
    ways = sum(max(1, len(t.sources)) for t in machine.transitions)
    assert len(drawn) == 1 + ways + 1
    assert drawn[-1].strip() == f"{machine.final} --> [*]"


@MACHINES
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_random_walk_never_leaves_the_table_and_stops_only_at_the_end(machine: Machine, data: st.DataObject) -> None:
    state = data.draw(st.sampled_from([t.target for t in machine.transitions if not t.sources]))
    for _ in range(30):
        ways = [t for t in machine.transitions if state in machine.sources(t.name)]
        if not ways:
            assert state == machine.final
            return
        step = data.draw(st.sampled_from(ways))
        assert machine.allows(state, step.target)
        state = step.target
        assert state in machine.states


def test_a_busy_worker_has_no_way_out_that_its_claim_does_not_take() -> None:
    """P2: `condemn` does not start from `held`. Only the end or return of its claim changes a held worker."""
    assert "held" not in WORKER.sources("condemn")
    leaving = {t.name for t in WORKER.transitions if "held" in t.sources}
    assert leaving == {"return_warm", "return_parked", "park", "spend", "rehold"}
    assert WORKER["rehold"].target == "held", "found with another claim after lost commits, it stays held"
    assert not WORKER.allows("held", "gone")


def test_a_worker_that_served_a_tenant_is_never_warm_again() -> None:
    """P1: only a worker to which nothing was delivered goes back to warm."""
    assert {t.name for t in WORKER.transitions if t.target == "warm"} == {"warm", "return_warm"}
    assert not WORKER.allows("parked", "warm")
    assert not WORKER.allows("retiring", "warm")


def test_a_claim_holds_only_a_free_worker() -> None:
    assert set(worker.FREE) == set(WORKER.sources("hold"))


def test_live_claims_are_those_with_a_worker() -> None:
    assert set(claim.LIVE) == set(CLAIM.states) - {"waiting", "ended"}
    assert all(outcome in claim.Outcome.__args__ for state in claim.OUTCOMES for outcome in claim.OUTCOMES[state])
    assert set(claim.OUTCOMES) == set(CLAIM.sources("end"))


@pytest.mark.parametrize("values", [(), ("a b",), ("x'; DROP TABLE claim; --",), ("",)])
def test_only_identifiers_become_sql(values: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError):
        sql_list(values)
