"""What all groups of endpoints share: send a request and decode the answer."""

from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from .errors import HoldfastError
from .transport import Params, Transport

T = TypeVar("T")


class Endpoints:
    """A group of endpoints on one transport."""

    transport: Transport

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        safe: bool | None = None,
        wait: float = 0.0,
    ) -> bytes:
        """Returns the server's JSON as bytes, for callers that pass it on."""
        answer = await self.transport.request(
            method,
            path,
            params=params,
            body=None if body is None else msgspec.json.encode(body),
            safe=method == "GET" if safe is None else safe,
            wait=wait,
        )
        return answer.body

    async def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        safe: bool | None = None,
        wait: float = 0.0,
    ) -> T:
        answer = await self.raw(method, path, params=params, body=body, safe=safe, wait=wait)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise HoldfastError(f"{method} {path}: the answer is not one that Holdfast sends: {error}") from error


def at(*parts: str) -> str:
    """Returns a path below /v1. Parts are quoted, because names come from users and may contain `/`."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)
