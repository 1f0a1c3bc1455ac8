"""How `pools` reads a WorkerPool object, finds pools whose object is gone, and writes an object's status."""

from itertools import combinations
from typing import Any

import msgspec
import pytest
from clockwork_pool import load, pool

from holdfast.duties.actions import Action
from holdfast.duties.pool_actions import DrainPool, Ensure, FinishPool, Guard, PutPool, Release, UpdateStatus
from holdfast.duties.pools import ObservedPools, Pools, conditions, drained, not_taken, of_object, status, vanished, wanted
from holdfast.model.pool import Pool
from holdfast.ports.declared import Condition, Declared
from holdfast.ports.store import PoolLoad

SPEC = {"warm": 2, "max": 10}
TROUBLE = "image: ErrImagePull: no such image"


def declared(**about: Any) -> Declared:
    return Declared(**{"name": "etl", "uid": "u-1", "generation": 4, "spec": SPEC, "guarded": True, **about})


def its_pool(**about: Any) -> Pool:
    """Returns the pool of the object above, with these changes."""
    return msgspec.structs.replace(pool(), **{"id": "p-u-1", "source": "cr", **about})


def its_load(*, pool: dict[str, Any] | None = None, **facts: Any) -> PoolLoad:
    return load(its_pool(**(pool or {})), **facts)


def by_type(found: tuple[Condition, ...]) -> dict[str, Condition]:
    return {each.type: each for each in found}


# What an object specifies

LIVE = its_load(current=2)
DRAINING = its_load(pool={"state": "draining"})
OTHERS_CR = its_load(pool={"id": "p-u-0"})
OTHERS_API = its_load(pool={"id": "p-9", "source": "api"})
OLD_SPEC = its_load(pool={"spec": pool(warm=1).spec})
PUT, DRAIN = PutPool(declared()), DrainPool("etl", "p-u-1")
TELL = UpdateStatus(declared(), status(declared(), LIVE))


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        pytest.param([], [PUT], id="new"),
        pytest.param([LIVE], [TELL], id="as it is"),
        pytest.param([OLD_SPEC], [PUT], id="changed"),
        pytest.param([DRAINING], [], id="its own pool drains: not created again under the same identity"),
        pytest.param([OTHERS_CR], [DrainPool("etl", "p-u-0")], id="the name's last object is gone"),
        pytest.param([its_load(pool={"id": "p-u-0", "state": "draining"})], [PUT], id="a draining pool's name is free"),
        pytest.param([its_load(pool={"id": "p-9", "name": "other"})], [PUT], id="another pool"),
    ],
)
def test_an_object_becomes_its_pool(loads: list[PoolLoad], expected: list[Action]) -> None:
    assert of_object(declared(), loads) == expected


def test_an_object_is_guarded_before_anything_is_made_for_it() -> None:
    bare = declared(guarded=False)
    for loads in ([], [LIVE], [OLD_SPEC], [DRAINING], [OTHERS_CR], [OTHERS_API]):
        first, *rest = of_object(bare, loads)
        assert first == Guard(bare)
        assert not any(isinstance(each, Guard) for each in rest)


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize(
    ("loads", "drains"), [([LIVE], True), ([OLD_SPEC], True), ([DRAINING], False), ([], False), ([OTHERS_API], False)]
)
def test_a_deleted_object_goes_once_its_drain_is_durable(loads: list[PoolLoad], drains: bool, guarded: bool) -> None:
    gone = declared(deleting=True, guarded=guarded)
    expected: list[Action] = [DRAIN] if drains else [Release(gone)] if guarded else []
    assert of_object(gone, loads) == expected


def test_a_name_that_the_api_has_is_not_taken_from_it() -> None:
    (action,) = of_object(declared(), [OTHERS_API])
    assert isinstance(action, UpdateStatus)
    (found,) = action.status.conditions
    assert (found.type, found.status, found.reason) == ("Ready", False, "NameTaken")
    assert "'etl'" in found.message
    assert action.status.generation == 4


