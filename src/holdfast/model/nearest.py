"""Finds the known name that is most similar to a mistyped one."""

import difflib
from collections.abc import Iterable

# The share of equal characters that two names must have. Ids are random, and any two of them have about half in common, so only
# an id with one or two wrong characters is recognized.
SIMILAR_NAME = 0.5
SIMILAR_ID = 0.75


def nearest(name: str, names: Iterable[str], enough: float = SIMILAR_NAME) -> str | None:
    """Returns the most similar of the names, or None if none is similar. Case, '-' and '_' do not count."""
    plain: dict[str, str] = {}
    for known in names:
        plain.setdefault(_plain(known), known)
    near = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=enough)
    return plain[near[0]] if near else None


def suggest(name: str, names: Iterable[str], enough: float = SIMILAR_NAME) -> str:
    """Returns the end of an error message, such as "; did you mean 'linux'?", or nothing if no name is similar."""
    near = nearest(name, names, enough)
    return "" if near is None else f"; did you mean {near!r}?"


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
