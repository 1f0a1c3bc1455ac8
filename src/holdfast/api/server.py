"""Uvicorn's HTTP protocol with bounds on size and time, because its parser has none (decision 0024)."""

import asyncio
from enum import Enum, auto
from typing import Any

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .door import Door, address_of
from .problems import ProblemBody

HEAD_LIMIT = 64 * 1024  # bytes of request line and headers; ours are below 2 KB
MOST_HEADERS = 100  # because a header of 4 bytes takes 200 bytes of memory
FRAMING_LIMIT = 64 * 1024  # bytes of chunk sizes, chunk extensions and trailers
FRAMING_PER_BYTE = 8  # a chunk of a single byte is framed by 5 bytes
PIECE = 16 * 1024  # bytes that are parsed before the next look at the limits; one read may have 256 KB

HEAD_SECONDS = 10.0  # from the connection's start, or from the first byte of a later head
BODY_SECONDS = 30.0  # from the end of the head
ANSWER_SECONDS = 60.0  # for a stranger, who may not read the answer
NEXT_SECONDS = 10.0  # between two requests of a stranger
KNOWN_NEXT_SECONDS = 75.0  # between two requests with a valid token; the SDK keeps idle connections for 4 s
CLOSE_SECONDS = 5.0  # for the client to read the last answer

FOREVER = float("inf")


class Waits(Enum):
    """What a connection waits for. Each has its own time limit."""

    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    NEXT = auto()  # the next request
    CLOSE = auto()


def refusal(status: int, phrase: str, code: str, title: str, detail: str) -> bytes:
    """Returns a whole answer for a request that the routes never see."""
    body = msgspec.json.encode(ProblemBody(f"urn:holdfast:{code}", title, status, detail, code))
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body


TOO_LARGE = refusal(
    431,
    "Request Header Fields Too Large",
    "too-large",
    "Too large",
    f"the head, or the chunk framing and trailers, are larger than {HEAD_LIMIT} bytes or have over {MOST_HEADERS} headers",
)
MALFORMED = refusal(400, "Bad Request", "malformed", "Bad request", "the request is not valid HTTP/1.1")
TOO_SLOW = refusal(408, "Request Timeout", "too-slow", "Too slow", "the request took too long to arrive; send it again")


class _TooLarge(Exception):
    pass


class _TooEarly(Exception):
    """Another request arrived before the answer to the previous one was complete."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. The application has its `Door` in `app.state.door`, and calls `authenticated` through the request's scope
    under the key `holdfast.connection`."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address, self.deadline, self.held = "", FOREVER, 0
        self._door: Door = config.app.state.door  # type: ignore[union-attr]
        self._known = False
        self._waits = Waits.HEAD
        self._in_head = True
        self._head = self._body = self._framing = 0  # bytes of this request
        self._deaf = False  # what arrives now is ignored

    def authenticated(self, tenant: str | None) -> bool:
        """Notes that a request on this connection had a valid token. Returns False if its tenant has too many connections."""
        if not self._door.know(self, tenant):
            return False
        if not self._known:
            self._known = True
            if self._waits is Waits.ANSWER:
                self.deadline = FOREVER
        return True

    @property
    def idle(self) -> bool:
        return self._waits is Waits.NEXT and self.transport.get_write_buffer_size() == 0

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = address_of(transport.get_extra_info("peername"))
        self._wait_for(Waits.HEAD)
        self._door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            if self._deaf or self.transport.is_closing():
                return
            self._parse(data if len(data) <= PIECE else data[start : start + PIECE])

    def _parse(self, piece: bytes) -> None:
        body = self._body
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._deaf = True  # no protocol but HTTP/1.1 is served; the request is answered as if it had not asked for one
            if self.cycle is not None:
                self.cycle.keep_alive = False
            return
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _TooEarly):
                self._deaf = True
                self.cycle.keep_alive = False
            else:
                self._refuse(TOO_LARGE if isinstance(error.__context__, _TooLarge) else MALFORMED, "malformed")
            return
        self._framing += len(piece) - (self._body - body)
        most = HEAD_LIMIT if self._in_head else HEAD_LIMIT + FRAMING_LIMIT + FRAMING_PER_BYTE * self._body
        if self._framing > most:
            self._refuse(TOO_LARGE, "malformed")
        elif not self._known:
            answered = self.cycle is not None and self.cycle.response_complete and not self._in_head
            self._door.hold(self, 0 if answered else self._framing + self._body)

    # What the parser calls. An exception stops it.

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            raise _TooEarly
        self._in_head, self._head, self._body, self._framing = True, 0, 0, 0
        if self._waits is Waits.NEXT:
            self._wait_for(Waits.HEAD)
        super().on_message_begin()
        self.scope["holdfast.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer; it must not be taken for a header, because the headers have been checked
        self._count_head(len(name) + len(value) + 4)
        if len(self.headers) >= MOST_HEADERS:
            raise _TooLarge
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._head += size
        if self._head > HEAD_LIMIT:
            raise _TooLarge

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head = False
        self._wait_for(Waits.BODY)

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._wait_for(Waits.NEXT if self.cycle.response_complete else Waits.ANSWER)

    # What the answer calls

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.cycle.body = bytearray()  # what the route did not read
        self._door.hold(self, 0)
        if self.transport.is_closing():
            self._wait_for(Waits.CLOSE)
            return
        self.flow.resume_reading()
        if self._waits is not Waits.BODY:  # the rest of the body is ignored, but it must arrive in time
            self._wait_for(Waits.NEXT)

    # Ends

    def _wait_for(self, what: Waits) -> None:
        self._waits = what
        seconds = {
            Waits.HEAD: HEAD_SECONDS,
            Waits.BODY: BODY_SECONDS,
            Waits.ANSWER: FOREVER if self._known else ANSWER_SECONDS,
            Waits.NEXT: KNOWN_NEXT_SECONDS if self._known else NEXT_SECONDS,
            Waits.CLOSE: CLOSE_SECONDS,
        }[what]
        self.deadline = self.loop.time() + seconds

    def expire(self) -> str | None:
        """Ends the connection after its time is over, and returns the reason unless it was only idle."""
        waited = self._waits
        if waited is Waits.CLOSE or waited is Waits.ANSWER:
            self.abort()
            return "unread"
        if waited is Waits.NEXT:
            self._close()
            return None
        begun = self._head > 0 or self._framing > 0
        self._refuse(TOO_SLOW if begun else b"", None)
        return "slow"

    def _refuse(self, answer: bytes, reason: str | None) -> None:
        """Sends an answer if none has begun, and closes the connection."""
        if self._in_head or not self.cycle.response_started:
            self.transport.write(answer)
        if reason is not None:
            self._door.count(reason)
        self._close()

    def _close(self) -> None:
        self._deaf = True
        self.transport.close()
        self._wait_for(Waits.CLOSE)

    def abort(self) -> None:
        self.transport.abort()
        self.deadline = FOREVER

    def shutdown(self) -> None:
        """Ends the connection when the replica stops: now if it is idle, otherwise after the answer."""
        super().shutdown()
        if self.transport.is_closing():
            self._wait_for(Waits.CLOSE)