def test_a_specification_that_cannot_be_read_is_put_so_that_its_status_shows_why() -> None:
    odd = declared(spec={"warm": "many"})
    assert wanted(odd) is None
    assert of_object(odd, [LIVE]) == [PutPool(odd)]


# Pools whose object is gone


@pytest.mark.parametrize(
    ("objects", "about", "drains"),
    [
        pytest.param([], {}, True, id="gone"),
        pytest.param([declared()], {}, False, id="there"),
        pytest.param([declared(deleting=True)], {}, False, id="there, and going"),
        pytest.param([declared(uid="u-2")], {}, False, id="created again: the new object drains it"),
        pytest.param(
            [declared(uid="u-2", deleting=True)], {}, True, id="created again and deleted: the new object drains only its own"
        ),
        pytest.param([declared(name="other", uid="u-2")], {}, True, id="another's"),
        pytest.param([], {"source": "api"}, False, id="the API's pool has no object"),
        pytest.param([], {"state": "draining"}, False, id="drains already"),
    ],
)
def test_a_pool_without_its_object_drains_once_a_direct_read_agrees(
    objects: list[Declared], about: dict[str, Any], drains: bool
) -> None:
    assert vanished(objects, [its_load(pool=about)]) == ([DrainPool("etl", "p-u-1", gone="u-1")] if drains else [])


# The status of an object


def test_a_status_shows_what_its_pool_has() -> None:
    seen = its_load(
        pool={"revision": "abc"},
        current=3,
        starting=4,
        held=5,
        parked=6,
        retiring=7,
        waiting=9,
        servable=8,
        oldest_wait=61.9,
        ready=2,
    )
    found = status(declared(), seen)
    assert (found.generation, found.revision) == (4, "abc")
    assert (found.free, found.warm, found.spawning, found.held, found.parked, found.retiring) == (2, 3, 4, 5, 6, 7)
    assert (found.waiting, found.oldest_waiting) == (9, 61), "whole seconds"
    assert found.desired == 2 + 8 + 1, "what is kept ready, what can be served, and one for what is blocked"
    assert found.conditions == conditions(seen)


def test_nothing_waits() -> None:
    assert (status(declared(), LIVE).waiting, status(declared(), LIVE).oldest_waiting) == (0, 0)
    assert status(declared(), LIVE).desired == 2


@pytest.mark.parametrize(
    ("facts", "trouble", "expected"),
    [
        pytest.param({"current": 2}, None, (True, "WarmTargetMet"), id="all there"),
        pytest.param({"current": 1, "starting": 1}, None, (False, "Starting"), id="one is missing"),
        pytest.param({"current": 2, "ready": 1}, None, (False, "Starting"), id="warm, and not ready"),
        pytest.param({"current": 1, "held": 9}, None, (True, "Saturated"), id="max leaves room for one"),
        pytest.param({"held": 6, "parked": 4}, None, (True, "Saturated"), id="max leaves no room"),
        pytest.param({"held": 12}, None, (True, "Saturated"), id="max was lowered"),
        pytest.param({"held": 9}, None, (False, "Starting"), id="there is room for one"),
        pytest.param({"current": 1, "starting": 1}, TROUBLE, (False, "SpawnsFail"), id="one is missing, and cannot start"),
        pytest.param({"current": 2}, TROUBLE, (True, "WarmTargetMet"), id="enough in spite of it"),
    ],
)
def test_ready(facts: dict[str, Any], trouble: str | None, expected: tuple[bool, str]) -> None:
    found = by_type(conditions(its_load(pool={"trouble": trouble}, **facts)))["Ready"]
    assert (found.status, found.reason) == expected


def test_a_pool_that_keeps_nothing_ready_is_ready_however_full_it_is() -> None:
    found = by_type(conditions(its_load(pool={"spec": pool(warm=0).spec}, held=12)))["Ready"]
    assert (found.status, found.reason) == (True, "WarmTargetMet")


