"""`get`: prints lists and single things, once or with `--watch` after every change."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .completion import name_of_noun, names_of, one_of, state_of_noun
from .connection import CommandFailed, not_empty, print_message, with_client
from .event_list import follow_events, show_events
from .listing import NOUNS, SHOWN, noun_of, read, request
from .show import print_json, print_table

if TYPE_CHECKING:
    from holdfast.client import Client

Output = Annotated[
    Literal["table", "wide", "json", "yaml"],
    typer.Option(
        "--output",
        "-o",
        help="A table that fits the terminal or has all columns, the server's JSON, or YAML that `apply` takes back.",
    ),
]
SETTLE = 0.2  # seconds in which a burst of events becomes one refresh
BACKSTOP = 5.0  # seconds; without an event the list is read this often, because not every change is an event


def register(app: typer.Typer) -> None:
    app.command()(get)


def get(
    context: typer.Context,
    noun: Annotated[
        str, typer.Argument(help=f"What to list: {', '.join(NOUNS)}.", metavar="NOUN", autocompletion=one_of(*NOUNS))
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="The name or id of one; for events, of the pool, worker or claim they are about.",
            autocompletion=name_of_noun,
            callback=not_empty,
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="Only of this pool (workers, claims, events).", autocompletion=names_of("pools"))
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only of this tenant (workers, claims, events).", autocompletion=names_of("tenants"))
    ] = None,
    state: Annotated[str | None, typer.Option(help="Only in this state (workers, claims).", autocompletion=state_of_noun)] = None,
    outcome: Annotated[str | None, typer.Option(help="Only with this outcome (claims).")] = None,
    key: Annotated[str | None, typer.Option(help="Only the claim that this key names (claims).")] = None,
    worker: Annotated[str | None, typer.Option(help="Only of this worker (claims, events).")] = None,
    kind: Annotated[str | None, typer.Option(help="Only of these kinds, such as claim.ended,brake (events).")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only since then: 10m means ten minutes ago; or a time (workers, claims, events).")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", "-l", help="Only of claims with these labels, such as team=x,ci (claims, events).")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only until then: 5m ago, or a time (events).")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help=f"The last so many, {SHOWN} by default (events).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help=f"How many to show at most, {SHOWN} by default.")] = None,
    cursor: Annotated[
        str | None, typer.Option(help="Continue where an earlier list ended, with the cursor that it printed.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all, however many there are.")] = False,
    output: Output = "table",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print again whenever something changes.")] = False,
) -> None:
    """List pools, workers, claims, tenants, events and more.

    Example: holdfast get claims --pool linux --state waiting -w
    """
    noun = noun_of(noun)
    filters = {"pool": pool, "tenant": tenant, "state": state, "outcome": outcome, "key": key, "worker": worker}
    path, params = request(noun, name, {**filters, "label": label, "kind": kind, "since": since, "until": until, "tail": tail})
    _check_paging(limit, cursor, every, watch, until)
    if output == "yaml" and (noun not in ("pools", "tenants") or watch):
        raise CommandFailed("-o yaml prints pools and tenants, once; use -o json for other things and with --watch", 2)

    async def call(client: "Client") -> None:
        if noun == "events":
            if watch:
                await follow_events(client, params, limit, output)
            else:
                await show_events(client, params, limit=limit, cursor=cursor, every=every, output=output)
        elif watch:
            await _refresh(client, noun, path, {**params, **({"limit": limit or SHOWN} if name is None else {})}, output)
        else:
            await _show(client, noun, path, params, limit, cursor, every, output)

    try:
        with_client(context, call)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _check_paging(limit: int | None, cursor: str | None, every: bool, watch: bool, until: str | None) -> None:
    if every and (limit is not None or cursor is not None):
        raise CommandFailed("--all shows everything from the beginning; leave out --limit and --cursor", 2)
    if watch and (every or cursor is not None or until is not None):
        raise CommandFailed("--watch shows what happens from now on; leave out --all, --cursor and --until", 2)


async def _show(
    client: "Client",
    noun: str,
    path: str,
    params: dict[str, Any],
    limit: int | None,
    cursor: str | None,
    every: bool,
    output: str,
) -> None:
    if path != f"/v1/{noun}":  # one thing, not a list
        found = json.loads(await client.raw("GET", path))
    else:
        found = await read(client, path, {**params, "cursor": cursor}, None if every else limit or SHOWN)
    if output == "json":
        print_json(found)
        return
    rows = found.get("items", [found])
    if output == "yaml":
        from .as_yaml import documents

        print(documents(noun, rows, listed="items" in found), end="")
    else:
        print_table(noun, rows, wide=output == "wide")
    if found.get("next"):
        print_message(f"there are more: --cursor {found['next']!s} shows the next, --all shows every one")


async def _refresh(client: "Client", noun: str, path: str, params: dict[str, Any], output: str) -> None:
    shown: object = None
    async for _ in changes(client):
        body = await client.raw("GET", path, params=params)
        if (found := json.loads(body)) == shown:
            continue
        if output == "json":
            print_json(found, indent=None)
        else:
            if shown is not None:
                print(flush=True)
            print_table(noun, found.get("items", [found]))
        shown = found


async def changes(client: "Client") -> AsyncIterator[None]:
    """Yields at once, then after every burst of events, and at least every BACKSTOP seconds."""
    changed = asyncio.Event()

    async def listen() -> None:
        known = await client.list_events(newest=True, limit=1)  # only later events are changes
        async for _ in client.watch_events(after=known.items[-1].id if known.items else None):
            changed.set()

    listening = asyncio.create_task(listen())  # if it fails, the backstop still refreshes
    try:
        while True:
            yield
            try:
                await asyncio.wait_for(changed.wait(), BACKSTOP)
            except TimeoutError:
                continue
            await asyncio.sleep(SETTLE)
            changed.clear()
    finally:
        listening.cancel()
        await asyncio.wait([listening])
        if not listening.cancelled():
            listening.exception()  # marks it as retrieved; the refresh itself reports an unreachable server
