"""Faults of Postgres, and of the network between agents, holders and replicas."""

from typing import TYPE_CHECKING

from ..faults import Fault
from ..loop import later
from ..moments import Target
from .cause import Cause

if TYPE_CHECKING:
    from ..chaos import Chaos


BEATEN = 2.5  # seconds in which every replica has received the answer of a beat, and so has seen a higher mark


def outage(chaos: "Chaos", fault: Fault, target: Target) -> None:
    gate = chaos.run.gate
    gate.go_down()

    def mend() -> None:
        gate.down = False

    chaos.until(fault, mend)


def clock_jump(chaos: "Chaos", fault: Fault, target: Target) -> None:
    chaos.run.database_clock += (fault.amount - 0.4) * 1200


def failover(chaos: "Chaos", fault: Fault, target: Target) -> None:
    """Fail over, at the end of the fault, to a standby that has received nothing since its begin."""
    run, gate = chaos.run, chaos.run.gate
    aside, mark, history, began = gate.postgres.copy(), _mark(chaos), chaos.failovers, run.loop.time()

    def lose() -> None:
        if chaos.healing or gate.down:
            return
        # A real failover changes the server's timeline, a copy does not. So a loss that contains no beat cannot be detected.
        soon = bool(fault.until) and run.loop.time() - began < BEATEN
        if soon or _mark(chaos) == mark:
            if fault.until:
                chaos.at_end(fault, lose)  # the next such moment comes after a beat
            return
        if chaos.failovers != history:
            return  # another failover came first, and this copy is a standby of the old server
        chaos.failovers += 1
        gate.go_down()
        gate.postgres.put_back(aside)
        run.checks.rewound()
        run.trace.line("failover", "", f"the last {run.loop.time() - began:.1f} s are lost")
        later(1 + 5 * fault.amount, run.lift_outage)

    chaos.at_end(fault, lose)


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
