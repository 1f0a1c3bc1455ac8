"""The figures of each setting, the target, and the cheapest setting that meets it. Also parses the options of a plan."""

import math
import re
from collections.abc import Sequence

import msgspec

from ..model.duration import seconds, text

MEASURES = ("p50", "p95", "p99", "longest")


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one setting. Waits are in seconds, from the request until the holder learns that its claim is active."""

    warm: int
    claims: int
    refused: int
    p50: float
    p95: float
    p99: float
    longest: float
    utilisation: float  # busy worker-seconds divided by all worker-seconds
    worker_hours: float
    most_workers: int
    leapt: float  # seconds of the trace that were skipped because nothing happened
    statements: int

    def wait(self, measure: str) -> float:
        assert measure in MEASURES
        seconds: float = getattr(self, measure)
        return seconds


class Target(msgspec.Struct, frozen=True):
    """Limits in seconds, by measure. A setting meets the target if it keeps all limits and no claim is refused."""

    limits: dict[str, float]

    def met(self, figures: Figures) -> bool:
        return not figures.refused and all(figures.wait(name) <= limit for name, limit in self.limits.items())

    def missed_by(self, figures: Figures) -> float:
        """Returns the worst ratio of a measure to its limit."""
        return max(figures.wait(name) / max(limit, 0.001) for name, limit in self.limits.items())

    def __str__(self) -> str:
        return " and ".join(f"{name} wait ≤ {text(limit)}" for name, limit in self.limits.items())


def percentile(ordered: Sequence[float], share: int) -> float:
    """Returns the percentile by nearest rank, so that it is a wait that really happened."""
    return round(ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)], 3)


def recommend(found: Sequence[Figures], target: Target) -> Figures | None:
    """Returns the setting with the fewest worker-hours that meets the target; of equal settings the smaller."""
    good = [figures for figures in found if target.met(figures)]
    return min(good, key=lambda figures: (figures.worker_hours, figures.warm), default=None)


def parse_target(argument: str) -> Target:
    """Parses `p95=2s`, or several limits: `p50=100ms,p99=5s`. Raises ValueError with the reason."""
    limits: dict[str, float] = {}
    for part in argument.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in MEASURES:
            raise ValueError(f"{part.strip()!r} is not a target such as p95=1s; measures: {', '.join(MEASURES)}")
        if name in limits:
            raise ValueError(f"{name} appears twice")
        limits[name] = seconds(value)
    return Target(limits)


RANGE = re.compile(r"([0-9]{1,5})(?:\.\.([0-9]{1,5})(?:/([0-9]{1,5}))?)?")
MOST = 200  # settings; more are probably a mistake


def parse_warm(argument: str) -> list[int]:
    """Parses `2..40`, `2..40/2`, `2,4,8`, or a mix. Raises ValueError with the reason."""
    found: set[int] = set()
    for part in argument.split(","):
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


def parse_start(argument: str) -> tuple[float, float]:
    """Parses a start time: `5s`, or a uniform range: `4s..9s`. Raises ValueError with the reason."""
    first, dots, last = argument.partition("..")
    low = seconds(first.strip())
    high = seconds(last.strip()) if dots else low
    if high < low:
        raise ValueError(f"{argument!r} ends before it begins")
    return low, high
