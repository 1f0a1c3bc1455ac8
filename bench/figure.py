"""One figure: what was measured, beside its limit, and whether it meets its target. Printed as one JSON line."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    figure: str
    value: float
    unit: str
    limit: str  # what it is compared with, measured in the same run
    limit_value: float
    target: float | None = None  # for the ratio of value to limit; None: shown, not judged
    least: bool = False  # the target is a floor, not a ceiling

    @property
    def ratio(self) -> float:
        return self.value / self.limit_value if self.limit_value else float("inf")

    @property
    def ok(self) -> bool | None:
        if self.target is None:
            return None
        return self.ratio >= self.target if self.least else self.ratio <= self.target

    def line(self) -> str:
        told = asdict(self) | {"ratio": self.ratio, "ok": self.ok}
        told["target"] = None if self.target is None else f"{'>=' if self.least else '<='} {self.target:g}"
        order = ("figure", "value", "unit", "limit", "limit_value", "ratio", "target", "ok")
        return json.dumps({name: _short(told[name]) for name in order})


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value
