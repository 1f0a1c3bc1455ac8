"""Functions that processes of tests import: the run of one fleet, and short names for settings and traces."""

from typing import Any

import msgspec

from holdfast.model.pool import PoolSpec
from holdfast.model.tenant import TenantSpec
from holdfast.plan.figures import Figures
from holdfast.plan.fleet import PlannedFleet, Setting
from holdfast.plan.trace import Arrival, Trace


def run_fleet(setting: Setting, trace: Trace, dsn: str, exact: bool) -> Figures:
    return PlannedFleet(setting, trace, dsn, lambda _: None, exact=exact).run()


def setting(warm: int, *, start: float = 5.0, tenants: dict[str, TenantSpec] | None = None, **spec: Any) -> Setting:
    found = msgspec.convert({"max": 20, **spec, "warm": warm}, PoolSpec)
    return Setting("linux", found, (start, start), tenants or {})


def trace(*arrivals: tuple[float, float] | tuple[float, float, str]) -> Trace:
    return Trace(tuple(Arrival(*each) for each in arrivals))
