"""Keep each pool at its size: spawn what is missing, let go of what is free and not wanted, roll old revisions over."""

import math
from itertools import zip_longest

from ..ports.store import PoolLoad
from .actions import Action, Condemn, Spawn
from .duty import Ports

COOLDOWN = 30.0  # between two steps down, so that a short lull does not cost the next burst its warm workers
STARTING_FLOOR = 4  # so many may start at once in a small pool …
STARTING_SHARE = 0.25  # … and this share of max in a large one: a bad template must not fill the cluster with failing pods
SLICE = 8  # pods of one action: a pass shows its progress between two, and each call may take a second
SLICES = 4  # of one pass: what has to go must not wait for hundreds of pods to come, nor one pool for another's


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
    """What one pool needs. A frozen pool needs nothing; a draining one lets go of everything that is free."""
    pool = load.pool
    if pool.frozen is not None:
        return []
    if pool.state == "draining" or load.stopping:
        reason = "its pool was deleted" if pool.state == "draining" else "the installation is being stopped"
        free = load.stale_starting + load.stale_warm + load.starting + load.fresh_warm + load.parked_free
        return [Condemn(worker, version, reason, counted=False) for worker, version in free]
    rolled = rollout(load)
    return [*parked_ends(load), *rolled, *shrink(load, len(rolled)), *grow(load)]


def free_target(load: PoolLoad) -> int:
    """How many workers should be warm or coming: the warm target, on top of busy ones and of those that waiting claims are
    about to take; one more stands for all demand that is blocked by caps, so that a fully capped pool never freezes."""
    blocked = 1 if load.waiting > load.servable else 0
    return load.pool.spec.warm + load.servable + blocked


def present(load: PoolLoad) -> int:
    """What takes a slot of max: everything that still runs, retiring workers too."""
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
    """Let free workers go when there are more than wanted: those that still start first, then the oldest; a quarter at a time,
    with a cooldown, and never so many that the brake, which is for what nobody wanted, would take it for a fault."""
    surplus = load.spawning + load.warm - going - free_target(load)  # what a rollout takes is no surplus any more
    over = present(load) - load.retiring - going - load.pool.spec.max  # max was lowered: no cooldown for that
    step = max(over, 0)
    if surplus > 0 and (load.shrunk_ago is None or load.shrunk_ago >= COOLDOWN):
        step = max(step, math.ceil(surplus / 4))
    step = min(step, max(surplus, over), load.brake_room // 2)
    pool_id, wanted = load.pool.id, free_target(load)
    floor = wanted if over <= 0 else None  # claims may be served between this look and the deed
    return [
        Condemn(worker, version, f"the pool wants {wanted} free workers", pool_id=pool_id, floor=floor)
        for worker, version in (load.starting + load.fresh_warm)[: max(0, step)]
    ]


def rollout(load: PoolLoad) -> list[Action]:
    """Replace free workers of an old revision, a few at a time; busy ones finish first and then retire by themselves. Old ones
    that still start go at once: nobody can use them, and a bad template must not hold its correction up."""
    spec, reason = load.pool.spec, f"rollout to revision {load.pool.revision}"
    # What could be ready at all: a pool full of busy workers is not short of free ones.
    possible = max(0, min(spec.warm, spec.max - load.held - load.parked - load.unusable))
    unavailable = max(0, possible - load.free_ready)
    step = max(0, spec.unavailable(spec.warm) - unavailable)
    return [Condemn(worker, version, reason, counted=False) for worker, version in load.stale_starting + load.stale_warm[:step]]


def parked_ends(load: PoolLoad) -> list[Action]:
    """Past its TTL a parked worker goes, unless the pool keeps a floor of them; above the cap the oldest go."""
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
