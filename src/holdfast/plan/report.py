"""The result of a plan: a table of settings, a plot of waits and costs, and a sentence that recommends a setting."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ..model.duration import text
from .figures import Figures, Target, recommend
from .trace import Trace

BLOCKS = " ▏▎▍▌▋▊▉█"  # eighths
WAIT_WIDTH, HOURS_WIDTH = 32, 24
APPROXIMATED = [
    "one replica, no faults: every worker starts, within its start time, and there is room for it",
    "agents and holders answer within milliseconds; activation takes no time",
    "stretches in which the fleet is at rest are left out of the simulation, and counted in its figures",
]
HEADER = ("WARM", "P50", "P95", "P99", "LONGEST", "REFUSED", "UTILISATION", "WORKER-HOURS", "MOST WORKERS")


def table(found: Sequence[Figures], target: Target) -> list[str]:
    """Returns one line per setting; `*` marks settings that meet the target."""
    rows = [("", *HEADER)] + [("*" if target.met(figures) else "", *_cells(figures)) for figures in found]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(figures: Figures) -> tuple[str, ...]:
    waits = (text(wait) for wait in (figures.p50, figures.p95, figures.p99, figures.longest))
    share = f"{figures.utilisation:.0%}"
    return (str(figures.warm), *waits, str(figures.refused), share, f"{figures.worker_hours:.1f}", str(figures.most_workers))


def plot(found: Sequence[Figures], target: Target) -> list[str]:
    """Returns two bars per setting: its wait, with a line at the target's limit, and its worker-hours."""
    measure, limit = next(iter(target.limits.items()))
    longest = max([limit, *(figures.wait(measure) for figures in found)]) or 1.0
    hours = max(figures.worker_hours for figures in found) or 1.0
    at = round(limit / longest * WAIT_WIDTH)
    title = f"{measure} wait, target {text(limit)} ┊"
    lines = [f"warm  {title:<{WAIT_WIDTH + 10}}worker-hours"]
    for figures in found:
        wait = figures.wait(measure)
        waiting = list(bar(wait / longest, WAIT_WIDTH).ljust(WAIT_WIDTH + 1))
        if waiting[at] == " ":
            waiting[at] = "┊"
        cost = bar(figures.worker_hours / hours, HOURS_WIDTH)
        lines.append(f"{figures.warm:>4}  {''.join(waiting)} {text(wait):<8}{cost} {figures.worker_hours:.1f}")
    return lines


def bar(share: float, width: int) -> str:
    """Returns a bar of this share of the width, exact to an eighth of a character. A share above 0 is always visible."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    whole, rest = divmod(eighths, 8)
    return BLOCKS[8] * whole + (BLOCKS[rest] if rest else "")


def advice(found: Sequence[Figures], target: Target) -> str:
    """Returns a sentence that recommends a setting, or names the nearest if none meets the target."""
    best = recommend(found, target)
    if best is not None:
        cost = f"{best.worker_hours:.1f} worker-hours, {best.utilisation:.0%} busy"
        return f"recommended: warm: {best.warm} ({target}): {_waits(best, target)}, {cost}"
    near = min(found, key=lambda figures: (figures.refused, target.missed_by(figures), figures.worker_hours))
    refused = f" and {near.refused} claims refused" if near.refused else ""
    nearest = f"the nearest is warm: {near.warm} with {_waits(near, target)}{refused}"
    return f"no setting meets the target ({target}); {nearest}. Try more warm workers, or a higher --max"


def _waits(figures: Figures, target: Target) -> str:
    return ", ".join(f"{name} {text(figures.wait(name))}" for name in target.limits)


def as_json(pool: dict[str, Any], trace: Trace, found: Sequence[Figures], target: Target) -> dict[str, Any]:
    """Returns the result as JSON for programs, with seconds as numbers."""
    best = recommend(found, target)
    about = {"claims": len(trace.arrivals), "tenants": len(trace.tenants), "seconds": round(trace.horizon, 3)}
    return {
        "trace": {**about, "held_seconds": round(trace.held, 3), "peak": trace.peak},
        "pool": pool,
        "target": target.limits,
        "settings": msgspec.to_builtins(found),
        "recommended": best.warm if best is not None else None,
        "approximated": APPROXIMATED,
    }
