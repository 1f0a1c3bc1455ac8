"""`get`: prints lists and single things, once or with `--watch` after every change."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from .completion import name_of_noun, names_of, state_of_noun
from .connection import CommandFailed, print_message, with_client
from .show import print_json, print_table
from .times import local

if TYPE_CHECKING:
    from holdfast.client import Client

Noun = Literal["pools", "workers", "claims", "tenants", "duties", "replicas", "events"]
ALONE = ("pools", "workers", "claims", "tenants")  # those with an endpoint for a single item
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
    noun: Annotated[Noun, typer.Argument(help="What to list.")],
    name: Annotated[
        str | None,
        typer.Argument(
            help="The name or id of one; for events, of the pool, worker or claim they are about.", autocompletion=name_of_noun
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="Only of this pool (workers, claims, events).", autocompletion=names_of("pools"))
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant (claims).", autocompletion=names_of("tenants"))] = None,
    state: Annotated[str | None, typer.Option(help="Only in this state (workers, claims).", autocompletion=state_of_noun)] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many to show at most.")] = 100,
    output: Output = "table",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print again whenever something changes.")] = False,
) -> None:
    """List pools, workers, claims, tenants, duties, replicas or events.

    Example: holdfast get claims --pool linux --state waiting -w
    """
    path, params = _path_and_params(noun, name, pool, tenant, state, limit)
    if output == "yaml" and (noun not in ("pools", "tenants") or watch):
        raise CommandFailed("-o yaml prints pools and tenants, once; use -o json for other things and with --watch", 2)

    async def call(client: "Client") -> None:
        if not watch:
            _print(noun, limit, await client.raw("GET", path, params=params), output)
        elif noun == "events":
            await _follow(client, params, output)
        else:
            await _refresh(client, noun, path, params, output)

    try:
        with_client(context, call)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _path_and_params(
    noun: str, name: str | None, pool: str | None, tenant: str | None, state: str | None, limit: int
) -> tuple[str, dict[str, Any]]:
    params: dict[str, Any] = {"limit": limit}
    allowed = {"workers": {"pool", "state"}, "claims": {"pool", "tenant", "state"}, "events": {"pool"}}
    for field, value in (("pool", pool), ("tenant", tenant), ("state", state)):
        if value is not None and field not in allowed.get(noun, set()):
            raise CommandFailed(f"--{field} does not go with {noun}", 2)
        params[field] = value
    if name is None:
        return f"/v1/{noun}", params
    if noun in ALONE:
        return f"/v1/{noun}/{quote(name, safe='')}", {}
    if noun == "events":
        kind = {"c": "claim", "w": "worker"}.get(name.split("-")[0], "pool")
        return "/v1/events", {**params, kind: name}
    raise CommandFailed(f"{noun} have no name: `holdfast get {noun}` shows all", 2)


def _rows(body: bytes) -> list[dict[str, Any]]:
    found = json.loads(body)
    rows: list[dict[str, Any]] = found.get("items", [found])
    return rows


def _print(noun: str, limit: int, body: bytes, output: str) -> None:
    if output == "json":
        print_json(body)
        return
    if output == "yaml":
        from .as_yaml import documents

        print(documents(noun, _rows(body), listed="items" in json.loads(body)), end="")
    else:
        print_table(noun, _rows(body), wide=output == "wide")
    if (found := json.loads(body)).get("next") and len(found["items"]) >= limit:  # events always have a next
        print_message("there are more: raise --limit, or narrow it down")


async def _follow(client: "Client", params: dict[str, Any], output: str) -> None:
    """Prints the last events and then each new one, one line per event."""
    from holdfast.client.events import watch_events

    filters = {name: params.get(name) for name in ("claim", "worker", "pool")}
    recent = {**filters, "limit": params["limit"], "newest": True}
    known = json.loads(await client.raw("GET", "/v1/events", params=recent))["items"]
    for event in known:
        _print_event(event, output)
    after = known[-1]["id"] if known else None
    async for data in watch_events(client.transport, after, filters):
        _print_event(json.loads(data), output)


def _print_event(event: dict[str, Any], output: str) -> None:
    if output == "json":
        print_json(event, indent=None)
        return
    about = " ".join(str(event[name]) for name in ("pool", "worker", "claim") if event.get(name))
    kind, reason = event.get("kind", ""), event.get("reason") or ""
    print(f"{local(event.get('at'))}  {kind:<18} {about}  {reason}", flush=True)


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
            print_table(noun, _rows(body), wide=output == "wide")
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
