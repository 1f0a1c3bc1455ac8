"""`top`: a live overview of the fleet."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .connection import CommandFailed, Format, with_client
from .frame import Filter, draw
from .keys import DELETE, ENTER, ESCAPE, keys
from .show import console, print_json, terminal_width

if TYPE_CHECKING:
    from holdfast.client import Client

MOST_CLAIMS = 1000  # rows; the most that one request returns
MOST_EVENTS = 200  # rows; more than a terminal has lines, because a filter hides some


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    output: Annotated[Format, typer.Option("--output", "-o", help="With --once: a table, or its data as JSON.")] = "table",
) -> None:
    """Watch pools, running claims, duties and the last events. Type q to quit, and / to show only some pools.

    Example: holdfast top
    """
    if output == "json" and not once:
        raise CommandFailed("-o json is for one frame: add --once, or follow changes with `holdfast get pools -w -o json`", 2)
    try:
        with_client(context, (_json if output == "json" else _once) if once else _live)
    except KeyboardInterrupt:
        raise typer.Exit() from None


async def _once(client: Client) -> None:
    out = console()
    out.print(draw(out, await _frame_data(client), terminal_width(), None))


async def _json(client: Client) -> None:
    print_json(await _frame_data(client))


async def _live(client: Client) -> None:
    from rich.console import Console
    from rich.live import Live

    screen = _Screen(client, await _frame_data(client))
    client.transport.on_late = None  # the screen itself says that it is not current
    out = Console(highlight=False)
    reading = asyncio.create_task(screen.read_changes())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, screen.changed.set)  # the terminal has another size
    loop.add_signal_handler(signal.SIGTERM, screen.leave, 128 + signal.SIGTERM)  # otherwise the terminal stays as it is now
    try:
        with Live(console=out, screen=True, auto_refresh=False) as live, keys(screen.press):
            while screen.left is None and not reading.done():
                live.update(draw(out, screen.seen, out.width, out.height, screen.chosen), refresh=True)
                changed = asyncio.create_task(screen.changed.wait())
                await asyncio.wait([changed, reading], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                screen.changed.clear()
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    if not reading.cancelled():
        reading.result()  # raises, for example if the token was revoked
    raise typer.Exit(screen.left or 0)


class _Screen:
    """What the live screen shows, and what the user has typed."""

    def __init__(self, client: Client, seen: dict[str, Any]) -> None:
        self.seen = seen
        self.chosen = Filter()
        self.left: int | None = None  # the exit code, once the user has left
        self.changed = asyncio.Event()
        self._client = client

    async def read_changes(self) -> None:
        from holdfast.client import Unavailable, Unreachable

        from .get import changes

        async for _ in changes(self._client):
            try:
                self.seen = await _frame_data(self._client)
            except (Unreachable, Unavailable) as error:
                self.seen = {**self.seen, "trouble": str(error)}  # shows the last good frame, marked as not current
            self.changed.set()

    def press(self, key: str) -> None:
        text, typing = self.chosen
        if key == ESCAPE:
            self.chosen = Filter()
        elif typing and key == ENTER:
            self.chosen = Filter(text)
        elif typing:
            self.chosen = Filter(text[:-1] if key == DELETE else text + key if key.isprintable() else text, typing)
        elif key == "/":
            self.chosen = Filter(text, typing=True)
        elif key in ("q", "Q"):
            self.leave(0)
        self.changed.set()

    def leave(self, code: int) -> None:
        self.left = code
        self.changed.set()


async def _frame_data(client: Client) -> dict[str, Any]:
    """Returns everything that a frame shows. `duties`, `replicas` and `brake` are None if this token may not read them."""
    from holdfast.client import Denied

    async def read(path: str, **params: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await client.raw("GET", path, params=params))
        return found

    async def items(path: str, **params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await read(path, **params))["items"]
        return found

    async def allowed(reading: Awaitable[Any]) -> Any:
        try:
            return await reading
        except Denied as error:
            if error.status == 401:
                raise
            return None

    reading: dict[str, Awaitable[Any]] = {
        "me": read("/v1/me"),
        "replicas": allowed(items("/v1/replicas")),
        "brake": allowed(read("/v1/brake")),
        "pools": items("/v1/pools", limit=1000),
        "duties": allowed(items("/v1/duties")),
        "waiting": items("/v1/claims", state="waiting", limit=MOST_CLAIMS),
        "assigned": items("/v1/claims", state="assigned", limit=MOST_CLAIMS),
        "active": items("/v1/claims", state="active", limit=MOST_CLAIMS),
        "events": items("/v1/events", limit=MOST_EVENTS, newest=True),
    }
    seen = dict(zip(reading, await asyncio.gather(*reading.values()), strict=True))
    running = seen.pop("assigned") + seen.pop("active")
    return {"at": datetime.now(UTC).isoformat(), **seen, "running": running}
