"""What is known of each setting after its run, the target, and the cheapest setting that meets it."""

import math
import re
from collections.abc import Sequence

import msgspec

from ..model.duration import seconds, text

MEASURES = ("p50", "p95", "p99", "longest")


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Waits in seconds, from asking until the holder hears that its worker is its own."""

    warm: int
    claims: int
    refused: int
    p50: float
    p95: float
    p99: float
    longest: float
    utilisation: float  # busy worker-seconds of all worker-seconds
    worker_hours: float
    most_workers: int
    leapt: float  # seconds of the trace in which nothing happened, left out
    statements: int

    def wait(self, measure: str) -> float:
        assert measure in MEASURES
        seconds: float = getattr(self, measure)
        return seconds


class Target(msgspec.Struct, frozen=True):
    """Limits in seconds, by measure. All of them hold, and no claim is refused."""

    limits: dict[str, float]

    def met(self, figures: Figures) -> bool:
        return not figures.refused and all(figures.wait(name) <= limit for name, limit in self.limits.items())

    def missed_by(self, figures: Figures) -> float:
        """How many times over its limit the worst measure is."""
        return max(figures.wait(name) / max(limit, 0.001) for name, limit in self.limits.items())

    def __str__(self) -> str:
        return " and ".join(f"{name} wait ≤ {text(limit)}" for name, limit in self.limits.items())


def percentile(ordered: Sequence[float], share: int) -> float:
    """The nearest rank: a wait that really happened."""
    return round(ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)], 3)


def recommend(found: Sequence[Figures], target: Target) -> Figures | None:
    """The fewest worker-hours that meet the target; of equal ones the smaller setting."""
    good = [figures for figures in found if target.met(figures)]
    return min(good, key=lambda figures: (figures.worker_hours, figures.warm), default=None)


def parse_target(said: str) -> Target:
    """`p95=2s`, or several: `p50=100ms,p99=5s`. ValueError says what is wrong with it."""
    limits: dict[str, float] = {}
    for part in said.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in MEASURES:
            raise ValueError(f"{part.strip()!r} is not a target such as p95=1s; measures: {', '.join(MEASURES)}")
        if name in limits:
            raise ValueError(f"{name} appears twice")
        limits[name] = seconds(value)
    return Target(limits)


RANGE = re.compile(r"([0-9]{1,5})(?:\.\.([0-9]{1,5})(?:/([0-9]{1,5}))?)?")
MOST = 200  # settings; more is a mistake


def parse_warm(said: str) -> list[int]:
    """`2..40`, `2..40/2`, `2,4,8`, or a mix. ValueError says what is wrong with it."""
    found: set[int] = set()
    for part in said.split(","):
        match = RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is neither a number (8), nor a range (2..40), nor a range with steps (2..40/2)")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first:
            raise ValueError(f"{part.strip()!r} ends before it begins")
        if step < 1:
            raise ValueError(f"{part.strip()!r}: a step is at least 1")
        found |= set(range(first, last + 1, step))
        if len(found) > MOST:
            raise ValueError(f"more than {MOST} settings; take steps, such as 2..40/2")
    return sorted(found)


def parse_start(said: str) -> tuple[float, float]:
    """`5s`, or from … to: `4s..9s`, any time between as likely as any other."""
    first, dots, last = said.partition("..")
    low = seconds(first.strip())
    high = seconds(last.strip()) if dots else low
    if high < low:
        raise ValueError(f"{said!r} ends before it begins")
    return low, high
