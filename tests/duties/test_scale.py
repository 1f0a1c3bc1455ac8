"""How many workers a pool should have: plans for one view, and a small model of a pool that follows the plans."""

import math
from typing import Any

import pytest
from clockwork_pool import load, pool
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.duties.actions import Action, Condemn, Spawn
from holdfast.duties.scale import COOLDOWN, SLICE, SLICES, STARTING_FLOOR, STARTING_SHARE, Scale, free_target, plan_pool, present
from holdfast.ports.store import PoolLoad

LOOK = settings(deadline=None, max_examples=300)
FEW = st.integers(0, 12)


@st.composite
def loads(draw: st.DrawFn, **fixed: Any) -> PoolLoad:
    most = draw(st.integers(0, 30))
    parked = draw(FEW)
    current, outdated = draw(FEW), draw(FEW)
    its_pool = pool(
        warm=draw(st.integers(0, most)),
        max=most,
        park={"min": (low := draw(st.integers(0, 4))), "max": draw(st.sampled_from([None, low, low + 3]))},
        rollout={"maxUnavailable": draw(st.sampled_from(["25%", "100%", 1, 3]))},
        backoff_until=draw(st.sampled_from([None, 999.0, 1001.0])),
        **{key: fixed[key] for key in ("state", "frozen") if key in fixed},
    )
    waiting = draw(FEW)
    return load(
        its_pool,
        current=current,
        outdated=outdated,
        starting=draw(FEW),
        outdated_starting=draw(FEW),
        parked=parked,
        expired=draw(st.integers(0, parked)),
        ready=draw(st.integers(0, current + outdated)),
        held=draw(FEW),
        retiring=draw(FEW),
        waiting=waiting,
        servable=draw(st.integers(0, waiting)),
        shrunk_ago=draw(st.sampled_from([None, 0.0, COOLDOWN - 1, COOLDOWN, 1e6])),
        stopping=fixed.get("stopping", False),
    )


def spawned(actions: list[Action]) -> int:
    return sum(action.count for action in actions if isinstance(action, Spawn))


def condemned(actions: list[Action], kind: str = "") -> list[str]:
    """Returns the workers whose end is planned. `kind` is part of the name of each worker of that kind."""
    return [action.worker for action in actions if isinstance(action, Condemn) and action.worker.startswith(f"w-{kind}")]


@LOOK
@given(st.lists(loads(), max_size=12))
def test_what_has_to_go_does_not_wait_for_pods_to_come_nor_one_pool_for_another(seen: list[PoolLoad]) -> None:
    plan, alone = Scale().plan(seen), [action for load in seen for action in plan_pool(load)]
    spawns = [action for action in plan if isinstance(action, Spawn)]
    ends = [action for action in alone if not isinstance(action, Spawn)]
    assert plan == [*ends, *spawns]
    wanting = {action.pool_id for action in alone if isinstance(action, Spawn)}
    assert {action.pool_id for action in spawns} == wanting, "each gets some"
    assert len(spawns) <= max(SLICES, len(seen))


@LOOK
@given(loads())
def test_a_pool_never_grows_beyond_its_max_nor_starts_more_at_once_than_it_may(seen: PoolLoad) -> None:
    plan = plan_pool(seen)
    spec = seen.pool.spec
    assert all(0 < action.count <= SLICE for action in plan if isinstance(action, Spawn)), "a pass shows progress between two"
    if not (more := spawned(plan)):
        return
    assert present(seen) + more <= spec.max
    assert seen.spawning + more <= max(STARTING_FLOOR, math.ceil(spec.max * STARTING_SHARE))
    assert seen.spawning + seen.warm + more <= free_target(seen)
    assert seen.pool.backoff_until is None or seen.pool.backoff_until <= seen.now


@LOOK
@given(loads())
def test_no_more_is_let_go_than_there_is_too_much(seen: PoolLoad) -> None:
    gone = len(condemned(plan_pool(seen), "current"))
    surplus = seen.spawning + seen.warm - free_target(seen)
    over = present(seen) - seen.retiring - seen.pool.spec.max
    assert gone <= max(0, surplus, over)
    if over <= 0 and seen.shrunk_ago is not None and seen.shrunk_ago < COOLDOWN:
        assert gone == 0


