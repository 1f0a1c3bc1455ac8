"""What all groups of endpoints share: send a request and decode the answer."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from .answers import Page
from .errors import HoldfastError
from .transport import Params, Transport

T = TypeVar("T")
P = TypeVar("P", bound=Page[Any])
LabelFilter = Mapping[str, str | None] | str | None  # {"team": "x", "ci": None}, or the same as text: team=x,ci


class RequestOptions(TypedDict, total=False):
    params: Params | None
    body: Any
    safe: bool | None  # whether the request may be sent again; by default only if it is a GET
    wait: float  # seconds that the server may take before it answers


class Endpoints:
    """A group of endpoints on one transport."""

    transport: Transport

    async def raw(self, method: str, path: str, **options: Unpack[RequestOptions]) -> bytes:
        """Returns the server's JSON as bytes, for callers that pass it on."""
        body, safe = options.get("body"), options.get("safe")
        answer = await self.transport.request(
            method,
            path,
            params=options.get("params"),
            body=None if body is None else msgspec.json.encode(body),
            safe=method == "GET" if safe is None else safe,
            wait=options.get("wait", 0.0),
        )
        return answer.body

    async def ask(self, kind: type[T], method: str, path: str, **options: Unpack[RequestOptions]) -> T:
        answer = await self.raw(method, path, **options)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise HoldfastError(f"{method} {path}: the answer is not one that Holdfast sends: {error}") from error

    async def page(
        self, kind: type[P], path: str, params: Params | None = None, *, cursor: str = "cursor", first: Params | None = None
    ) -> P:
        """Returns a page that can read the pages after it. `cursor` is the name of the parameter that takes the cursor. The
        parameters `first` are not sent for the following pages."""
        params = params or {}
        found = await self.ask(kind, "GET", path, params={**params, **(first or {})})
        return found.followed_by(lambda after: self.page(kind, path, {**params, cursor: after}, cursor=cursor))


def at(*parts: str) -> str:
    """Returns a path below /v1. Parts are quoted, because names come from users and may contain `/`."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def moment(value: str | datetime | None) -> str | None:
    """Returns the moment as the server reads it. A datetime without a zone is in the zone of this machine."""
    return (value if value.tzinfo else value.astimezone()).isoformat() if isinstance(value, datetime) else value


def label_filter(labels: LabelFilter) -> str | None:
    """Returns the filter as the server reads it: `team=x,ci`."""
    if labels is None or isinstance(labels, str):
        return labels
    return ",".join(name if value is None else f"{name}={value}" for name, value in labels.items()) or None
