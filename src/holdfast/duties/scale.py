"""Keep each pool at its size: spawn missing workers, condemn surplus free ones, and replace workers of old revisions."""

import math
from itertools import zip_longest

from ..ports.store import PoolLoad
from .actions import Action, Condemn, Spawn
from .duty import Ports

COOLDOWN = 30.0  # seconds between two steps down, so that a short lull does not cost the next burst its warm workers
STARTING_FLOOR = 4  # workers that may start at the same time in a small pool …
STARTING_SHARE = 0.25  # … or this share of max in a large one: a bad template must not fill the cluster with failing pods
SLICE = 8  # pods per action, because progress is reported after each action and one pod may take a second
SLICES = 4  # actions per pass, because neither endings nor other pools must wait until hundreds of pods are created


class Scale:
    name = "scale"
    period = 2.0

    async def observe(self, ports: Ports) -> list[PoolLoad]:
        return await ports.store.pools.loads()

    def plan(self, observed: list[PoolLoad]) -> list[Action]:
        plans = [plan_pool(load) for load in observed]
        ends = [action for plan in plans for action in plan if not isinstance(action, Spawn)]
        in_turn = zip_longest(*([action for action in plan if isinstance(action, Spawn)] for plan in plans))
        spawns = [action for turn in in_turn for action in turn if action is not None]
        return [*ends, *spawns[: max(SLICES, len(plans))]]


def plan_pool(load: PoolLoad) -> list[Action]:
    """Returns the actions for one pool. A frozen pool needs none; a draining pool condemns all its free workers."""
    pool = load.pool
    if pool.frozen is not None:
        return []
    if pool.state == "draining" or load.stopping:
        reason = "its pool was deleted" if pool.state == "draining" else "the installation is being stopped"
        free = load.outdated_starting + load.outdated_warm + load.starting + load.current_warm + load.parked_free
        return [Condemn(worker, version, reason, counted=False) for worker, version in free]
    rolled = rollout(load)
    return [*parked_ends(load), *rolled, *shrink(load, len(rolled)), *grow(load)]


def free_target(load: PoolLoad) -> int:
    """Returns how many workers should be free or starting: the warm target, plus one per waiting claim that can be served. One
    more stands for all claims that are blocked by caps, so that a pool with only blocked claims does not stand still."""
    blocked = 1 if load.waiting > load.servable else 0
    return load.pool.spec.warm + load.servable + blocked


def present(load: PoolLoad) -> int:
    """Returns how many slots of max are taken: by every worker whose pod may still run, retiring ones too."""
    return load.spawning + load.warm + load.unusable + load.held + load.parked + load.retiring


def grow(load: PoolLoad) -> list[Action]:
    spec = load.pool.spec
    if load.pool.backoff_until is not None and load.pool.backoff_until > load.now:
        return []
    target = min(free_target(load), spec.max)
    starting = max(STARTING_FLOOR, math.ceil(spec.max * STARTING_SHARE))
    missing = min(target - load.spawning - load.warm, spec.max - present(load), starting - load.spawning)
    sizes = [min(SLICE, missing - made) for made in range(0, missing, SLICE)]
    return [Spawn(load.pool.id, target, starting, size) for size in sizes]


def shrink(load: PoolLoad, going: int = 0) -> list[Action]:
    """Condemns free workers when there are more than wanted: first those that are still starting, then the oldest. It takes a
    quarter per step, with a cooldown, and at most half of what the brake still allows, because the brake must only trip for
    unintended endings."""
    surplus = load.spawning + load.warm - going - free_target(load)  # workers that a rollout takes are not surplus
    over = present(load) - load.retiring - going - load.pool.spec.max  # positive after max was lowered; no cooldown then
    step = max(over, 0)
    # Claims that wait for failing activations want their workers again later.
    if surplus > 0 and not load.pool.activations_fail and (load.shrunk_ago is None or load.shrunk_ago >= COOLDOWN):
        step = max(step, math.ceil(surplus / 4))
    step = min(step, max(surplus, over), load.brake_room // 2)
    pool_id, wanted = load.pool.id, free_target(load)
    floor = wanted if over <= 0 else None  # claims may take free workers between this read and the condemn
    return [
        Condemn(worker, version, f"the pool wants {wanted} free workers", pool_id=pool_id, floor=floor)
        for worker, version in (load.starting + load.current_warm)[: max(0, step)]
    ]


def rollout(load: PoolLoad) -> list[Action]:
    """Replaces free workers of an old revision, a few at a time. Busy ones finish first and then retire. Old ones that are still
    starting go at once, because they serve no claim yet, and a bad template must not delay its correction."""
    spec, reason = load.pool.spec, f"rollout to revision {load.pool.revision}"
    # How many could be free at all: a pool that is full of busy workers lacks no free ones.
    possible = max(0, min(spec.warm, spec.max - load.held - load.parked - load.unusable))
    unavailable = max(0, possible - load.free_ready)
    step = max(0, spec.unavailable(spec.warm) - unavailable)
    return [
        Condemn(worker, version, reason, counted=False) for worker, version in load.outdated_starting + load.outdated_warm[:step]
    ]


def parked_ends(load: PoolLoad) -> list[Action]:
    """Condemns parked workers past their TTL, as long as at least park.min stay parked, and the oldest ones above park.max."""
    spec = load.pool.spec.park
    spare = load.parked - spec.min
    ends = [
        Condemn(worker, version, "parked past its TTL", counted=False) for worker, version in load.parked_expired[: max(0, spare)]
    ]
    if spec.max is not None and load.parked - len(ends) > spec.max:
        gone = {end.worker for end in ends}
        left = [(w, v) for w, v in load.parked_free if w not in gone]
        above = load.parked - len(ends) - spec.max
        ends += [Condemn(worker, version, "more parked workers than park.max", counted=False) for worker, version in left[:above]]
    return list(ends)