@LOOK
@given(loads())
def test_the_warm_target_is_kept_but_for_a_lower_max_and_a_rollouts_allowance(seen: PoolLoad) -> None:
    plan, spec = plan_pool(seen), seen.pool.spec
    over = max(0, present(seen) - seen.retiring - spec.max)
    # Only ready workers count, because a starting worker cannot be used yet.
    gone = [name for name in condemned(plan, "current") + condemned(plan, "outdated") if "starting" not in name]
    possible = max(0, min(spec.warm, spec.max - seen.held - seen.parked - seen.unusable))
    assert seen.warm - len(gone) >= min(seen.warm, possible - spec.unavailable(spec.warm)) - over


@LOOK
@given(loads())
def test_no_worker_is_condemned_twice_and_only_workers_that_were_seen_free(seen: PoolLoad) -> None:
    names = condemned(plan_pool(seen))
    assert len(set(names)) == len(names)
    free = [*seen.outdated_starting, *seen.outdated_warm, *seen.current_warm, *seen.starting, *seen.parked_free]
    assert set(names) <= {worker for worker, _ in free}


@settings(deadline=None, max_examples=60)
@given(loads(frozen="an operator looks"))
def test_a_frozen_pool_plans_nothing(seen: PoolLoad) -> None:
    assert plan_pool(seen) == []


@settings(deadline=None, max_examples=60)
@given(st.one_of(loads(state="draining"), loads(stopping=True)))
def test_a_draining_pool_lets_go_of_all_that_is_free_and_spawns_none(seen: PoolLoad) -> None:
    plan = plan_pool(seen)
    free = [*seen.outdated_starting, *seen.outdated_warm, *seen.current_warm, *seen.starting, *seen.parked_free]
    assert sorted(condemned(plan)) == sorted(worker for worker, _ in free)
    assert spawned(plan) == 0
    assert not any(action.counted for action in plan if isinstance(action, Condemn)), "a person wanted it: no brake"


@pytest.mark.parametrize(
    ("waiting", "servable", "target"),
    [(0, 0, 2), (5, 5, 7), (5, 0, 3), (1000, 0, 3), (1000, 1, 4), (1, 0, 3)],
)
def test_demand_blocked_by_caps_is_worth_exactly_one_worker(waiting: int, servable: int, target: int) -> None:
    assert free_target(load(pool(warm=2), waiting=waiting, servable=servable)) == target


GROW = [
    # current, starting, held, retiring, servable → spawned (warm 4, max 10: at most 4 start at once)
    (0, 0, 0, 0, 0, 4),
    (4, 0, 0, 0, 0, 0),
    (1, 2, 0, 0, 0, 1),
    (0, 3, 0, 0, 9, 1),
    (0, 4, 0, 0, 9, 0),
    (0, 0, 9, 0, 5, 1),
    (0, 0, 8, 2, 5, 0),
    (0, 0, 10, 0, 99, 0),
    (4, 0, 4, 0, 4, 2),
]


@pytest.mark.parametrize(("current", "starting", "held", "retiring", "servable", "more"), GROW)
def test_how_much_a_pool_grows(current: int, starting: int, held: int, retiring: int, servable: int, more: int) -> None:
    seen = load(pool(warm=4), current=current, starting=starting, held=held, retiring=retiring, servable=servable)
    assert spawned(plan_pool(seen)) == more


def test_a_pool_whose_starts_fail_waits_out_its_backoff() -> None:
    assert spawned(plan_pool(load(pool(warm=4, backoff_until=1001.0)))) == 0
    assert spawned(plan_pool(load(pool(warm=4, backoff_until=1000.0)))) == 4


SHRINK = [
    # current, seconds since the last step down → condemned (warm 2, max 30)
    (2, None, 0),
    (3, None, 1),
    (6, None, 1),
    (7, None, 2),
    (22, None, 5),
    (22, COOLDOWN - 0.1, 0),
    (22, COOLDOWN, 5),
]


