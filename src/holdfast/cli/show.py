"""Prints the server's JSON as tables for people or as JSON for programs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model.duration import text
from holdfast.model.shown import escaped, shown

from .connection import print_message
from .fitting import GAP, Fit, fit
from .times import age, ago, local

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDEST = 100_000  # characters; longer than any line

WORKER_STATES = ("warm", "held", "parked", "spawning", "retiring")

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], object]]


def lasting(value: object) -> str:
    return text(float(value)) if isinstance(value, int | float) and value >= 0 else ""


def field(name: str) -> Callable[[Row], object]:
    return lambda row: row.get(name)


def since(name: str) -> Callable[[Row], object]:
    return lambda row: ago(row.get(name))


def status(pool: Row, *names: str) -> object:
    """Returns a number of a pool's status. Counts by state are either in the status or in its `workers`."""
    found = pool.get("status") or {}
    for place in (found, found.get("workers")):
        for name in names:
            if isinstance(place, Mapping) and place.get(name) is not None:
                return place[name]
    return None


def _count(name: str) -> Callable[[Row], object]:
    """Returns the count of this name, or nothing if the server does not show it to this token."""
    return lambda row: status(row, name)


def spec(name: str) -> Callable[[Row], object]:
    return lambda row: (row.get("spec") or row).get(name)


def pool_state(pool: Row) -> str:
    return "frozen" if pool.get("frozen") else str(pool.get("state") or "")


def pool_trouble(pool: Row) -> str:
    """Returns why the pool does not do what it should: the reason for which it is frozen, and why its last start failed."""
    frozen, failed = pool.get("frozen"), status(pool, "trouble", "reason") or pool.get("trouble")
    return "; ".join(str(each) for each in (f"frozen: {frozen}" if isinstance(frozen, str) else None, failed) if each)


def replica_state(replica: Row) -> str:
    """Returns a replica's state. If it is not live, the text says since when; the server removes it after ten minutes."""
    state, seen = str(replica.get("state") or ""), age(replica.get("seen_at"))
    if state == "live" or not seen:
        return state
    return f"stopped {seen} ago" if state == "stopped" else f"{state} for {seen}"


def actor(event: Row) -> object:
    """Returns the name of the token with which somebody caused the event."""
    return (event.get("actor") or {}).get("name")


def _subject(event: Row) -> str:
    return " ".join(str(event[name]) for name in ("pool", "worker", "claim") if event.get(name))


