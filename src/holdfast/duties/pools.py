"""Keep pools and declared objects in step: create and change pools, write the status of objects, and close drained pools."""

from dataclasses import dataclass

import msgspec

from ..model.pool import PoolSpec
from ..ports.declared import Condition, Declared, DeclaredStatus
from ..ports.store import PoolLoad
from .actions import Action
from .duty import Ports
from .pool_actions import DrainPool, Ensure, FinishPool, Guard, PutPool, Release, UpdateStatus
from .scale import free_target


@dataclass(frozen=True)
class ObservedPools:
    """Objects are read before rows. Otherwise a pool that is created in between would look like a pool without an object."""

    declared: list[Declared] | None  # None when pools cannot be declared as objects here
    loads: list[PoolLoad]


class Pools:
    name = "pools"
    period = 5.0

    async def observe(self, ports: Ports) -> ObservedPools:
        objects = ports.cluster.declarations
        declared = await objects.list() if objects is not None else None
        return ObservedPools(declared, await ports.store.pools.loads())

    def plan(self, observed: ObservedPools) -> list[Action]:
        finished: list[Action] = [FinishPool(load.pool.id) for load in observed.loads if drained(load)]
        ensured = Ensure(tuple(load.pool for load in observed.loads))
        if observed.declared is None:
            return [ensured, *finished]
        actions = [action for each in observed.declared for action in of_object(each, observed.loads)]
        return [*actions, *vanished(observed.declared, observed.loads), ensured, *finished]


def drained(load: PoolLoad) -> bool:
    left = load.spawning + load.warm + load.unusable + load.held + load.parked + load.retiring + load.waiting
    return load.pool.state == "draining" and left == 0


def of_object(declared: Declared, loads: list[PoolLoad]) -> list[Action]:
    """Returns the actions for one object."""
    mine = next((load for load in loads if load.pool.id == declared.pool_id), None)
    live = next((load for load in loads if load.pool.name == declared.name and load.pool.state == "live"), None)
    if declared.deleting:
        if mine is not None and mine.pool.state == "live":
            return [DrainPool(mine.pool.name, mine.pool.id)]
        return [Release(declared)] if declared.guarded else []  # the drain is stored, and the name is free
    guard: list[Action] = [] if declared.guarded else [Guard(declared)]
    if live is None:
        return [*guard, PutPool(declared)] if mine is None else guard
    if live.pool.id != declared.pool_id:
        if live.pool.source == "cr":  # the pool belongs to an object that is gone and had the same name
            return [*guard, DrainPool(live.pool.name, live.pool.id)]
        taken = Condition("Ready", False, "NameTaken", f"the API has a pool {declared.name!r}: delete it, or rename this one")
        return [*guard, UpdateStatus(declared, DeclaredStatus(generation=declared.generation, conditions=(taken,)))]
    if wanted(declared) != live.pool.spec:
        return [*guard, PutPool(declared)]
    return [*guard, UpdateStatus(declared, status(declared, live))]


def wanted(declared: Declared) -> PoolSpec | None:
    """Returns the object's specification, or None when it is invalid. `PutPool` then writes the reason to the object's status."""
    try:
        return msgspec.convert(declared.spec, PoolSpec)
    except msgspec.ValidationError:
        return None


def vanished(declared: list[Declared], loads: list[PoolLoad]) -> list[Action]:
    """Drains pools whose objects were removed without waiting for the release, once a direct read confirms it."""
    there = {each.pool_id for each in declared}
    names = {each.name for each in declared if not each.deleting}  # these pools are drained by the object that now has their name
    return [
        DrainPool(load.pool.name, load.pool.id, gone=load.pool.id.removeprefix("p-"))
        for load in loads
        if load.pool.source == "cr" and load.pool.state == "live" and load.pool.id not in there and load.pool.name not in names
    ]


def status(declared: Declared, load: PoolLoad) -> DeclaredStatus:
    return DeclaredStatus(
        generation=declared.generation,
        revision=load.pool.revision,
        desired=free_target(load),
        free=load.free_ready,
        spawning=load.spawning,
        warm=load.warm,
        held=load.held,
        parked=load.parked,
        retiring=load.retiring,
        waiting=load.waiting,
        oldest_waiting=int(load.oldest_wait),
        conditions=conditions(load),
    )


def not_taken(declared: Declared, load: PoolLoad | None, reason: str, message: str) -> DeclaredStatus:
    """Returns the status of an object whose specification is refused or could not be checked. If the object has a pool, that pool
    continues unchanged, so its counts stay true for readers such as an autoscaler. The generation is that of the refused
    specification."""
    if load is None:
        ready, degraded = Condition("Ready", False, reason, message), Condition("Degraded", True, reason, message)
        return DeclaredStatus(generation=declared.generation, conditions=(ready, degraded))
    degraded = Condition("Degraded", True, reason, f"the pool goes on as it was: {message}")
    updated = tuple(degraded if each.type == "Degraded" else each for each in conditions(load))
    return msgspec.structs.replace(status(declared, load), conditions=updated)


def conditions(load: PoolLoad) -> tuple[Condition, ...]:
    """Returns the conditions of a pool. Ready: it has as many free workers as its size allows now. Degraded: something is wrong
    that does not pass with time."""
    pool, spec = load.pool, load.pool.spec
    possible = max(0, min(spec.warm, spec.max - load.held - load.parked))
    if load.free_ready >= possible:
        reason = "WarmTargetMet" if possible == spec.warm else "Saturated"
        message = f"{load.free_ready} free workers of {spec.warm} wanted; {load.held} held, {spec.max} at most"
        ready = Condition("Ready", True, reason, message)
    else:
        message = f"{load.free_ready} free workers of {spec.warm} wanted; {load.spawning} starting"
        ready = Condition("Ready", False, "SpawnsFail" if pool.trouble else "Starting", message)
    fails = pool.trouble is not None or pool.activations_fail
    why = "SpawnsFail" if pool.trouble else "ActivationsFail" if fails else "AsExpected"
    # Without the hook's lines, because everybody who may read the object would see data of tenants.
    degraded = Condition("Degraded", fails, why, pool.troubles_without_output or "" if fails else "")
    frozen = Condition("Frozen", pool.frozen is not None, "Frozen" if pool.frozen else "NotFrozen", pool.frozen or "")
    return ready, degraded, frozen
