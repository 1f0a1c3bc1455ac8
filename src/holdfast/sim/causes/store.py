"""Faults of Postgres, and of the network between agents, holders and replicas."""

from typing import TYPE_CHECKING

from ..faults import Fault
from ..loop import later
from ..moments import Target
from .cause import Cause

if TYPE_CHECKING:
    from ..chaos import Chaos


def outage(chaos: "Chaos", fault: Fault, target: Target) -> None:
    gate = chaos.run.gate
    gate.go_down()

    def mend() -> None:
        gate.down = False

    chaos.until(fault, mend)


def clock_jump(chaos: "Chaos", fault: Fault, target: Target) -> None:
    chaos.run.database_clock += (fault.amount - 0.4) * 1200


def failover(chaos: "Chaos", fault: Fault, target: Target) -> None:
    """Fail over to a standby that is `span` seconds behind."""
    gate = chaos.run.gate
    aside, mark, history = gate.postgres.copy(), _mark(chaos), chaos.failovers

    def lose() -> None:
        # A real failover changes the server's timeline, a copy does not. So a loss that contains no beat cannot be detected.
        if chaos.healing or gate.down or _mark(chaos) == mark:
            return
        if chaos.failovers != history:
            return  # another failover came first, and this copy is a standby of the old server
        chaos.failovers += 1
        gate.go_down()
        gate.postgres.put_back(aside)
        chaos.run.checks.rewound()
        chaos.run.trace.line("failover", "", f"the last {fault.span:.1f} s are lost")
        later(1 + 5 * fault.amount, chaos.run.lift_outage)

    later(fault.span, lose)


def _mark(chaos: "Chaos") -> int:
    gate = chaos.run.gate
    return int(gate.postgres.ask(gate.clock(), "SELECT mark FROM holdfast.hearing")[0][0])


def network_lossy(chaos: "Chaos", fault: Fault, target: Target) -> None:
    chaos.run.network.lossy = 0.05 + 0.5 * fault.amount

    def mend() -> None:
        chaos.run.network.lossy = 0.0

    chaos.until(fault, mend)


STORE: dict[str, Cause] = {
    "store.restart": outage,
    "store.outage": outage,
    "store.clock-jump": clock_jump,
    "store.failover": failover,
    "network.lossy": network_lossy,
}
