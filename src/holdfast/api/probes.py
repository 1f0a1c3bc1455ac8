"""A port for kubelets, which cannot send a token. It serves two paths and answers only with a status code
(docs/decisions/0012)."""

import asyncio
import contextlib
from collections.abc import Callable

import h11

HEAD_SECONDS = 5.0  # for the whole request, because a kubelet sends it at once
HEAD_BYTES = 8 * 1024
BACKLOG = 1024  # connections that are not accepted yet; a probe behind a full queue would wait for a second
MOST_CONNECTIONS = 64  # for a new one, the oldest is closed, so that idle connections cannot make a probe fail
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


class Probes:
    """Answers `GET /healthz` with 200 because the event loop runs, and `GET /readyz` with 200 or 503 by calling `ready`. Any
    other request gets 404."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # in the order of their arrival

    async def listen(self, host: str, port: int) -> int:
        """Starts to listen, and returns the port."""
        self._server = await asyncio.start_server(self._serve_connection, host, port, backlog=BACKLOG)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(HEAD_SECONDS):
                    status = self._status(await _request(reader))
                    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    writer.write(head.encode())
                    await writer.drain()
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _status(self, request: h11.Request | None) -> int:
        if request is None:
            return 400
        path = request.target.partition(b"?")[0]
        if request.method != b"GET" or path not in (b"/healthz", b"/readyz"):
            return 404
        return 200 if path == b"/healthz" or self._ready() else 503


async def _request(reader: asyncio.StreamReader) -> h11.Request | None:
    """Returns the head of one request, or None if it is not valid HTTP."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    while True:
        try:
            event = http.next_event()
        except h11.RemoteProtocolError:
            return None
        if event is not h11.NEED_DATA:
            return event if isinstance(event, h11.Request) else None
        http.receive_data(await reader.read(HEAD_BYTES))
