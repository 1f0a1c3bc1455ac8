"""`top`: a live overview of the fleet."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .connection import CommandFailed, Format, with_client
from .show import age, cell, console, lasting, pool_state, print_json, status, table

if TYPE_CHECKING:
    from rich.console import Group

    from holdfast.client import Client

STATES = ("warm", "held", "parked", "spawning", "retiring")
PERIOD = {"match": 1, "deadlines": 2, "converge": 15, "scale": 2, "pools": 5, "prune": 600}  # seconds
LAST_EVENTS = 8


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    output: Annotated[Format, typer.Option("--output", "-o", help="With --once: a table, or its data as JSON.")] = "table",
) -> None:
    """Watch pools, duties and the last events.

    Example: holdfast top
    """
    if output == "json" and not once:
        raise CommandFailed("-o json is for one frame: add --once, or follow changes with `holdfast get pools -w -o json`", 2)
    try:
        with_client(context, (_json if output == "json" else _once) if once else _live)
    except KeyboardInterrupt:
        raise typer.Exit() from None


async def _once(client: Client) -> None:
    console().print(_frame(await _frame_data(client)))


async def _json(client: Client) -> None:
    print_json(await _frame_data(client))


async def _live(client: Client) -> None:
    from rich.live import Live

    from holdfast.client import Unavailable, Unreachable

    from .get import changes

    seen = await _frame_data(client)
    with Live(_frame(seen), screen=True, auto_refresh=False) as screen:
        async for _ in changes(client):
            try:
                seen = await _frame_data(client)
            except (Unreachable, Unavailable) as error:
                seen = {**seen, "trouble": str(error)}  # shows the last good frame, marked as not current
            screen.update(_frame(seen), refresh=True)


async def _frame_data(client: Client) -> dict[str, Any]:
    """Returns everything that a frame shows. `duties` is None if this token may not read them."""
    from holdfast.client import Denied

    async def items(path: str, **params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(await client.raw("GET", path, params=params))["items"]
        return found

    async def allowed(path: str) -> list[dict[str, Any]] | None:
        try:
            return await items(path)
        except Denied as error:
            if error.status == 401:
                raise
            return None

    pools, duties, waiting, events = await asyncio.gather(
        items("/v1/pools", limit=1000),
        allowed("/v1/duties"),
        items("/v1/claims", state="waiting", limit=1000),
        items("/v1/events", limit=LAST_EVENTS, newest=True),
    )
    return {"pools": pools, "duties": duties, "waiting": waiting, "events": events}


def _frame(seen: dict[str, Any]) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    pools = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("POOL", "STATE", *(state.upper() for state in STATES), "WAITING", "OLDEST"):
        pools.add_column(title, no_wrap=True)
    for pool in seen["pools"]:
        queue = [claim for claim in seen["waiting"] if claim.get("pool") == pool["name"]]
        oldest = status(pool, "oldest_wait", "oldest_waiting")
        waiting = status(pool, "waiting")
        pools.add_row(
            pool["name"],
            Text(pool_state(pool)),
            *(cell(status(pool, state) or 0) for state in STATES),
            cell(len(queue) if waiting is None else waiting),
            lasting(oldest) if oldest is not None else age(min((c.get("created_at") or "" for c in queue), default="")),
        )
    duties = "not shown to this token" if seen["duties"] is None else "  ".join(_duty(duty) for duty in seen["duties"])
    trouble = [Text(f"not current: {seen['trouble']}", style="bold red")] if seen.get("trouble") else []
    return Group(
        *trouble,
        pools,
        Text(),
        Text(f"duties  {duties}"),
        Text(),
        table("events", seen["events"]),
    )


def _duty(duty: dict[str, Any]) -> str:
    name, old = str(duty.get("duty") or duty.get("name")), duty.get("age")
    if not isinstance(old, int | float):
        return f"{name} never"
    bound = 3 * PERIOD.get(name, 15) + 5  # P6: within this time another replica must have taken the duty over
    return f"{name} {lasting(old) or '0s'}" + (" STALE" if old > bound or old < 0 else "")
