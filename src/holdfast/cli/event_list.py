"""`get events`: the newest events last, the ones before them page by page, or each new one as it happens."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.model.shown import shown

from .connection import CommandFailed, print_message
from .listing import PAGE, SHOWN
from .show import actor, print_json, print_table
from .times import local

if TYPE_CHECKING:
    from holdfast.client import Client


async def show_events(
    client: "Client", params: Mapping[str, Any], *, limit: int | None, cursor: str | None, every: bool, output: str
) -> None:
    """Prints the last events (before the cursor). With `every`, prints all that match, oldest first, a page at a time."""
    filters = {name: value for name, value in params.items() if name != "tail"}
    if every:
        await _every(client, filters, output)
        return
    found = await _newest(client, filters, _number(params, limit) or SHOWN, cursor)
    if output == "json":
        print_json(found)
        return
    print_table("events", found["items"], wide=output == "wide")
    if found.get("previous"):
        print_message(f"there are earlier events: --cursor {found['previous']} shows them, --all shows every one")


def _number(params: Mapping[str, Any], limit: int | None) -> int | None:
    tail = params.get("tail")
    if tail is not None and limit is not None:
        raise CommandFailed("--tail and --limit mean the same for events; give only one of them", 2)
    return tail if tail is not None else limit


async def _newest(client: "Client", filters: Mapping[str, Any], number: int, cursor: str | None) -> dict[str, Any]:
    """Returns the last events as one page, also if the server needs several pages for them."""
    found: dict[str, Any] = {"items": [], "next": None, "previous": cursor}
    first = True
    while (first or found["previous"]) and len(found["items"]) < number:
        size = min(number - len(found["items"]), PAGE)
        place = {"before": found["previous"]} if found["previous"] else {"newest": True}
        page = json.loads(await client.raw("GET", "/v1/events", params={**filters, **place, "limit": size}))
        after = page["next"] if first else found["next"]
        found = {"items": page["items"] + found["items"], "next": after, "previous": page.get("previous")}
        first = False
    return found


async def _every(client: "Client", filters: Mapping[str, Any], output: str) -> None:
    after, shown = None, 0
    while True:
        page = json.loads(await client.raw("GET", "/v1/events", params={**filters, "after": after, "limit": PAGE}))
        for event in page["items"]:
            print_event(event, output)
        shown += len(page["items"])
        if len(page["items"]) < PAGE:
            if not shown:
                print_message("no events")
            return
        after = page["next"]


async def follow_events(client: "Client", params: Mapping[str, Any], limit: int | None, output: str) -> None:
    """Prints the last events and then each new one, one line per event."""
    from holdfast.client.events import watch_events

    filters = {name: value for name, value in params.items() if name != "tail"}
    known = (await _newest(client, filters, _number(params, limit) or SHOWN, None))["items"]
    for event in known:
        print_event(event, output)
    async for data in watch_events(client.transport, known[-1]["id"] if known else None, filters):
        print_event(json.loads(data), output)


def print_event(event: Mapping[str, Any], output: str) -> None:
    if output == "json":
        print_json(event, indent=None)
        return
    about = " ".join(str(event[name]) for name in ("pool", "worker", "claim") if event.get(name))
    kind, reason, by = event.get("kind", ""), event.get("reason") or "", actor(event)
    print(shown(f"{local(event.get('at'))}  {kind:<18} {about}  {reason}{f'  (by {by})' if by else ''}"), flush=True)
