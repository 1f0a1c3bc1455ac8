"""Follows the history as server-sent events, and resumes after the last event that was received."""

from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime
from typing import TypedDict

import aiohttp

from .endpoints import LabelFilter, at, label_filter, moment
from .transport import Params, Transport

QUIET = 60.0  # seconds without a byte until the connection counts as dead; the server sends a comment every 15 s


class EventOptions(TypedDict, total=False):
    """Filters of events, as keyword arguments. `since` and `until` are a duration such as `10m` (so long ago) or a time; a stream
    takes no `until`. `kind` is a kind such as `claim.ended`, a noun such as `brake`, or several, separated by commas."""

    claim: str | None
    worker: str | None
    pool: str | None
    tenant: str | None
    kind: str | None
    since: str | datetime | None
    until: str | datetime | None
    labels: LabelFilter  # of the event's claim; the value None stands for any value


def event_params(filters: EventOptions) -> Params:
    return {
        "claim": filters.get("claim"),
        "worker": filters.get("worker"),
        "pool": filters.get("pool"),
        "tenant": filters.get("tenant"),
        "kind": filters.get("kind"),
        "since": moment(filters.get("since")),
        "until": moment(filters.get("until")),
        "label": label_filter(filters.get("labels")),
    }


async def watch_events(transport: Transport, after: str | int | None, filters: Params) -> AsyncGenerator[bytes, None]:
    """Yields the data of each event, forever."""
    last = None if after is None else str(after)
    while True:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last is not None else {})
        params = {**filters, "after": last}
        response = await transport.stream(at("events"), params=params, headers=headers, quiet=QUIET)
        async with response:
            try:
                async for name, data in _messages(response.content):
                    last = name or last
                    yield data
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
                origin = str(response.url.origin())
                for url in transport.urls:
                    if url.startswith(origin):
                        transport.switch_from(url)
        await transport.sleep(0.2)  # so that a server that ends its streams at once does not cause a busy loop


async def _messages(content: aiohttp.StreamReader) -> AsyncIterator[tuple[str | None, bytes]]:
    """Yields id and data of each complete message. An incomplete message is dropped, because the server sends it again."""
    name: str | None = None
    data: list[bytes] = []
    while line := await content.readuntil(b"\n"):
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"id":
            name = value.decode()
        elif not field and not value and line in (b"\n", b"\r\n"):
            if data:
                yield name, b"\n".join(data)
            name, data = None, []
