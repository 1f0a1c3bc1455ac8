"""Prints the server's JSON as tables for people or as JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.model.duration import text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], object]]


def age(moment: object) -> str:
    """Returns how long ago a moment was, as text. It is never negative, because the server's clock may differ from ours."""
    if not isinstance(moment, str) or not moment:
        return ""
    try:
        then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        return moment
    return text(float(max(0, round((datetime.now(UTC) - then).total_seconds()))))


def lasting(value: object) -> str:
    return text(float(value)) if isinstance(value, int | float) and value >= 0 else ""


def field(name: str) -> Callable[[Row], object]:
    return lambda row: row.get(name)


def since(name: str) -> Callable[[Row], object]:
    return lambda row: age(row.get(name))


def status(pool: Row, *names: str) -> object:
    """Returns a number of a pool's status. Counts by state are either in the status or in its `workers`."""
    found = pool.get("status") or {}
    for place in (found, found.get("workers")):
        for name in names:
            if isinstance(place, Mapping) and place.get(name) is not None:
                return place[name]
    return None


def spec(name: str) -> Callable[[Row], object]:
    return lambda row: (row.get("spec") or row).get(name)


def pool_state(pool: Row) -> str:
    if pool.get("frozen"):
        return f"frozen: {pool['frozen']}" if isinstance(pool["frozen"], str) else "frozen"
    return str(pool.get("state") or "")


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
        ("TROUBLE", lambda row: status(row, "trouble", "reason") or row.get("trouble")),
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
        ("AGE", since("created_at")),
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
        ("AT", field("at")),
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
        ("EXPIRES", field("expires_at")),
    ),
    "checks": (
        ("CHECK", field("name")),
        ("PROMISE", field("promise")),
        ("OK", lambda row: "ok" if row.get("ok") else "FAILED"),
        ("DETAIL", field("detail")),
        ("ADVICE", lambda row: None if row.get("ok") else row.get("advice")),
    ),
}


def cell(value: object) -> str:
    if value is None:
        return ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def table(kind: str, rows: Sequence[Row]) -> Table:
    """Returns a table. Columns are never cut, because an incomplete id cannot be pasted into the next command."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = COLUMNS[kind]
    for title, _ in columns:
        last = title == columns[-1][0]
        grid.add_column(title, overflow="fold", no_wrap=not last)
    for row in rows:
        grid.add_row(*(Text(cell(value(row))) for _, value in columns))
    return grid


def console() -> Console:
    """Returns a console that is as wide as the terminal. For a pipe it is 400 columns wide, so that lines are not wrapped."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 400, highlight=False, soft_wrap=False)


def print_table(kind: str, rows: Sequence[Row]) -> None:
    if kind == "replicas":
        rows = sorted(rows, key=lambda row: row.get("state") != "live")  # live replicas first
    if not rows:
        print(f"no {kind}", file=sys.stderr)
        return
    with console() as out, out.capture() as shown:
        out.print(table(kind, rows))
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))


def print_json(body: bytes | object, *, indent: int | None = 2) -> None:
    """Prints JSON, indented for people unless `indent` is None."""
    value = json.loads(body) if isinstance(body, bytes) else body
    print(json.dumps(value, indent=indent, ensure_ascii=False), flush=True)
