"""Chooses the columns of a table that fit a terminal. Whole columns are left out, so that no word is cut."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

GAP = 2  # blanks between two columns
NARROWEST = 20  # characters; sentences in a narrower column are hard to read
LONGEST_WORD = 24  # characters; a longer word in a sentence, such as a path, is folded, so that it costs no other column

# Columns with sentences or several names. Their lines break between words.
TEXTS = frozenset({"TROUBLE", "REASON", "ABOUT", "FAILURE", "DUTIES", "CHECK", "DETAIL", "ADVICE", "--confirm", "--give-up"})
# The columns that are left out first, per table. Those that are not named here follow from right to left. The first column of a
# table is never left out.
LEFT_OUT_FIRST: dict[str, Sequence[str]] = {
    "pools": ("RETIRING", "PARKED", "MODE", "MAX", "SPAWNING"),
    "overview": ("RETIRING", "PARKED", "OLDEST", "SPAWNING"),
    "workers": ("NODE", "TENANT", "SINCE", "REASON", "POOL"),
    "claims": ("EXIT", "WORKER", "TENANT", "CREATED", "POOL", "OUTCOME"),
    "running": ("REASON", "TENANT", "POOL"),
    "unconfirmed": ("FOR CLAIM", "TENANT", "CLAIM STATE", "AGENT REPORTS", "SINCE", "POOL"),
    "tenants": ("PARK TTL", "MAX PRIORITY", "WEIGHT"),
    "duties": ("TOOK", "SKIPS", "ACTIONS", "TERM"),
    "replicas": ("PID", "VERSION", "UP"),
    "events": ("TENANT", "BY", "KIND"),
    "tokens": ("CREATED", "TENANT"),
    "checks": ("PROMISE", "ADVICE"),
}


class Fit(NamedTuple):
    """The columns to show, by their place, with their widths; and the titles of those that are left out."""

    shown: dict[int, int]
    left_out: list[str]


def fit(kind: str, titles: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> Fit:
    """Returns which columns fit into `width`, or all of them if it is None. Columns without any content go
    first, and are not reported."""
    from rich.cells import cell_len

    def natural(place: int) -> int:
        return max(cell_len(text) for text in (titles[place], *(row[place] for row in rows)))

    def least(place: int) -> int:
        """Returns the width that a column needs: all of it, or for sentences the longest word and a readable line."""
        if titles[place] not in TEXTS:
            return natural(place)
        words = [word for row in rows for word in row[place].split()]
        word = min(LONGEST_WORD, max(map(cell_len, words), default=0))
        return min(natural(place), max(word, NARROWEST, cell_len(titles[place])))

    shown = list(range(len(titles)))
    if width is None or _total(map(natural, shown)) <= width:
        return Fit({place: natural(place) for place in shown}, [])
    shown = [place for place in shown if place == 0 or any(row[place] for row in rows)]
    needs = {place: least(place) for place in shown}
    left_out = []
    for place in _order(kind, titles, shown):
        if _total(needs[each] for each in shown) <= width:
            break
        shown.remove(place)
        left_out.append(place)
    widths = {place: needs[place] for place in shown}
    for place in shown:  # what is left of the line goes to the sentences, from left to right
        spare = width - _total(widths.values())
        widths[place] += max(0, min(spare, natural(place) - widths[place]))
    return Fit(widths, [titles[place] for place in sorted(left_out)])


def _order(kind: str, titles: Sequence[str], shown: Sequence[int]) -> list[int]:
    """Returns all places but the first, in the order in which they are left out."""
    named = [titles.index(title) for title in LEFT_OUT_FIRST.get(kind, ()) if title in titles]
    others = [place for place in reversed(range(1, len(titles))) if place not in named]
    return [place for place in (*named, *others) if place in shown]


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + GAP * (len(found) - 1)
