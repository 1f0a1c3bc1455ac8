"""Draws one frame of `top`: the header, the pools, the running claims, the duties and the last events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .show import Row, cell, lasting, pool_trouble, status, table
from .times import ago, local

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment
    from rich.text import Text

PERIOD = {"match": 1, "deadlines": 2, "converge": 15, "scale": 2, "pools": 5, "prune": 600}  # seconds
HELP = "q quits   / shows only pools whose name contains what you type"
TROUBLE, WARNING = "bold red", "yellow"
TITLES = {"overview": "pools", "running": "running claims", "events": "events"}
FEWEST = 4  # lines of each table that are shown on any terminal: an empty one, the title and two rows
EVENTS_AT_ONCE = 8  # events in a frame that is printed once


class Filter(NamedTuple):
    """The text that the names of the shown pools contain, and whether it is being typed."""

    text: str = ""
    typing: bool = False

    def shows(self, row: Row) -> bool:
        name = row.get("pool") if "pool" in row or "name" not in row else row["name"]
        return self.text in str(name or "")


class Frame(NamedTuple):
    """A frame as lines, of which each fits the terminal."""

    lines: list[list[Segment]]

    def __rich_console__(self, console: Console, options: object) -> Iterable[Segment]:
        from rich.segment import Segment

        for line in self.lines:
            yield from line
            yield Segment.line()


def draw(console: Console, seen: dict[str, Any], width: int | None, height: int | None, chosen: Filter | None = None) -> Frame:
    """Returns a frame. `width` and `height` are those of the terminal, or None if the frame may be of any size. A live screen
    has a `chosen` filter, and the keys in its last line."""
    part = _Parts(console, width)
    shows = (chosen or Filter()).shows
    pools, running, events = ([row for row in seen[kind] if shows(row)] for kind in ("pools", "running", "events"))
    top, middle = part.lines(header(seen)), [[], *part.lines(duties(seen["duties"]))]
    bottom = part.lines(_keys(chosen, width)) if chosen is not None else []
    if height is None:
        overview = part.first("overview", pools, None, pool_style)
        claims = part.first("running", running, None)
        history = part.last("events", events[-EVENTS_AT_ONCE:], None, event_style)
        return Frame([*top, *overview, *claims, *middle, *history, *part.left_out()])

    def body(room: int) -> list[list[Segment]]:
        room -= len(top) + len(middle)
        overview = part.first("overview", pools, max(FEWEST, room - 2 * FEWEST), pool_style)
        room -= len(overview)
        claims = part.first("running", running, max(FEWEST, room // 2, room - len(events) - 2))
        history = part.last("events", events, max(FEWEST, room - len(claims)), event_style)
        return [*top, *overview, *claims, *middle, *history]

    room = height - len(bottom)
    body(room)  # shows which columns are left out, and so how many lines their names need
    reserved = len(part.left_out())
    shown = body(room - reserved)[: room - reserved]
    below = [*part.left_out(), *bottom]
    blank: list[list[Segment]] = [[] for _ in range(height - len(shown) - len(below))]
    return Frame([*shown, *blank, *below][-height:])


class _Parts:
    """Draws the parts of a frame as lines, each with an empty line above and with whole rows only."""

    def __init__(self, console: Console, width: int | None) -> None:
        self._console, self._width = console, width
        self._left_out: dict[str, list[str]] = {}  # the titles of the columns that do not fit, by table

    def lines(self, part: RenderableType) -> list[list[Segment]]:
        options = self._console.options.update(width=self._width or self._console.width)
        return self._console.render_lines(part, options, pad=False)

    def first(
        self, kind: str, rows: Sequence[Row], room: int | None, style: Callable[[Row], str] = lambda row: ""
    ) -> list[list[Segment]]:
        """Returns the first rows that there is room for, and how many more there are."""
        shown = rows if room is None else rows[:room]
        while True:
            found = [[], *self._table(kind, shown, style)]
            if len(shown) < len(rows):
                found += self.lines(_line(f"… and {len(rows) - len(shown)} more", "dim"))
            if room is None or len(found) <= room or len(shown) <= 1:
                return found
            shown = shown[: -max(1, (len(found) - room) // 3)]  # a row seldom has more than three lines

    def last(self, kind: str, rows: Sequence[Row], room: int | None, style: Callable[[Row], str]) -> list[list[Segment]]:
        """Returns the last rows that there is room for."""
        shown = rows if room is None else rows[-room:]
        while True:
            found = [[], *self._table(kind, shown, style)]
            if room is None or len(found) <= room or len(shown) <= 1:
                return found
            shown = shown[max(1, (len(found) - room) // 3) :]

    def _table(self, kind: str, rows: Sequence[Row], style: Callable[[Row], str]) -> list[list[Segment]]:
        self._left_out.pop(kind, None)
        if not rows:
            return self.lines(_line(f"no {TITLES[kind]}"))
        grid, found = table(kind, rows, self._width, style)
        self._left_out[kind] = found.left_out
        return self.lines(grid)

    def left_out(self) -> list[list[Segment]]:
        """Returns which columns the tables that were drawn last do not show."""
        named = [f"{', '.join(titles)} ({TITLES[kind]})" for kind, titles in self._left_out.items() if titles]
        return self.lines(_line(f"left out: {'; '.join(named)}", "dim")) if named else []


def header(seen: dict[str, Any]) -> Text:
    """Returns the fleet, its replicas, the time and the brake. What this token may not read is left out."""
    from rich.text import Text

    me, replicas, brake = seen["me"], seen["replicas"], seen["brake"]
    found = Text.assemble(("holdfast ", "bold"), (str(me.get("install") or ""), "bold"))
    if replicas is not None:
        live = sum(each.get("state") == "live" for each in replicas)
        silent = sum(each.get("state") == "silent" for each in replicas)
        found.append(f"   {live} replica{'s' if live != 1 else ''} live")
        if silent:
            found.append(f", {silent} silent", TROUBLE)
    found.append(f"   {local(seen['at'])}")
    if brake is not None and not brake["tripped"]:
        found.append("   brake not tripped")
    for each in brake.get("tenants", ()) if brake is not None else ():
        found.append(
            f"\nBRAKE OF TENANT {each['tenant']} TRIPPED {ago(each['tripped_at'])}: {each['reason']}; until"
            f" `holdfast brake release --tenant {each['tenant']}`, its leases do not end",
            TROUBLE,
        )
    if brake is not None and brake["tripped"]:
        found.append(
            f"\nBRAKE TRIPPED {ago(brake['tripped_at'])}: {cell(brake['reason'])}; until `holdfast brake release`, no surplus"
            " workers and no claims whose time ran out are ended",
            TROUBLE,
        )
    if seen.get("trouble"):
        found.append(f"\nnot current: {cell(seen['trouble'])}", TROUBLE)
    return found


def duties(found: Sequence[Row] | None) -> Text:
    from rich.text import Text

    if found is None:
        return Text("duties  not shown to this token")
    each = [Text(duty(row), TROUBLE if "STALE" in duty(row) else "") for row in found]
    return Text.assemble("duties  ", Text("  ").join(each))


def duty(row: Row) -> str:
    """Returns a duty's name and the time since its last success, marked as stale by its own period."""
    name, old = str(row.get("duty") or row.get("name")), row.get("age")
    if not isinstance(old, int | float):
        return f"{name} never"
    bound = 3 * PERIOD.get(name, 15) + 5  # P6: within this time another replica must have taken the duty over
    return f"{name} {lasting(old) or '0s'}" + (" STALE" if old > bound or old < 0 else "")


def pool_style(pool: Row) -> str:
    if pool_trouble(pool) and not pool.get("frozen"):
        return TROUBLE
    starved = status(pool, "waiting") and not status(pool, "warm")
    return WARNING if starved or pool.get("frozen") or pool.get("state") == "draining" else ""


def event_style(event: Row) -> str:
    data = event.get("data") or {}
    if event.get("kind") == "brake.tripped" or data.get("outcome") in ("lost", "refused"):
        return TROUBLE
    return WARNING if data.get("outcome") in ("failed", "expired") else ""


def _keys(chosen: Filter, width: int | None) -> Text:
    words, style = HELP, "dim"
    if chosen.typing or chosen.text:
        ends = "Enter keeps it, Esc clears it" if chosen.typing else "/ changes it, Esc clears it, q quits"
        words, style = f"pools with: {chosen.text}{'_' if chosen.typing else ''}   {ends}", "reverse"
    return _line(words[: width and width - 1], style)  # one line, because the screen has no room for a second


def _line(words: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(words, style)
