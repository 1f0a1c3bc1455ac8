"""What operators do in a run. Each of these is allowed at any time, so the promises must hold."""

from typing import TYPE_CHECKING

from ..faults import Fault
from .cause import Cause

if TYPE_CHECKING:
    from ..chaos import Chaos


def rollout(chaos: "Chaos", fault: Fault) -> None:
    chaos.run.spawn(chaos.run.operator.roll_out(fault.pick))


def freeze(chaos: "Chaos", fault: Fault) -> None:
    operator = chaos.run.operator
    chaos.run.spawn(operator.freeze(fault.pick, True))
    chaos.until(fault, lambda: chaos.run.spawn(operator.freeze(fault.pick, False)))


def force_release(chaos: "Chaos", fault: Fault) -> None:
    chaos.run.spawn(chaos.run.operator.force_release(fault.pick))


def delete_pool(chaos: "Chaos", fault: Fault) -> None:
    chaos.run.spawn(chaos.run.operator.delete_pool(fault.pick))


def retire(chaos: "Chaos", fault: Fault) -> None:
    chaos.run.spawn(chaos.run.operator.retire(fault.pick))


PEOPLE: dict[str, Cause] = {
    "operator.rollout": rollout,
    "operator.freeze": freeze,
    "operator.force-release": force_release,
    "operator.delete-pool": delete_pool,
    "operator.retire": retire,
}