COLUMNS: dict[str, Sequence[Column]] = {
    "pools": (
        ("NAME", field("name")),
        ("MODE", spec("mode")),
        ("STATE", pool_state),
        ("WARM", lambda row: status(row, "warm")),
        ("HELD", lambda row: status(row, "held")),
        ("PARKED", lambda row: status(row, "parked")),
        ("SPAWNING", lambda row: status(row, "spawning")),
        ("RETIRING", lambda row: status(row, "retiring")),
        ("WAITING", lambda row: status(row, "waiting")),
        ("MAX", spec("max")),
        ("TROUBLE", pool_trouble),
    ),
    "overview": (
        ("POOL", field("name")),
        ("STATE", pool_state),
        *((state.upper(), _count(state)) for state in WORKER_STATES),
        ("WAITING", _count("waiting")),
        ("OLDEST", lambda row: lasting(status(row, "oldest_wait", "oldest_waiting")) if status(row, "waiting") else None),
        ("TROUBLE", pool_trouble),
    ),
    "workers": (
        ("ID", field("id")),
        ("POOL", field("pool")),
        ("STATE", field("state")),
        ("SINCE", since("state_since")),
        ("CLAIM", field("claim")),
        ("TENANT", field("tenant")),
        ("NODE", field("node")),
        ("REASON", field("reason")),
    ),
    "claims": (
        ("ID", field("id")),
        ("POOL", field("pool")),
        ("TENANT", field("tenant")),
        ("STATE", field("state")),
        ("OUTCOME", field("outcome")),
        ("EXIT", field("exit_code")),
        ("WORKER", field("worker")),
        ("CREATED", since("created_at")),
        ("REASON", field("reason")),
    ),
    "running": (
        ("CLAIM", field("id")),
        ("POOL", field("pool")),
        ("TENANT", field("tenant")),
        ("STATE", field("state")),
        ("WORKER", field("worker")),
        ("FOR", lambda row: age(row.get("active_at") or row.get("assigned_at") or row.get("created_at"))),
        ("REASON", field("reason")),
    ),
    "unconfirmed": (
        ("WORKER", field("worker")),
        ("POOL", field("pool")),
        ("STATE", field("state")),
        ("SINCE", since("since")),
        ("CLAIM", field("claim")),
        ("CLAIM STATE", field("claim_state")),
        ("TENANT", field("tenant")),
        ("AGENT REPORTS", field("doing")),
        ("FOR CLAIM", field("reported_claim")),
        ("--confirm", field("confirm")),
        ("--give-up", field("give_up")),
    ),
    "tenants": (
        ("NAME", field("name")),
        ("WEIGHT", spec("weight")),
        ("MAX CLAIMS", spec("maxClaims")),
        ("MAX WAITING", spec("maxWaiting")),
        ("MAX PRIORITY", spec("maxPriority")),
        ("PARK TTL", spec("parkTTL")),
        ("LIVE", field("live")),
        ("WAITING", field("waiting")),
    ),
    "duties": (
        ("DUTY", lambda row: row.get("duty") or row.get("name")),
        ("HOLDER", field("holder")),
        ("TERM", field("number")),
        ("AGE", lambda row: lasting(row.get("age"))),
        ("TOOK", lambda row: lasting(row.get("seconds"))),
        ("ACTIONS", field("actions")),
        ("SKIPS", field("skips")),
        ("FAILURE", field("failure")),
    ),
    "replicas": (
        ("ID", field("id")),
        ("STATE", replica_state),
        ("URL", field("url")),
        ("PID", field("pid")),
        ("VERSION", field("version")),
        ("UP", lambda row: age(row.get("started_at")) if row.get("state") == "live" else None),
        ("DUTIES", lambda row: ", ".join(map(str, row.get("duties") or ()))),
    ),
    "events": (
        ("AT", lambda row: local(row.get("at"))),
        ("KIND", field("kind")),
        ("ABOUT", _subject),
        ("TENANT", field("tenant")),
        ("BY", actor),
        ("REASON", field("reason")),
    ),
    "tokens": (
        ("ID", field("id")),
        ("NAME", field("name")),
        ("ROLE", field("role")),
        ("TENANT", field("tenant")),
        ("CREATED", since("created_at")),
        ("EXPIRES", since("expires_at")),
    ),
    "checks": (
        ("CHECK", field("name")),
        ("PROMISE", field("promise")),
        ("OK", lambda row: "FAILED" if not row.get("ok") else "warning" if row.get("warning") else "ok"),
        ("DETAIL", field("detail")),
        ("ADVICE", lambda row: None if row.get("ok") and not row.get("warning") else row.get("advice")),
    ),
}


def cell(value: object) -> str:
    if value is None:
        return ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else shown(str(value))


def table(
    kind: str, rows: Sequence[Row], width: int | None = None, style: Callable[[Row], str] = lambda row: ""
) -> tuple[Table, Fit]:
    """Returns a table of the columns that fit into `width`, its rows in the given style, and which columns these are.

    No id is cut, because an incomplete id cannot be pasted into the next command.
    """
    from rich.table import Table
    from rich.text import Text

    columns = COLUMNS[kind]
    titles, cells = [title for title, _ in columns], [[cell(value(row)) for _, value in columns] for row in rows]
    found = fit(kind, titles, cells, width)
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for place, wide in found.shown.items():
        grid.add_column(titles[place], overflow="fold", width=wide)
    for row, line in zip(rows, cells, strict=True):
        grid.add_row(*(Text(line[place]) for place in found.shown), style=style(row))
    return grid, found


def terminal_width() -> int | None:
    """Returns how many characters a line of the terminal has, or None if the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def console() -> Console:
    """Returns a console that never wraps a line by itself, because tables are made to fit, and a pipe has no width."""
    from rich.console import Console

    return Console(width=WIDEST, highlight=False, soft_wrap=False)


def print_table(kind: str, rows: Sequence[Row], *, wide: bool = False) -> None:
    """Prints the columns that fit the terminal, or all if it is `wide`, and which ones were left out."""
    if kind == "replicas":
        rows = sorted(rows, key=lambda row: row.get("state") != "live")  # live replicas first
    if not rows:
        print(f"no {kind}", file=sys.stderr)
        return
    grid, found = table(kind, rows, None if wide else terminal_width())
    with console() as out, out.capture() as drawn:
        out.print(grid)
    print("\n".join(line.rstrip() for line in drawn.get().split("\n")).rstrip("\n"))
    if found.left_out:
        print_message(f"left out: {', '.join(found.left_out)}; -o wide shows all columns")


def print_json(body: bytes | object, *, indent: int | None = 2) -> None:
    """Prints JSON, indented for people unless `indent` is None."""
    value = json.loads(body) if isinstance(body, bytes) else body
    print(escaped(json.dumps(value, indent=indent, ensure_ascii=False)), flush=True)
