"""The HTTP/1.1 rules of the proxy: which credentials and cookies a request shows, and which headers must not be forwarded."""

import asyncio
from typing import cast
from urllib.parse import unquote_to_bytes

import h11
import msgspec

HEAD_BYTES = 64 * 1024
PARAMETER = b"holdfast_credential="
COOKIE_PREFIX = b"holdfast_session_"
# These headers concern one hop, so they are not forwarded. Headers that Connection names are added to them.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)
NEVER_NAMED = frozenset((b"host", b"content-length", b"transfer-encoding"))  # without these a body would end at another place

Headers = list[tuple[bytes, bytes]]


class Presented(msgspec.Struct):
    """The credentials and cookies that a request shows, and those of them that are valid."""

    credentials: list[bytes]
    named: list[tuple[bytes, bytes]] = []  # names and values of all cookies
    in_query: bool = False
    matching: list[bytes] = []
    cookies: list[bytes] = []  # the valid values


class Peer:
    """One end of the proxy: a stream and the state of its HTTP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, role: type) -> None:
        self.reader, self.writer = reader, writer
        self.http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)

    async def next(self) -> "h11.Event":
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return cast("h11.Event", event)  # or PAUSED, which no caller checks for
            self.http.receive_data(await self.reader.read(65_536))

    async def more(self) -> bool:
        """Reads the next bytes without parsing them. Returns False at the end of the stream."""
        data = await self.reader.read(65_536)
        self.http.receive_data(data)
        return bool(data)

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
        await self.writer.drain()

    async def refuse(self, status: int, code: str, detail: str) -> None:
        """Answers with an error in JSON, and closes the connection."""
        headers = [(b"Content-Type", b"application/problem+json")]
        if status == 401:
            headers.append((b"WWW-Authenticate", b'Bearer realm="holdfast"'))
        if status == 503:
            headers.append((b"Retry-After", b"5"))
        await self.answer(status, headers, msgspec.json.encode({"status": status, "code": code, "detail": detail}))

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Answers by itself, and closes the connection."""
        headers = [*headers, (b"Content-Length", str(len(body)).encode()), (b"Connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            await self.send(event)


def presented(request: h11.Request) -> Presented:
    """Returns the credentials in the headers and in the query of the request, and its cookies."""
    shown, named = [], []
    names = (b"authorization", b"proxy-authorization") if request.method == b"CONNECT" else (b"authorization",)
    for name, value in request.headers:
        if name in names and (bearer := _bearer(value)):
            shown.append(bearer)
        if name == b"cookie":
            pairs = (piece.partition(b"=") for piece in value.split(b";"))
            named += [(key.strip(), text.strip()) for key, _, text in pairs]
    query = request.target.partition(b"?")[2]
    in_query = [unquote_to_bytes(piece[len(PARAMETER) :]) for piece in query.split(b"&") if piece.startswith(PARAMETER)]
    return Presented([each for each in (*shown, *in_query) if each], named, any(in_query))


def bad_request(request: h11.Request, tunnel: bytes) -> str:
    """Returns why the request cannot be forwarded, or an empty text if it can."""
    if request.method == b"CONNECT":
        return "" if request.target == tunnel else f"the only tunnel is to {tunnel.decode()}"
    if not request.target.startswith(b"/") and request.target != b"*":
        return "the target must be a path"
    names = [name for name, _ in request.headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        return "Content-Length and Transfer-Encoding contradict each other"
    if b"host" not in names:
        return "the request has no Host header"  # HTTP/1.0 needs none, but the served process gets HTTP/1.1
    if names.count(b"host") > 1:
        return "more than one Host"
    if NEVER_NAMED & _named(request):
        return "Connection names a header that frames the request"
    return ""


def request_headers(request: h11.Request, shown: Presented) -> tuple[bytes, Headers]:
    """Returns target and headers for the served process. The credential is removed from all of them."""
    drop = HOP_BY_HOP | _named(request)
    headers = []
    for name, value in request.headers.raw_items():
        if name.lower() == b"cookie":
            value = _foreign_cookies(value)
            if not value:
                continue
        # A browser sends the page's address, including its query, as Referer.
        secret = PARAMETER in value or any(each in value for each in (*shown.matching, *shown.cookies))
        if name.lower() not in drop and not secret:
            headers.append((name, value))
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        headers.append((b"Transfer-Encoding", b"chunked"))  # the only encoding that h11 supports
    if wants_websocket(request):
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    else:
        headers.append((b"Connection", b"close"))
    return without_credential(request.target), headers


def without_credential(target: bytes) -> bytes:
    path, question_mark, query = target.partition(b"?")
    pieces = [piece for piece in query.split(b"&") if not piece.startswith(PARAMETER)]
    return path + (question_mark + b"&".join(pieces) if pieces and query else b"")


def _foreign_cookies(value: bytes) -> bytes:
    """Returns the cookies that are not Holdfast's, as they were. Those of other sessions are removed too, because a browser sends
    them to every port of the host."""
    return b";".join(piece for piece in value.split(b";") if not _is_ours(piece)).strip()


def _is_ours(cookie: bytes) -> bool:
    """Returns whether the cookie has a name of ours. A browser sends a cookie without a name as its value only, so `=name=value`
    has this name too."""
    return cookie.lstrip(b" \t=").lower().startswith(COOKIE_PREFIX)


def answer_headers(answer: "h11.Response | h11.InformationalResponse", upgrade: bool = False) -> Headers:
    """Returns an answer's headers for the client. h11 adds the headers for framing."""
    drop = HOP_BY_HOP | _named(answer)
    kept = [
        (name, value)
        for name, value in answer.headers.raw_items()
        if name.lower() not in drop and not (name.lower() == b"set-cookie" and _is_ours(value))
    ]
    if upgrade:
        kept += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    return kept


def _named(message: "h11.Request | h11.Response | h11.InformationalResponse") -> set[bytes]:
    """Returns the names of the headers that Connection declares as hop-by-hop."""
    return {token.strip().lower() for name, value in message.headers if name == b"connection" for token in value.split(b",")}


def wants_websocket(request: h11.Request) -> bool:
    """Returns whether the request asks for a WebSocket. Other upgrades are forwarded as plain requests."""
    upgrades = [value.strip().lower() for name, value in request.headers if name == b"upgrade"]
    return upgrades == [b"websocket"] and b"upgrade" in _named(request)


def _bearer(value: bytes) -> bytes:
    scheme, _, credential = value.partition(b" ")
    return credential.strip() if scheme.lower() == b"bearer" else b""
