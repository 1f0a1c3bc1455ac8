"""Faults of the cluster's API and of all hooks: each changes the weather for a while."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..book import Broken
from ..faults import Fault
from ..loop import later
from ..moments import Target
from ..pods import Weather
from .cause import Cause

if TYPE_CHECKING:
    from ..chaos import Chaos

CHANGES: dict[str, dict[str, Callable[[float], object]]] = {
    "cluster.down": {"failing": lambda _: 1.0},
    "cluster.failing": {"failing": lambda a: 0.1 + 0.7 * a},
    "cluster.slow": {"latency": lambda a: (0.1, 0.5 + 3 * a)},
    "cluster.answers-lost": {"lost": lambda a: 0.1 + 0.6 * a},
    "cluster.late-writes": {"late": lambda a: 0.2 + 0.6 * a},
    "cluster.lists-stale": {"stale": lambda a: 0.3 + 0.7 * a},
    "cluster.lists-empty": {"empty": lambda a: 0.2 + 0.8 * a},
    "cluster.hints-lost": {"hints_dropped": lambda a: 0.3 + 0.7 * a, "hints_doubled": lambda a: a},
    "cluster.quota": {"quota": lambda a: 1 + int(8 * a)},
    "cluster.image-errors": {"image_errors": lambda a: 0.3 + 0.7 * a},
    "cluster.starts-crash": {"crashes": lambda a: 0.3 + 0.7 * a},
    "cluster.stubborn-pods": {"stubborn": lambda a: 0.3 + 0.7 * a},
    "hooks.fail": {"hooks_fail": lambda _: True},
    "cluster.starts-slow": {"start": lambda a: (5.0, 20.0 + 120 * a)},
}


def change(chaos: "Chaos", fault: Fault, target: Target) -> None:
    weather, calm = chaos.run.world.weather, Weather()
    for name, value in CHANGES[fault.kind].items():
        setattr(weather, name, value(fault.amount))

    def mend() -> None:
        chaos.cleared += "failing" in CHANGES[fault.kind]
        for name in CHANGES[fault.kind]:
            setattr(chaos.run.world.weather, name, getattr(calm, name))

    chaos.until(fault, mend)
    if fault.kind == "cluster.down" and fault.span > 40:
        later(25.0, lambda: _stays_dark(chaos, fault))


def _stays_dark(chaos: "Chaos", fault: Fault) -> None:
    """Check P6: while the cluster is unavailable, no pass of `converge` succeeds. The outage may have ended at a moment of the
    run, or with another outage that began before it; then there is nothing to check."""
    run, cleared = chaos.run, chaos.cleared
    sql = "SELECT success_at FROM holdfast.term WHERE duty = 'converge'"
    before, jumped = run.gate.postgres.ask(run.gate.clock(), sql)[0][0], run.database_clock

    def compare() -> None:
        after = run.gate.postgres.ask(run.gate.clock(), sql)[0][0]
        dark = run.world.weather.failing == 1.0 and chaos.cleared == cleared and not chaos.healing
        still = dark and run.database_clock == jumped
        if still and before is not None and after is not None and after > before:
            run.loop.failed = Broken("P6", "converge reports success although the cluster is unavailable")

    later(fault.span - 27.0, compare)


WEATHER: dict[str, Cause] = dict.fromkeys(CHANGES, change)
