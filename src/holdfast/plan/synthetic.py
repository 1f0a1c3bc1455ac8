"""Synthetic traces: a steady stream, bursts on top of it, or a day with its morning, noon and night. The same every time."""

import math
import random
import re
from collections.abc import Callable
from typing import Literal

from .trace import Arrival, Trace

Shape = Literal["day", "steady", "bursts"]
SEED = 1
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
LENGTHS: dict[Shape, float] = {"day": 86_400.0, "steady": 7200.0, "bursts": 7200.0}
# What share of its mean a weekday asks for in each hour: quiet nights, a steep morning, a dip at noon, an afternoon.
DAY = (
    0.1, 0.08, 0.06, 0.06, 0.08, 0.15, 0.4, 0.9, 1.7, 2.3, 2.4, 2.1,
    1.5, 2.0, 2.4, 2.3, 2.0, 1.4, 0.8, 0.5, 0.35, 0.25, 0.15, 0.12,
)  # fmt: skip
BURST_EVERY, BURST_LENGTH, BURST_SHARE = 900.0, 20.0, 0.5  # seconds, seconds; half of all claims come in bursts


def parse_rate(said: str) -> float:
    """Claims a second, from `200/h`, `5/m`, `0.2/s`. ValueError says what is wrong with it."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)/([smhd])", said.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{said!r} is not a rate such as 200/h, 5/m or 0.2/s")
    return float(match[1]) / UNITS[match[2]]


def synthesize(shape: Shape, rate: float, hold: float, length: float | None = None, tenants: int = 1) -> Trace:
    """`rate` is the mean over the whole of it, in claims a second; holds are exponential around `hold`, as jobs often are."""
    length = length or LENGTHS[shape]
    source = random.Random(f"{SEED}/{shape}/{rate}/{hold}/{length}/{tenants}")  # noqa: S311 - the same every time
    shares: dict[Shape, Callable[[float], float]] = {
        "steady": lambda at: 1.0,
        "day": lambda at: DAY[int(at / length * 24) % 24] * 24 / sum(DAY),
        "bursts": _burst,
    }
    share = shares[shape]
    highest = max(share(at) for at in (length * step / 960 for step in range(960)))
    if shape == "bursts":
        highest = _burst(0.0)
    arrivals, at = [], 0.0
    while True:  # thinning: ask at the highest rate, keep what the shape has room for
        at += source.expovariate(rate * highest)
        if at >= length:
            break
        keep, seconds, tenant = source.random(), source.expovariate(1 / hold), source.randrange(tenants)
        if keep < share(at) / highest:
            name = f"tenant-{tenant + 1}" if tenants > 1 else "default"
            arrivals.append(Arrival(round(at, 3), round(seconds, 3), name))
    if not arrivals:
        raise ValueError(f"nobody comes: at this rate {rate * length:.2g} claims are expected in {math.ceil(length)} s")
    first = arrivals[0].at
    return Trace(tuple(Arrival(round(a.at - first, 3), a.seconds, a.tenant) for a in arrivals))


def _burst(at: float) -> float:
    inside = at % BURST_EVERY < BURST_LENGTH
    return (1 - BURST_SHARE) + (BURST_SHARE * BURST_EVERY / BURST_LENGTH if inside else 0.0)
