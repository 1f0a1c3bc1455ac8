"""Writes moments for people: how long ago, or as the clock of this machine shows them. JSON keeps the exact ones."""

import re
from datetime import UTC, datetime

# Each unit is used up to twice the length of the next one, because "90 s" says more than "1 min".
UNITS = (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800), ("days", 86400, float("inf")))

UTC_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{3}|) UTC\b")  # as the sentences of `explain` contain times


def parsed(moment: object) -> datetime | None:
    """Returns a moment of the server's JSON, or None if it is none."""
    if not isinstance(moment, str):
        return None
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def span(seconds: float) -> str:
    """Returns a length of time in one unit: 18 s, 5 min, 3 h, 12 days."""
    unit, size, _ = next(each for each in UNITS if seconds < each[2])
    return f"{int(seconds // size)} {unit}"


def age(moment: object) -> str:
    """Returns how long ago a moment was. It is never negative, because the server's clock may differ from ours."""
    then = parsed(moment)
    if then is None:
        return "" if moment is None else str(moment)
    return span(max(0.0, (datetime.now(UTC) - then).total_seconds()))


def ago(moment: object) -> str:
    """Returns `18 s ago`, or for a moment in the future `in 18 s`."""
    then = parsed(moment)
    if then is None:
        return age(moment)
    ahead = (then - datetime.now(UTC)).total_seconds()
    return f"in {span(ahead)}" if ahead >= 1 else f"{age(moment)} ago"


def local(moment: object) -> str:
    """Returns the time in the zone of this machine, with the date unless it is today."""
    then = parsed(moment)
    if then is None:
        return age(moment)
    here = then.astimezone()
    return here.strftime("%H:%M:%S" if here.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S")


def localized(sentence: str) -> str:
    """Returns a sentence of the server with its times in the zone of this machine, with milliseconds if it has them."""
    return UTC_TIME.sub(lambda found: local(found[1]) + found[2] if parsed(found[1]) else found[0], sentence)
