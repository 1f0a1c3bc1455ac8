"""Durations as Kubernetes users write them: 500ms, 60s, 1h30m."""

import re
from typing import Annotated

import msgspec

PATTERN = r"^([0-9]+(ms|s|m|h))+$(?!\n)"  # `$` alone would also match before a final newline
# `must` completes the sentence "it must …" in the answer to a wrong value (mistakes.py).
MUST = {"must": "be a duration such as 500ms, 60s, 10m or 1h30m"}
Duration = Annotated[str, msgspec.Meta(pattern=PATTERN, max_length=32, examples=["60s", "1h30m"], extra=MUST)]

_PART = re.compile(r"([0-9]+)(ms|s|m|h)")
_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST = 366 * 24 * 3600.0  # a duration of more than a year is a mistake


def seconds(text: str) -> float:
    """Returns the duration in seconds. Raises ValueError with what is wrong."""
    if not re.fullmatch(PATTERN, text):
        raise ValueError(f"{text!r} is not a duration such as 500ms, 60s or 1h30m")
    if len(text) > 32:
        raise ValueError("a duration of more than 32 characters is longer than a year")
    total = sum(int(number) * _UNIT[unit] for number, unit in _PART.findall(text))
    if total > LONGEST:
        raise ValueError(f"{text!r} is longer than a year")
    return total


def text(value: float) -> str:
    """Returns a duration for people to read: 1h30m, 45s, 250ms."""
    if value < 1:
        return f"{round(value * 1000)}ms"
    whole = round(value)
    if whole < 10 and abs(value - whole) > 0.05:
        return f"{value:.1f}s"
    parts = []
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def exact(value: float) -> str:
    """Returns a duration that `seconds` reads back exactly, to the millisecond."""
    left = round(value * 1000)
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
