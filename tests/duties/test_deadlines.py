"""What is due for a claim, condition by condition, and numbers that depend on each other."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.activation import PROGRESS_SECONDS
from holdfast.duties.actions import Action, EndClaim, HandOver, Requeue
from holdfast.duties.deadlines import ACTIVATE_STALL, DELIVER_STALL, OFFER_STALL, Deadlines, decide
from holdfast.model.claim import CLAIM, OUTCOMES, How
from holdfast.ports.store import Due

FENCE = (1 << 40) + 7
ENDINGS = {
    "pool": ("refused", "pool_deleted"),
    "deadline": ("refused", "deadline"),
    "lease": ("expired", "lease"),
    "max": ("expired", "max_duration"),
}


def due(state: str, **facts: Any) -> Due:
    bound = {} if state == "waiting" else {"fence": FENCE}
    return Due(**{"claim": "c-1", "fence": None, "state": state, "pool_live": True, **bound, **facts})


def ended(action: Action | None) -> tuple[str, str] | None:
    assert action is None or isinstance(action, EndClaim)
    return None if action is None else (action.outcome, action.how)


@pytest.mark.parametrize(
    ("pool_live", "past_deadline", "expected"),
    [(True, False, None), (True, True, "deadline"), (False, False, "pool"), (False, True, "pool")],
)
def test_a_waiting_claim(pool_live: bool, past_deadline: bool, expected: str | None) -> None:
    for past_lease, past_max, idle in product((False, True), (False, True), (0.0, 1e6)):
        found = decide(
            due(
                "waiting",
                pool_live=pool_live,
                past_deadline=past_deadline,
                past_lease=past_lease,
                past_max=past_max,
                idle=idle,
            )
        )
        assert ended(found) == (ENDINGS[expected] if expected else None)


@pytest.mark.parametrize(
    ("past_lease", "past_max", "expected"),
    [(False, False, None), (True, False, "lease"), (False, True, "max"), (True, True, "lease")],
)
def test_an_active_claim_ends_by_its_own_lease_or_longest_duration_only(
    past_lease: bool, past_max: bool, expected: str | None
) -> None:
    """P2: a deleted pool, a deadline for waiting or a silent worker does not end an active claim."""
    for pool_live, past_deadline, idle in product((False, True), (False, True), (0.0, 1e6)):
        found = decide(
            due(
                "active",
                past_lease=past_lease,
                past_max=past_max,
                pool_live=pool_live,
                past_deadline=past_deadline,
                idle=idle,
            )
        )
        assert ended(found) == (ENDINGS[expected] if expected else None)


AGAIN = HandOver("c-1")
TO_ANOTHER = Requeue("c-1", FENCE, "its worker did not fetch it", keep_worker=True, suspect=True, idle=DELIVER_STALL)
GIVEN_UP = Requeue("c-1", FENCE, "it stopped making progress", idle=ACTIVATE_STALL, activation=True)


@pytest.mark.parametrize(
    ("offered", "delivered", "idle", "expected"),
    [
        (False, False, 0.0, None),
        (False, False, OFFER_STALL - 0.01, None),
        (False, False, OFFER_STALL, AGAIN),
        (False, False, 1e6, AGAIN),
        (True, False, OFFER_STALL, None),
        (True, False, DELIVER_STALL - 0.01, None),
        (True, False, DELIVER_STALL, TO_ANOTHER),
        (True, False, 1e6, TO_ANOTHER),
        (True, True, DELIVER_STALL, None),
        (True, True, ACTIVATE_STALL - 0.01, None),
        (True, True, ACTIVATE_STALL, GIVEN_UP),
        (True, True, 1e6, GIVEN_UP),
    ],
)
def test_an_assigned_claim(offered: bool, delivered: bool, idle: float, expected: Action | None) -> None:
    for pool_live, past in product((False, True), (False, True)):
        seen = due(
            "assigned",
            offered=offered,
            delivered=delivered,
            idle=idle,
            pool_live=pool_live,
            past_deadline=past,
            past_lease=past,
            past_max=past,
        )
        assert decide(seen) == expected


def test_a_worker_that_got_its_claim_is_not_kept() -> None:
    """P1: after the delivery, the worker is not kept."""
    found = decide(due("assigned", offered=True, delivered=True, idle=1e6))
    assert isinstance(found, Requeue)
    assert not found.keep_worker


DUES = st.builds(
    lambda state, **facts: due(state, **facts),
    st.sampled_from(["waiting", "assigned", "active"]),
    pool_live=st.booleans(),
    past_deadline=st.booleans(),
    past_lease=st.booleans(),
    past_max=st.booleans(),
    idle=st.floats(-1e9, 1e9),
    offered=st.booleans(),
    delivered=st.booleans(),
)


@settings(deadline=None, max_examples=300)
@given(DUES)
def test_every_ending_is_one_that_the_tables_allow_from_the_state_it_expects(seen: Due) -> None:
    action = decide(seen)
    if isinstance(action, EndClaim):
        assert action.states == (seen.state,)
        assert action.outcome in OUTCOMES[seen.state]
        assert action.how in How.__args__  # type: ignore[attr-defined]
        assert action.fence == seen.fence
        assert CLAIM.allows(seen.state, "ended")
        assert seen.state != "assigned"
    if isinstance(action, Requeue):
        assert seen.state in CLAIM.sources("requeue")
        assert action.proof is None
        assert action.idle is not None, "the store looks again: an agent may have reported meanwhile"
        assert action.idle <= seen.idle
    if seen.idle < min(OFFER_STALL, DELIVER_STALL, ACTIVATE_STALL) and seen.state == "assigned":
        assert action is None


@settings(deadline=None, max_examples=60)
@given(st.lists(DUES, max_size=10))
def test_a_plan_is_the_sum_of_its_decisions(seen: list[Due]) -> None:
    plan = Deadlines().plan(seen)
    assert plan == [action for one in seen if (action := decide(one)) is not None]
    assert Deadlines().plan(list(seen)) == plan


def test_a_claim_without_a_fence_cannot_be_assigned() -> None:
    with pytest.raises(AssertionError):
        decide(Due(claim="c-1", fence=None, state="assigned", pool_live=True))


def test_progress_is_missed_several_times_before_it_counts() -> None:
    assert 4 * PROGRESS_SECONDS <= ACTIVATE_STALL


def test_an_ending_names_the_assignment_it_was_planned_for() -> None:
    action = decide(due("active", past_lease=True))
    assert isinstance(action, EndClaim)
    assert action == replace(action, fence=FENCE, states=("active",), proof=None)
