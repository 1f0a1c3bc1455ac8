"""Apply each fault, and undo it when its time is over or everything heals."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from .causes import CAUSES
from .faults import Fault
from .loop import later
from .moments import ANY, Target
from .pods import Weather

if TYPE_CHECKING:
    from .run import Run


class Chaos:
    """The faults of one run. For each active fault it stores how to undo it."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._mend: dict[int, Callable[[], None]] = {}
        self._count = 0
        self.healing = False
        self.failovers = 0
        self.cleared = 0  # how often the cluster's API became available again

    def schedule(self, faults: list[Fault], begin: float) -> None:
        now = asyncio.get_running_loop().time()
        for fault in faults:
            later(max(0.0, begin + fault.at - now), lambda fault=fault: self._due(fault))  # type: ignore[misc]

    def heal(self) -> None:
        """Undo all active faults, and start dead replicas again."""
        self.healing = True
        for number in list(self._mend):
            self._mend.pop(number)()
        for process in self.run.processes:
            process.line.after_effect = None
            if process.dead:
                process.boot()
        self.run.world.weather = Weather()

    def until(self, fault: Fault, mend: Callable[[], None]) -> None:
        """Undo the fault when it is over, or earlier if everything heals."""
        number = self.number()
        self._mend[number] = mend

        def over() -> None:
            if number in self._mend:
                self._mend.pop(number)()

        self.at_end(fault, over)

    def at_end(self, fault: Fault, do: Callable[[], None]) -> None:
        """Call this at the fault's last moment, or after its span if it has none."""
        if fault.until:
            self.run.moments.wait(fault.until, f"the end of {fault.kind}", lambda _: do())
        else:
            later(fault.span, do)

    def number(self) -> int:
        """Returns a number that was not returned before in this run."""
        self._count += 1
        return self._count

    def _due(self, fault: Fault) -> None:
        if fault.moment:
            self.run.moments.wait(fault.moment, fault.kind, lambda target: self._happen(fault, target))
        else:
            self._happen(fault, ANY)

    def _happen(self, fault: Fault, target: Target) -> None:
        if self.healing:
            return
        self.run.trace.line("fault", target.replica or "", " ".join([str(fault)[10:], *filter(None, target[1:])]))
        CAUSES[fault.kind](self, fault, target)
        self.run.moments.happened(fault.kind, target)
