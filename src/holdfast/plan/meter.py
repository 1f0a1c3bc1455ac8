"""Measure a fleet: worker-seconds from a pod's creation to its end, busy seconds, and waits."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..sim.pods import WorldPod


@dataclass
class Meter:
    """Measures by the trace's clock. Time before its start, or after `until`, does not count."""

    now: Callable[[], float] = lambda: 0.0
    waits: list[float] = field(default_factory=list)
    refused: int = 0  # claims that got no worker before their deadline
    end: float = 0.0  # when the last claim ended
    _born: dict[str, float] = field(default_factory=dict)
    _died: dict[str, float] = field(default_factory=dict)
    _busy: list[tuple[float, float]] = field(default_factory=list)

    def saw(self, pod: WorldPod) -> None:
        """Records a pod's creation and end. Called after each change that the cluster's API shows."""
        self._born.setdefault(pod.uid, self.now())
        if pod.phase == "ended":
            self._died.setdefault(pod.uid, self.now())

    def held(self, since: float) -> None:
        """Records the end of a claim that was active since `since`."""
        self.end = max(self.end, self.now())
        self._busy.append((since, self.now()))

    def worker_seconds(self, until: float) -> float:
        lives = ((born, self._died.get(uid, until)) for uid, born in self._born.items())
        return sum(max(0.0, min(died, until) - max(born, 0.0)) for born, died in lives)

    def busy_seconds(self, until: float) -> float:
        return sum(max(0.0, min(end, until) - since) for since, end in self._busy)

    def most_workers(self) -> int:
        """Returns the largest number of workers that existed at the same time."""
        steps = sorted([(at, 1) for at in self._born.values()] + [(at, -1) for at in self._died.values()])
        there, most = 0, 0
        for _, step in steps:
            there += step
            most = max(most, there)
        return most