@pytest.mark.parametrize(("current", "ago", "gone"), SHRINK)
def test_a_pool_shrinks_by_a_quarter_of_its_surplus_the_oldest_first(current: int, ago: float | None, gone: int) -> None:
    plan = plan_pool(load(pool(max=30), current=current, shrunk_ago=ago))
    assert condemned(plan) == [f"w-current-{n}" for n in range(gone)]
    assert all(action.counted and action.pool_id == "p-1" for action in plan if isinstance(action, Condemn))


def test_a_lowered_max_knows_no_cooldown_and_never_takes_a_busy_worker() -> None:
    plan = plan_pool(load(pool(max=5), current=3, held=4, shrunk_ago=0.0))
    assert condemned(plan) == ["w-current-0", "w-current-1"]
    assert condemned(plan_pool(load(pool(max=5), held=9))) == []


def test_ready_workers_are_kept_before_starting_ones() -> None:
    """Demand ended while four workers were starting, which may never be ready. The two ready ones must not be ended instead."""
    plan = plan_pool(load(pool(warm=2), current=2, starting=4))
    assert condemned(plan, "current") == []


PARKED = [
    # parked, expired, min, max → condemned
    (3, 0, 0, None, 0),
    (3, 2, 0, None, 2),
    (3, 3, 1, None, 2),
    (3, 3, 3, None, 0),
    (3, 3, 5, 9, 0),
    (5, 0, 0, 2, 3),
    (5, 2, 0, 2, 3),
    (5, 4, 0, 2, 4),
    (2, 2, 0, 0, 2),
]


@pytest.mark.parametrize(("parked", "expired", "low", "high", "gone"), PARKED)
def test_parked_workers_end_past_their_ttl_but_for_a_floor_and_above_a_cap(
    parked: int, expired: int, low: int, high: int | None, gone: int
) -> None:
    plan = plan_pool(load(pool(warm=0, max=30, park={"min": low, "max": high}), parked=parked, expired=expired))
    assert condemned(plan) == [f"w-parked-{n}" for n in range(gone)]
    assert not any(action.counted for action in plan if isinstance(action, Condemn))


ROLL = [
    # outdated, current, ready, warm, maxUnavailable → condemned
    (4, 0, 4, 4, "25%", 1),
    (4, 0, 3, 4, "25%", 0),
    (8, 0, 8, 8, "25%", 2),
    (8, 0, 7, 8, "25%", 1),
    (4, 0, 4, 4, "100%", 4),
    (4, 0, 4, 4, 3, 3),
    (1, 4, 5, 4, 1, 1),
    (1, 0, 1, 0, "25%", 1),
]


@pytest.mark.parametrize(("outdated", "current", "ready", "warm", "limit", "gone"), ROLL)
def test_a_rollout_takes_only_what_it_may(
    outdated: int, current: int, ready: int, warm: int, limit: int | str, gone: int
) -> None:
    seen = load(
        pool(warm=warm, rollout={"maxUnavailable": limit}), outdated=outdated, current=current, ready=ready, shrunk_ago=0.0
    )
    assert condemned(plan_pool(seen), "outdated") == [f"w-outdated-{n}" for n in range(gone)]


def test_a_worker_that_still_starts_from_a_bad_template_is_replaced_at_once() -> None:
    """It cannot be used yet, so replacing it costs nothing. Otherwise a fixed template waits for the start timeout."""
    assert condemned(plan_pool(load(pool(warm=2), outdated_starting=2)), "outdated") != []


def test_a_rollout_is_not_stopped_by_old_workers_that_cannot_be_given_out() -> None:
    """All old workers are suspect, perhaps by a bug that the new revision fixes. None is ready, so replacing costs nothing."""
    old = [(f"w-outdated-{n}", 1) for n in range(4)]
    for most in (10, 4):
        assert plan_pool(load(pool(warm=4, max=most), unusable=4, outdated_warm=old)) != [], f"with max {most}"


def test_what_a_rollout_takes_is_not_let_go_a_second_time_as_surplus() -> None:
    seen = load(pool(warm=2, max=3), current=1, ready=1, outdated_starting=2)
    assert condemned(plan_pool(seen), "current") == []
    assert len(condemned(plan_pool(seen))) == 2
