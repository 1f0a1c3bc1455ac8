"""What operators do in a run. Each of these is allowed at any time, so the promises must hold."""

from typing import TYPE_CHECKING

from ..faults import Fault
from ..moments import Target
from .cause import Cause

if TYPE_CHECKING:
    from ..chaos import Chaos


def _pool(chaos: "Chaos", fault: Fault, target: Target) -> str:
    pod = chaos.run.world.pods.get(target.worker or "")
    names = list(chaos.run.operator.specs)
    return pod.pool if pod is not None else names[int(fault.pick * len(names))]


def rollout(chaos: "Chaos", fault: Fault, target: Target) -> None:
    chaos.run.spawn(chaos.run.operator.roll_out(_pool(chaos, fault, target)))


def resize(chaos: "Chaos", fault: Fault, target: Target) -> None:
    operator, pool = chaos.run.operator, _pool(chaos, fault, target)
    chaos.run.spawn(operator.resize(pool, 1 + int(2 * fault.amount)))
    chaos.until(fault, lambda: chaos.run.spawn(operator.resize(pool, 0)))


def freeze(chaos: "Chaos", fault: Fault, target: Target) -> None:
    operator, pool = chaos.run.operator, _pool(chaos, fault, target)
    chaos.run.spawn(operator.freeze(pool, True))
    chaos.until(fault, lambda: chaos.run.spawn(operator.freeze(pool, False)))


def force_release(chaos: "Chaos", fault: Fault, target: Target) -> None:
    chaos.run.spawn(chaos.run.operator.force_release(fault.pick, target.claim))


def delete_pool(chaos: "Chaos", fault: Fault, target: Target) -> None:
    chaos.run.spawn(chaos.run.operator.delete_pool(_pool(chaos, fault, target)))


def retire(chaos: "Chaos", fault: Fault, target: Target) -> None:
    chaos.run.spawn(chaos.run.operator.retire(fault.pick, target.worker))


PEOPLE: dict[str, Cause] = {
    "operator.rollout": rollout,
    "operator.resize": resize,
    "operator.freeze": freeze,
    "operator.force-release": force_release,
    "operator.delete-pool": delete_pool,
    "operator.retire": retire,
}