def test_ready_shows_how_many_in_a_sentence() -> None:
    assert by_type(conditions(LIVE))["Ready"].message == "2 free workers of 2 wanted; 0 held, 10 at most"
    short = its_load(current=1, starting=1)
    assert by_type(conditions(short))["Ready"].message == "1 free workers of 2 wanted; 1 starting"


def test_degraded_has_the_reason_why_workers_do_not_start() -> None:
    assert by_type(conditions(LIVE))["Degraded"] == Condition("Degraded", False, "AsExpected", "")
    troubled = its_load(pool={"trouble": TROUBLE}, current=2)
    assert by_type(conditions(troubled))["Degraded"] == Condition("Degraded", True, "SpawnsFail", TROUBLE)


def test_degraded_has_the_reason_why_activations_fail_unless_it_may_be_the_payload_of_one_claim() -> None:
    failing = {"activation_trouble": "activate exited with 3"}
    one = its_load(pool={**failing, "claims_failing": 1}, current=2)
    assert by_type(conditions(one))["Degraded"] == Condition("Degraded", False, "AsExpected", "")
    several = its_load(pool={**failing, "claims_failing": 3}, current=2)
    reason = "activation fails"  # without the lines of the hook
    assert by_type(conditions(several))["Degraded"] == Condition("Degraded", True, "ActivationsFail", reason)


def test_frozen_has_the_reason_of_the_freeze() -> None:
    assert by_type(conditions(LIVE))["Frozen"] == Condition("Frozen", False, "NotFrozen", "")
    frozen = its_load(pool={"frozen": "looking into it"})
    assert by_type(conditions(frozen))["Frozen"] == Condition("Frozen", True, "Frozen", "looking into it")


def test_a_refused_change_is_shown_and_changes_nothing_else() -> None:
    seen = its_load(pool={"frozen": "looking into it", "trouble": TROUBLE}, current=1, held=3)
    before, now = status(declared(generation=3), seen), not_taken(declared(), seen, "Refused", "warm: above max")
    assert now == msgspec.structs.replace(before, generation=4, conditions=now.conditions)
    found = by_type(now.conditions)
    assert found.pop("Degraded") == Condition("Degraded", True, "Refused", "the pool goes on as it was: warm: above max")
    assert found == {name: each for name, each in by_type(before.conditions).items() if name != "Degraded"}


def test_what_was_refused_from_the_start_has_no_pool() -> None:
    now = not_taken(declared(), None, "Refused", "warm: above max")
    assert {each.type: (each.status, each.reason, each.message) for each in now.conditions} == {
        "Ready": (False, "Refused", "warm: above max"),
        "Degraded": (True, "Refused", "warm: above max"),
    }
    assert (now.generation, now.revision, now.desired, now.free) == (4, "", 0, 0)


# The whole plan


def test_without_declared_pools_no_pool_counts_as_one_without_an_object() -> None:
    assert Pools().plan(ObservedPools(None, [LIVE])) == [Ensure((LIVE.pool,))]
    assert DrainPool("etl", "p-u-1", gone="u-1") in Pools().plan(ObservedPools([], [LIVE]))


@pytest.mark.parametrize("left", ["spawning", "warm", "unusable", "held", "parked", "retiring", "waiting"])
def test_a_pool_is_finished_when_it_drains_and_nothing_is_left(left: str) -> None:
    assert FinishPool("p-u-1") in Pools().plan(ObservedPools(None, [DRAINING]))
    busy = its_load(pool={"state": "draining"}, **{left: 1})
    assert not drained(busy)
    assert FinishPool("p-u-1") not in Pools().plan(ObservedPools(None, [busy]))
    assert not drained(its_load())


COUNTS = ("spawning", "warm", "unusable", "held", "parked", "retiring", "waiting")


@pytest.mark.parametrize("some", [*((name,) for name in COUNTS), *combinations(COUNTS, 2)], ids=" ".join)
def test_a_pool_is_drained_only_when_nothing_at_all_is_left(some: tuple[str, ...]) -> None:
    assert drained(DRAINING)
    assert not drained(msgspec.structs.replace(DRAINING, **dict.fromkeys(some, 1)))
