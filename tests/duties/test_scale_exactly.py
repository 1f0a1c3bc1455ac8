"""The plans of `scale` in every field: which slots count, how spawns are sliced, reasons, minimums and the brake's room."""

from typing import Any

import msgspec
import pytest
from clockwork_pool import load, pool

from holdfast.duties.actions import Action, Condemn, Spawn
from holdfast.duties.scale import COOLDOWN, Scale, grow, parked_ends, plan_pool, present, rollout, shrink


def gone(actions: list[Action]) -> list[str]:
    return [action.worker for action in actions if isinstance(action, Condemn)]


KINDS = {
    "w-outdated-starting-0": "a outdated worker that starts",
    "w-outdated-0": "a outdated warm one",
    "w-starting-0": "one that starts",
    "w-current-0": "a warm one",
    "w-parked-0": "a parked one",
}


@pytest.mark.parametrize(
    ("why", "reason"),
    [({"state": "draining"}, "its pool was deleted"), ({"stopping": True}, "the installation is being stopped")],
    ids=["draining", "stopping"],
)
def test_a_pool_that_ends_lets_go_of_each_kind_of_free_worker_with_its_reason(why: dict[str, Any], reason: str) -> None:
    facts = {key: value for key, value in why.items() if key == "stopping"}
    about = {key: value for key, value in why.items() if key == "state"}
    seen = load(pool(**about), current=1, outdated=1, starting=1, outdated_starting=1, parked=1, held=3, **facts)
    assert plan_pool(seen) == [Condemn(worker, 1, reason, counted=False) for worker in KINDS]


@pytest.mark.parametrize("kind", ["spawning", "warm", "unusable", "held", "parked", "retiring"])
def test_a_worker_of_any_kind_takes_one_slot(kind: str) -> None:
    """P5: a worker that is not counted could be spawned beyond max, again and again."""
    assert present(load(pool(), **{kind: 3})) == 3


def test_a_pool_grows_into_the_slots_that_are_left_whatever_takes_the_others() -> None:
    its_pool = pool(warm=4, max=5)
    for kind in ("unusable", "held", "parked", "retiring"):
        seen = load(its_pool, **{kind: 3})
        assert plan_pool(seen) == [Spawn("p-1", 4, 4, 2)], kind


def test_a_large_growth_is_cut_into_slices_that_add_up() -> None:
    seen = load(pool(warm=21, max=100))
    assert grow(seen) == [Spawn("p-1", 21, 25, 8), Spawn("p-1", 21, 25, 8), Spawn("p-1", 21, 25, 5)]


def test_a_target_beyond_max_is_cut_to_max() -> None:
    assert grow(load(pool(warm=4, max=6), servable=9)) == [Spawn("p-1", 6, 4, 4)]


@pytest.mark.parametrize(("most", "at_once"), [(1, 1), (16, 4), (17, 5), (20, 5), (100, 25)])
def test_a_quarter_of_max_rounded_up_starts_at_once_and_at_least_four(most: int, at_once: int) -> None:
    spawns = [action for action in grow(load(pool(warm=most, max=most))) if isinstance(action, Spawn)]
    assert sum(action.count for action in spawns) == at_once


@pytest.mark.parametrize(("until", "grows"), [(None, True), (999.9, True), (1000.0, True), (1000.1, False)])
def test_a_backoff_holds_until_its_moment_has_come(until: float | None, grows: bool) -> None:
    assert bool(grow(load(pool(backoff_until=until)))) is grows


def test_a_shrinking_pool_sets_a_floor_and_stops_at_that_many() -> None:
    seen = load(pool(warm=2), current=4)
    assert shrink(seen) == [Condemn("w-current-0", 1, "the pool wants 2 free workers", pool_id="p-1", floor=2)]


def test_a_lowered_max_has_no_floor_and_no_cooldown() -> None:
    seen = load(pool(warm=2, max=3), current=5, shrunk_ago=0.0)
    assert shrink(seen) == [Condemn(f"w-current-{n}", 1, "the pool wants 2 free workers", pool_id="p-1") for n in range(2)]
    exact = load(pool(warm=2, max=5), current=5, shrunk_ago=0.0)
    assert shrink(exact) == [], "at max, not beyond it"


@pytest.mark.parametrize("kind", ["unusable", "held", "parked"])
def test_every_kind_but_a_retiring_worker_counts_against_a_lowered_max(kind: str) -> None:
    assert len(shrink(load(pool(warm=2, max=4), current=2, shrunk_ago=0.0, **{kind: 3}))) == 1
    assert shrink(load(pool(warm=2, max=4), current=2, shrunk_ago=0.0, retiring=3)) == []


def test_what_a_rollout_takes_counts_neither_as_surplus_nor_against_max() -> None:
    seen = load(pool(warm=2, max=4), current=3, outdated=2, shrunk_ago=0.0)
    assert len(shrink(seen)) == 1
    assert shrink(seen, 1) == []
    surplus = load(pool(warm=2), current=4, outdated=2)
    assert len(shrink(surplus, 0)) == 1
    assert len(shrink(surplus, 4)) == 0


@pytest.mark.parametrize(("current", "steps"), [(2, 0), (3, 1), (6, 1), (7, 2), (10, 2)])
def test_a_quarter_of_the_surplus_goes_rounded_up(current: int, steps: int) -> None:
    assert len(shrink(load(pool(warm=2, max=50), current=current))) == steps


