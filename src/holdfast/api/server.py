"""Uvicorn's HTTP protocol with a limit on the size of a request's head, because the parser itself has none."""

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .problems import ProblemBody

HEAD_LIMIT = 64 * 1024  # bytes of request line and headers; ours are below 2 KB
_BODY = msgspec.json.encode(
    ProblemBody("urn:holdfast:too-large", "Too large", 431, f"the head is larger than {HEAD_LIMIT} bytes", "too-large")
)
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/problem+json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_BODY), _BODY)
)


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose request head grows beyond the limit. This happens before authentication."""

    _head: int | None = 0  # bytes of a head that is not complete yet; None after the head

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > HEAD_LIMIT and not self.transport.is_closing():
                self.transport.write(TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()
