"""Send JSON to a replica and read its answer, by HTTP/1.1 over connections that are reused.

With the servers' public key, the client sends its token only over a connection whose server has proven itself, and returns only
answers that carry a proof (decision 0021).
"""

import asyncio
import secrets
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import h11
import msgspec

from ..unix_socket import check_private, to_path
from .messages import ErrorBody

if TYPE_CHECKING:
    from ..proof import PublicKey

CONNECT_SECONDS = 5.0  # a replica whose node is gone does not answer, so the next replica is tried soon
ANSWER_BYTES = 8 * 1024 * 1024  # an assignment is at most a 64 KB request, so a longer answer is not from a Holdfast server
IDLE_CONNECTIONS = 4  # the open poll, and calls at the same time


class Unreachable(Exception):
    """There was no answer. The server may have processed the request, so only requests that are safe to repeat are sent here."""


class Impostor(Unreachable):
    """The process that answered could not prove that it is a server of this installation. Its answer is ignored."""


class HttpResponse(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    retry_after: float = 0
    proof: str = ""

    @property
    def code(self) -> str:
        """Returns the error code of the answer. The agent decides by this code and the status."""
        try:
            return msgspec.json.decode(self.body, type=ErrorBody).code
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""


class HttpClient:
    """Keeps connections to the replicas open between calls, so that a hand-over does not wait for a handshake."""

    def __init__(self, server_key: "PublicKey | None" = None) -> None:
        self._server_key = server_key
        self._idle: dict[str, list[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def post(self, server: str, path: str, token: str, body: bytes, timeout: float) -> HttpResponse:
        """Sends the request and returns the answer. Raises Unreachable, or Impostor."""
        try:
            async with asyncio.timeout(timeout):
                while kept := self._kept(server):
                    try:
                        return await self._ask(kept, server, path, f"Bearer {token}", body)
                    except Impostor:
                        raise
                    except Unreachable:
                        continue  # a server may close an idle connection at any time, so try another connection
                connection = await self._connect(server)
                if self._server_key is not None:
                    await self._greet(connection, server)
                return await self._ask(connection, server, path, f"Bearer {token}", body)
        except TimeoutError:
            raise Unreachable(f"no answer within {timeout:g} s") from None

    def _kept(self, server: str) -> "_Connection | None":
        idle = self._idle.get(server, [])
        while idle:
            connection = idle.pop()
            if connection.good():
                return connection
            connection.drop()
        return None

    async def _connect(self, server: str) -> "_Connection":
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return _Connection(*await self._open(server))
        except OSError as error:  # a TimeoutError and a TLS failure are OSErrors too
            raise Unreachable(f"cannot connect: {str(error) or type(error).__name__}") from None

    async def _open(self, server: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if (socket := to_path(server)) is not None:
            check_private(socket.parent)
            return await asyncio.open_unix_connection(socket)
        parts = urlsplit(server)
        tls = parts.scheme == "https"
        if tls and self._tls is None:
            self._tls = ssl.create_default_context()
        port = parts.port or (443 if tls else 80)
        return await asyncio.open_connection(parts.hostname, port, ssl=self._tls if tls else None)

    async def _greet(self, connection: "_Connection", server: str) -> None:
        """Lets the server of a new connection prove itself before it gets a token. The server refuses a request without a token,
        and the proof is on that answer."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._exchange(connection, server, "/v1/worker/register", "", b"")
        except TimeoutError:
            connection.drop()
            raise Unreachable(f"no proof within {CONNECT_SECONDS:g} s") from None  # a paused replica does not answer either
        if not connection.reusable():
            connection.drop()
            raise Unreachable("the server closed the connection after its proof")

    async def _ask(self, connection: "_Connection", server: str, path: str, token: str, body: bytes) -> HttpResponse:
        answer = await self._exchange(connection, server, path, token, body)
        idle = self._idle.setdefault(server, [])
        if connection.reusable() and len(idle) < IDLE_CONNECTIONS:
            idle.append(connection)
        else:
            connection.drop()
        return answer

    async def _exchange(self, connection: "_Connection", server: str, path: str, token: str, body: bytes) -> HttpResponse:
        """Sends one request and returns its answer, if that carries the proof that this client asks for."""
        parts, nonce = urlsplit(server), secrets.token_urlsafe(18)
        over_tcp = parts.scheme != "unix"
        headers = [
            ("Host", parts.netloc.rpartition("@")[2] if over_tcp else "holdfast"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            *([("Authorization", token)] if token else []),
            *([("Holdfast-Nonce", nonce)] if self._server_key is not None else []),
        ]
        request = h11.Request(method="POST", target=(parts.path if over_tcp else "") + path, headers=headers)
        try:
            answer = await connection.ask(request, body)
        except (OSError, h11.ProtocolError, ValueError) as error:  # h11 treats the end of the stream as a ProtocolError
            connection.drop()
            raise Unreachable(f"connection failed: {type(error).__name__}") from None
        except BaseException:
            connection.drop()  # cancelled in the middle: its late answer would be read as that of the next request
            raise
        key = self._server_key
        if key is not None and not key.verify(answer.proof, nonce, path, token, answer.status, answer.body):
            connection.drop()
            raise Impostor("its answer has a wrong proof" if answer.proof else "its answer has no proof")
        return answer

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.drop()
        self._idle.clear()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)

    def good(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def reusable(self) -> bool:
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def drop(self) -> None:
        self._writer.transport.abort()

    async def ask(self, request: h11.Request, body: bytes) -> HttpResponse:
        sent = [self._http.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage())]
        self._writer.write(b"".join(piece for piece in sent if piece))  # sent while the answer is awaited
        status, wait, proof, got = 0, 0.0, "", bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(65_536))
            elif isinstance(event, h11.Response):
                status, wait, proof = event.status_code, _retry_after(event), _header(event, b"holdfast-proof")
            elif isinstance(event, h11.Data):
                got += event.data
                if len(got) > ANSWER_BYTES:
                    raise ValueError("the answer is too long")
            elif isinstance(event, h11.EndOfMessage):
                return HttpResponse(status, bytes(got), wait, proof)


def _retry_after(response: h11.Response) -> float:
    value = _header(response, b"retry-after")
    return float(value) if value.isdigit() else 0.0  # it may also be a date; the agent's own backoff is enough then


def _header(response: h11.Response, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in response.headers if name == wanted), "")