@pytest.mark.parametrize(("ago", "goes"), [(None, True), (COOLDOWN - 0.1, False), (COOLDOWN, True)])
def test_a_step_down_waits_for_the_cooldown(ago: float | None, goes: bool) -> None:
    assert bool(shrink(load(pool(warm=2), current=6, shrunk_ago=ago))) is goes


@pytest.mark.parametrize(("room", "goes"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (100, 10)])
def test_a_step_down_leaves_half_of_the_brakes_room_to_faults(room: int, goes: int) -> None:
    """P7: a normal step down must not use up the rest of the brake's limit."""
    assert len(shrink(load(pool(warm=2, max=50), current=42, brake_room=room))) == goes


def test_those_that_still_start_go_first() -> None:
    seen = load(pool(warm=1, max=50), current=3, starting=2)
    assert gone(shrink(seen)) == ["w-starting-0"]
    assert gone(shrink(load(pool(warm=0, max=3), current=3, starting=2, shrunk_ago=0.0))) == ["w-starting-0", "w-starting-1"]


@pytest.mark.parametrize("kind", ["held", "parked", "unusable"])
def test_a_rollout_in_a_pool_that_others_fill_needs_fewer_ready_workers(kind: str) -> None:
    """A pool whose slots are taken cannot have more free workers, so it does not lack any."""
    full = load(pool(warm=4, max=5, rollout={"maxUnavailable": 1}), outdated=2, ready=2, **{kind: 3})
    assert gone(rollout(full)) == ["w-outdated-0"]
    short = load(pool(warm=4, max=5, rollout={"maxUnavailable": 1}), outdated=2, ready=2, **{kind: 1})
    assert gone(rollout(short)) == []


def test_a_rollout_names_its_revision_and_is_not_counted_by_the_brake() -> None:
    seen = load(pool(warm=1, rollout={"maxUnavailable": 1}), outdated=2, outdated_starting=1)
    reason = "rollout to revision new"
    assert rollout(seen) == [Condemn(worker, 1, reason, counted=False) for worker in ("w-outdated-starting-0", "w-outdated-0")]


def test_a_pool_that_wants_no_warm_worker_still_rolls_over() -> None:
    assert gone(rollout(load(pool(warm=0, max=2), outdated=1, held=2))) == ["w-outdated-0"]
    assert gone(rollout(load(pool(warm=2, max=2), outdated=1, ready=0, held=3))) == ["w-outdated-0"]


def test_parked_workers_past_their_ttl_go_uncounted_down_to_the_floor() -> None:
    seen = load(pool(park={"min": 1}), parked=3, expired=3)
    reason = "parked past its TTL"
    assert parked_ends(seen) == [Condemn(f"w-parked-{n}", 1, reason, counted=False) for n in range(2)]
    assert parked_ends(load(pool(park={"min": 4}), parked=3, expired=3)) == []


def test_above_the_cap_the_oldest_parked_workers_go_and_none_is_named_twice() -> None:
    reason = "more parked workers than park.max"
    seen = load(pool(park={"max": 2}), parked=5, expired=1)
    expired, *capped = parked_ends(seen)
    assert expired == Condemn("w-parked-0", 1, "parked past its TTL", counted=False)
    assert capped == [Condemn(f"w-parked-{n}", 1, reason, counted=False) for n in (1, 2)]
    assert parked_ends(load(pool(park={"max": 5}), parked=5)) == []
    assert gone(parked_ends(load(pool(park={"max": 4}), parked=5))) == ["w-parked-0"]


def test_a_pass_does_everything_that_a_pool_needs_in_one_order() -> None:
    """Endings come before spawns: parked workers, then the rollout, then the surplus."""
    its_pool = pool(warm=6, max=40, park={"max": 0}, rollout={"maxUnavailable": 2})
    seen = load(its_pool, current=9, outdated=1, starting=0, parked=1)
    assert gone(plan_pool(seen)) == ["w-parked-0", "w-outdated-0", "w-current-0"]


def test_spawns_of_several_pools_take_turns_and_a_pass_makes_four_slices_or_one_per_pool() -> None:
    def needy(number: int, warm: int) -> Any:
        return load(msgspec.structs.replace(pool(warm=warm, max=100), id=f"p-{number}"))

    one = Scale().plan([needy(1, 25), needy(2, 9)])
    assert [(action.pool_id, action.count) for action in one if isinstance(action, Spawn)] == [
        ("p-1", 8),
        ("p-2", 8),
        ("p-1", 8),
        ("p-2", 1),
    ]
    six = Scale().plan([needy(number, 25) for number in range(6)])
    assert [action.pool_id for action in six if isinstance(action, Spawn)] == [f"p-{number}" for number in range(6)]


@pytest.mark.parametrize(("most", "floor"), [(7, 2), (6, 2), (5, None)])
def test_a_step_down_has_a_floor_unless_the_pool_is_beyond_its_max(most: int, floor: int | None) -> None:
    """Claims may be served between the read and the action. Beyond max the worker has to end anyway."""
    first, *_ = shrink(load(pool(warm=2, max=most), current=6))
    assert isinstance(first, Condemn)
    assert first.floor == floor
