"""Guard a served port: forward requests with the active claim's credential, and cut all connections when the claim ends.

Each request is checked, also on a connection that carried a valid request before. h11 parses and frames bodies again on both
sides, so that the client and the served process cannot disagree about where a request ends.
"""

import asyncio
import contextlib
import hashlib
import hmac
import socket
import struct

import h11

from .log import log
from .proxy_headers import Peer, Presented, answer_headers, bad_request, presented, request_headers
from .tasks import first_of, settle

MOST_CONNECTIONS = 480  # 2 descriptors each, below the usual limit of 1024
HEAD_SECONDS = 60.0  # for the head of a request, including the time since the last request
DECIDED_SECONDS = 60.0  # a request waits this long for the answer to the acknowledgement, then gets 503 with Retry-After
LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024
CONNECT_SECONDS = 5.0
TUNNEL = b"holdfast:0"
ABORT = struct.pack("ii", 1, 0)  # SO_LINGER 0 sends a reset, so that no client mistakes the cut for the end of an answer


class Proxy:
    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._digest: bytes | None = None  # of the active claim's credential; the credential itself is not stored
        self._expected: bytes | None = None  # of the last credential that was acknowledged; `_decided` is set after the answer
        self._decided = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Starts to listen, and returns the port."""
        self._server = await asyncio.start_server(self._accept, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def expect(self, credential: str) -> None:
        """Makes requests with this credential wait. The holder may learn of the worker before the agent knows that its
        acknowledgement was accepted."""
        self._expected = _digest(credential.encode())
        self._decided.clear()

    def open(self, credential: str) -> None:
        assert self._digest is None, "the last claim's credential is still open"
        self._digest = _digest(credential.encode())
        self._decided.set()

    def close(self) -> None:
        """Ends the claim's access: the credential becomes invalid, and every connection is cut at once."""
        self._digest = None
        self._decided.set()
        for writer in list(self._writers):
            _abort(writer)  # now, and not when its task runs next
        for task in list(self._tasks):
            task.cancel()

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.close()

    # One connection

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MOST_CONNECTIONS:
            _abort(writer)
            return
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve_connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Peer(reader, writer, h11.SERVER)
        try:
            while await self._one_request(client):
                client.http.start_next_cycle()
            with contextlib.suppress(OSError):
                await _linger(client)
            writer.close()
        except (OSError, EOFError, h11.ProtocolError):  # a TimeoutError is an OSError
            _abort(writer)  # one side closed the connection, so close the other side
        except Exception as error:
            log("proxy failed", why=type(error).__name__)
            _abort(writer)
        finally:
            self._writers.discard(writer)

    async def _one_request(self, client: Peer) -> bool:
        """Handles one request. Returns whether the connection may carry another request."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                event = await client.next()
        except TimeoutError:
            return False
        except h11.RemoteProtocolError as error:
            await client.refuse(error.error_status_hint or 400, "malformed", "the request is malformed")
            return False
        if not isinstance(event, h11.Request):
            return False  # the client closed the connection
        shown = presented(event)
        if not await self._decided_about(shown):
            await client.refuse(503, "undecided", "the server has not confirmed this claim yet: try again later")
            return False
        if not self._known(shown):
            await client.refuse(401, "unauthorized", "the credential is not that of the active claim")
            return False
        if complaint := bad_request(event, TUNNEL):
            await client.refuse(400, "malformed", complaint)
            return False
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(*self._upstream)
        except OSError:  # or a TimeoutError, which is one
            await client.refuse(502, "not-serving", "the served process does not take connections")
            return False
        self._writers.add(writer)
        try:
            upstream = Peer(reader, writer, h11.CLIENT)
            if event.method == b"CONNECT":
                await self._connect(client, upstream)
                again = False
            else:
                again = await self._forward(client, upstream, event, shown)
            writer.close()
            return again
        except BaseException:
            _abort(writer)
            raise
        finally:
            self._writers.discard(writer)

    async def _decided_about(self, shown: Presented) -> bool:
        """Waits for the answer to the acknowledgement, if the request shows the expected credential. Returns False if there is
        still no answer, so that it is unknown whether the credential is valid."""
        expected = self._expected
        if expected is None or not any(hmac.compare_digest(_digest(each), expected) for each in shown.credentials):
            return True
        try:
            async with asyncio.timeout(DECIDED_SECONDS):
                await self._decided.wait()
        except TimeoutError:
            return self._expected is not expected
        return True

    def _known(self, shown: Presented) -> bool:
        """Returns whether a credential of the request is valid, and stores the valid ones in `shown`, so that they are not
        forwarded. Each comparison takes constant time."""
        digest = self._digest
        if digest is None:
            return False
        shown.matching = [each for each in shown.credentials if hmac.compare_digest(_digest(each), digest)]
        return bool(shown.matching)

    async def _connect(self, client: Peer, upstream: Peer) -> None:
        while not isinstance(await client.next(), h11.EndOfMessage):
            pass
        await client.send(h11.Response(status_code=200, headers=[], reason="Connected"))
        await _tunnel(client, upstream)

    async def _forward(self, client: Peer, upstream: Peer, request: h11.Request, shown: Presented) -> bool:
        target, headers = request_headers(request, shown)
        await upstream.send(h11.Request(method=request.method, target=target, headers=headers))
        up = asyncio.create_task(_upload(client, upstream))
        down = asyncio.create_task(_download(client, upstream))
        try:
            await first_of(up, down)
            if up.done():
                up.result()  # raises what went wrong
            try:
                switched = await down
            except (OSError, h11.RemoteProtocolError):
                if client.http.our_state is not h11.SEND_RESPONSE:
                    raise
                await client.refuse(502, "not-serving", "the served process closed the connection without an answer")
                return False
            if switched:
                await settle(up)
                await _tunnel(client, upstream)
                return False
            # The answer may come before the end of the request, and the next request can only follow after that end.
            await asyncio.wait({up}, timeout=0 if client.http.their_state is h11.DONE else LINGER_SECONDS)
            return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE
        finally:
            await settle(up, down)


async def _upload(client: Peer, upstream: Peer) -> None:
    """Forwards the request's body, then watches the client. Raises EOFError if the client leaves, so that the served process does
    not keep working for it."""
    reading = True
    while True:
        event = await client.next()
        if isinstance(event, h11.EndOfMessage):
            break
        assert isinstance(event, h11.Data)  # if the client leaves before the end, h11 raises a RemoteProtocolError
        try:
            if reading:
                await upstream.send(h11.Data(data=event.data))
        except OSError:
            reading = False  # it answers without reading the whole body; the answer is still forwarded
    if reading:
        with contextlib.suppress(OSError):
            await upstream.send(h11.EndOfMessage())
    if client.http.their_state is h11.DONE and not await client.more():
        raise EOFError


async def _download(client: Peer, upstream: Peer) -> bool:
    """Forwards the answer while it arrives. Returns True if both sides switched to another protocol."""
    while True:
        event = await upstream.next()
        if isinstance(event, h11.InformationalResponse):
            if event.status_code == 101:
                headers = answer_headers(event, upgrade=True)
                await client.send(h11.InformationalResponse(status_code=101, headers=headers, reason=event.reason))
                return True
            if client.http.their_http_version == b"1.1":
                headers = answer_headers(event)
                status = event.status_code
                await client.send(h11.InformationalResponse(status_code=status, headers=headers, reason=event.reason))
        elif isinstance(event, h11.Response):
            headers = answer_headers(event)
            await client.send(h11.Response(status_code=event.status_code, headers=headers, reason=event.reason))
        elif isinstance(event, h11.Data):
            await client.send(h11.Data(data=event.data))
        else:
            assert isinstance(event, h11.EndOfMessage)  # if the process leaves before the end, h11 raises a RemoteProtocolError
            await client.send(h11.EndOfMessage())
            return False


async def _tunnel(client: Peer, upstream: Peer) -> None:
    """Copies raw bytes in both directions until both sides finished, or one of them failed."""
    async with asyncio.TaskGroup() as ways:
        ways.create_task(_copy(client, upstream))
        ways.create_task(_copy(upstream, client))


async def _copy(source: Peer, sink: Peer) -> None:
    try:
        data = source.http.trailing_data[0] or await source.reader.read(65_536)
        while data:
            sink.writer.write(data)
            await sink.writer.drain()
            data = await source.reader.read(65_536)
        sink.writer.write_eof()
    except OSError:
        _abort(source.writer)
        _abort(sink.writer)


async def _linger(client: Peer) -> None:
    """Reads what the client still sends, for at most 1 s, because a close with unread bytes would discard the answer."""
    if client.writer.is_closing():
        return
    client.writer.write_eof()
    taken = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while taken < LINGER_BYTES and (data := await client.reader.read(65_536)):
                taken += len(data)


def _digest(credential: bytes) -> bytes:
    return hashlib.sha256(credential).digest()


def _abort(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
    writer.transport.abort()
