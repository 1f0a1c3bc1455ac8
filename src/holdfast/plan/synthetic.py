"""Synthetic traces: a steady stream, a stream with bursts, or a weekday. The same arguments give the same trace every time."""

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
# The rate in each hour of a weekday, relative to its mean: quiet nights, a steep morning, a dip at noon, a busy afternoon.
DAY = (
    0.1, 0.08, 0.06, 0.06, 0.08, 0.15, 0.4, 0.9, 1.7, 2.3, 2.4, 2.1,
    1.5, 2.0, 2.4, 2.3, 2.0, 1.4, 0.8, 0.5, 0.35, 0.25, 0.15, 0.12,
)  # fmt: skip
BURST_EVERY, BURST_LENGTH, BURST_SHARE = 900.0, 20.0, 0.5  # seconds, seconds; half of all claims come in bursts


def parse_rate(argument: str) -> float:
    """Returns claims per second from `200/h`, `5/m` or `0.2/s`. Raises ValueError with the reason."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)/([smhd])", argument.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{argument!r} is not a rate such as 200/h, 5/m or 0.2/s")
    return float(match[1]) / UNITS[match[2]]


def synthesize(shape: Shape, rate: float, hold: float, length: float | None = None, tenants: int = 1) -> Trace:
    """Returns a trace with a mean of `rate` claims per second. Hold times are exponential with the mean `hold`."""
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
    while True:  # thinning: draw arrivals at the highest rate, and keep the share that the shape has at that time
        at += source.expovariate(rate * highest)
        if at >= length:
            break
        keep, seconds, tenant = source.random(), source.expovariate(1 / hold), source.randrange(tenants)
        if keep < share(at) / highest:
            name = f"tenant-{tenant + 1}" if tenants > 1 else "default"
            arrivals.append(Arrival(round(at, 3), round(seconds, 3), name))
    if not arrivals:
        raise ValueError(f"the trace would be empty: {rate * length:.2g} claims are expected in {math.ceil(length)} s")
    first = arrivals[0].at
    return Trace(tuple(Arrival(round(a.at - first, 3), a.seconds, a.tenant) for a in arrivals))


def _burst(at: float) -> float:
    inside = at % BURST_EVERY < BURST_LENGTH
    return (1 - BURST_SHARE) + (BURST_SHARE * BURST_EVERY / BURST_LENGTH if inside else 0.0)
