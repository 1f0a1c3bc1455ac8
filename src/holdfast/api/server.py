"""HTTP as uvicorn speaks it, with a bound on a request's head: the parser itself would take one without end."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 64 * 1024  # bytes of request line and headers; ours are below 2 KB
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/problem+json\r\ncontent-length: 124\r\nconnection: close\r\n\r\n"
    b'{"type":"urn:holdfast:too-large","title":"Too large","status":431,'
    b'"detail":"the head is too large","code":"too-large"}'
)


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose request head grows beyond the limit, before anybody is authenticated."""

    _head: int | None = 0  # bytes of a head that is not complete; None: in a body

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
