"""Moments of a run at which a fault can begin: changes that the history records, and changes of pods."""

from collections.abc import Callable
from typing import NamedTuple

from ..model.claim import CLAIM
from ..model.worker import WORKER
from .loop import later

# What the world calls a change of a pod, and the name of its moment.
OF_PODS = {
    "create": "pod.created",
    "start": "pod.started",
    "protect": "pod.protected",
    "clear": "pod.cleared",
    "delete": "pod.deleted",  # by a replica
    "evict": "pod.evicted",  # by others
    "exit": "pod.exited",
    "kill": "pod.killed",
    "vanish": "pod.vanished",
    "forget": "pod.forgotten",
}
# Events that no state machine contains.
OTHERS = ("recovery.began", "recovery.ended", "term.taken", "worker.suspect", "pool.changed", "pool.draining", "pool.troubled")
EVENTS = {transition.event for machine in (CLAIM, WORKER) for transition in machine.transitions}
MOMENTS = tuple(sorted({*EVENTS, *OTHERS, *OF_PODS.values()}))


class Target(NamedTuple):
    """What a moment is about. A fault at this moment hits it; without a value the fault's `pick` chooses."""

    replica: str | None = None  # whose statement made the change
    worker: str | None = None  # its pod has the same name
    claim: str | None = None


ANY = Target()


class Moments:
    """The faults of one run that wait for a moment."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[str, Callable[[Target], None]]]] = {}

    def wait(self, moment: str, kind: str, begin: Callable[[Target], None]) -> None:
        self._waiting.setdefault(moment, []).append((kind, begin))

    def happened(self, moment: str, target: Target) -> None:
        """Begin at most one fault of each kind. Several faults of one kind at the same moment would have the effect of one."""
        waiting = self._waiting.get(moment)
        if not waiting:
            return
        for kind in dict.fromkeys(kind for kind, _ in waiting):
            chosen = next(one for one in waiting if one[0] == kind)
            waiting.remove(chosen)
            # Not in this callback, because a pod's observers are called before the change. The time is still the same.
            later(0.0, lambda begin=chosen[1]: begin(target))  # type: ignore[misc]
