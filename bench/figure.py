"""One figure: what was measured, beside its limit, and whether it meets its target. Printed as one JSON line."""

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    figure: str
    value: float
    unit: str
    limit: str  # what the value is compared with
    limit_value: float | None  # None if the run measures no limits
    target: float | None = None  # for the ratio of value to limit; with None the figure is shown and not judged
    least: bool = False  # whether the target is a minimum, not a maximum

    @property
    def ratio(self) -> float | None:
        return self.value / self.limit_value if self.limit_value else None

    @property
    def ok(self) -> bool | None:
        if self.target is None or self.ratio is None:
            return None
        return self.ratio >= self.target if self.least else self.ratio <= self.target

    @property
    def target_text(self) -> str | None:
        return None if self.target is None else f"{'≥' if self.least else '≤'} {self.target:g}"

    def line(self) -> str:
        shown = asdict(self) | {"ratio": self.ratio, "ok": self.ok, "target": self.target_text}
        order = ("figure", "value", "unit", "limit", "limit_value", "ratio", "target", "ok")
        return json.dumps({name: _short(shown[name]) for name in order}, ensure_ascii=False)


def parse(line: str) -> dict[str, Any]:
    """Reads what `Figure.line` wrote."""
    return dict(json.loads(line))


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value
