"""Finds the known name that is most similar to a mistyped one."""

import difflib
from collections.abc import Iterable

# The share of equal characters that two names must have.
SIMILAR_NAME = 0.5
SIMILAR_ID = 0.75  # of the random part, in which any two ids have about half in common


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Returns the most similar of the names, or None if none is similar. Case, '-' and '_' do not count."""
    return _closest(_plain(name), {_plain(known): known for known in names}, SIMILAR_NAME)


def nearest_id(id_: str, ids: Iterable[str]) -> str | None:
    """Returns the id that has at most one or two characters that differ, or None. Only the random parts are compared, because
    what comes before them is the same for all workers of a pool."""
    return _closest(_random_part(id_), {_random_part(known): known for known in ids}, SIMILAR_ID)


def suggest(name: str, names: Iterable[str]) -> str:
    """Returns the end of an error message, such as "; did you mean 'linux'?", or nothing if no name is similar."""
    return _question(nearest(name, names))


def suggest_id(id_: str, ids: Iterable[str]) -> str:
    """Returns the same for an id."""
    return _question(nearest_id(id_, ids))


def _closest(wanted: str, known: dict[str, str], enough: float) -> str | None:
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=enough)
    return known[near[0]] if near else None


def _question(near: str | None) -> str:
    return "" if near is None else f"; did you mean {near!r}?"


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _random_part(id_: str) -> str:
    return id_.lower().rpartition("-")[2]
