"""A keep-alive connection that sends one small request at a time. It does as little as it can, because it shares the cores."""

import asyncio
import json
from typing import Any, cast


class Line(asyncio.Protocol):
    """One connection to a replica. `call` must not be used by two tasks at the same time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    async def call(self, path: str, token: str, body: dict[str, Any] | None, method: str = "POST") -> tuple[int, Any]:
        """Returns status and decoded body of the answer. Raises ConnectionError if the replica closed the connection."""
        loop = asyncio.get_running_loop()
        if self._transport is None:
            await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        assert self._transport is not None
        content = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self._port}",
            f"Authorization: Bearer {token}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        ]
        self._answer = loop.create_future()
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + content)
        status, raw = await self._answer
        return status, json.loads(raw) if raw else None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0]  # an answer 204 has none
        if len(body) < int(length or 0):
            return
        self._buffer = b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the replica closed the connection"))
