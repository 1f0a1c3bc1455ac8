"""Stand in front of a served port: let in who has the active claim's credential, cut all off when it ends.

Each request is checked, also on a connection that was let through before. Bodies are re-framed by h11 on both
sides, never copied as they came, so client and served process cannot disagree about where a request ends.
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
HEAD_SECONDS = 60.0  # for a request's head, and between requests
DECIDED_SECONDS = 60.0  # a holder waits so long for the answer to our acknowledgement, then hears when to ask again
LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024
CONNECT_SECONDS = 5.0
TUNNEL = b"holdfast:0"
ABORT = struct.pack("ii", 1, 0)  # SO_LINGER 0: a reset, which no client takes for the end of an answer


class Proxy:
    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._digest: bytes | None = None  # of the credential; the credential itself is not kept
        self._expected: bytes | None = None  # of one whose acknowledgement is under way
        self._decided = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        self._server = await asyncio.start_server(self._arrive, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def expect(self, credential: str) -> None:
        """Its holder may hear of the worker before we hear that our acknowledgement was accepted: let it wait."""
        self._expected = _digest(credential.encode())
        self._decided.clear()

    def open(self, credential: str) -> None:
        assert self._digest is None, "the last claim's credential is still open"
        self._digest = _digest(credential.encode())
        self._decide()

    def close(self) -> None:
        """End the claim's access now: the credential is dead, every connection is cut, whatever it does."""
        self._digest = None
        self._decide()
        for writer in list(self._writers):
            _abort(writer)
        for task in list(self._tasks):
            task.cancel()

    def _decide(self) -> None:
        self._expected = None
        self._decided.set()

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.close()

    # One connection

    def _arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MOST_CONNECTIONS:
            _abort(writer)
            return
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._attend(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Peer(reader, writer, h11.SERVER)
        try:
            while await self._one_request(client):
                client.http.start_next_cycle()
            with contextlib.suppress(OSError):
                await _linger(client)
            writer.close()
        except (OSError, EOFError, TimeoutError, h11.ProtocolError):
            _abort(writer)  # either side broke off: so does the other
        except Exception as error:
            log("proxy failed", why=type(error).__name__)
            _abort(writer)
        except asyncio.CancelledError:
            _abort(writer)
            raise
        finally:
            self._writers.discard(writer)

    async def _one_request(self, client: Peer) -> bool:
        """Whether the connection may carry another."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                event = await client.next()
        except TimeoutError:
            return False
        except h11.RemoteProtocolError as error:
            await client.refuse(error.error_status_hint or 400, "malformed", "the request is malformed")
            return False
        if not isinstance(event, h11.Request):
            return False  # the client is done
        shown = presented(event)
        if not await self._decided_about(shown):
            await client.refuse(503, "undecided", "whether this claim is this worker's is not known yet: ask again")
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
        except (OSError, TimeoutError):
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
        """Wait for the word on our acknowledgement, for whom it is about. False: there is none yet, so the credential is neither
        right nor wrong."""
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
        """Each credential that was shown is compared, in constant time; matching ones are to be stripped."""
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
            if up.done() and up.exception() is not None:
                up.result()
            try:
                switched = await down
            except (OSError, EOFError, h11.RemoteProtocolError):
                if client.http.our_state is not h11.SEND_RESPONSE:
                    raise
                await client.refuse(502, "not-serving", "the served process broke off")
                return False
            if switched:
                await settle(up)
                await _tunnel(client, upstream)
                return False
            # An answer may come before the request's end, and without that there is no next request.
            await asyncio.wait({up}, timeout=0 if client.http.their_state is h11.DONE else LINGER_SECONDS)
            return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE
        finally:
            await settle(up, down)


async def _upload(client: Peer, upstream: Peer) -> None:
    """The request's body, then watch: a client that leaves must not keep the served process busy."""
    heard = True
    while True:
        event = await client.next()
        if isinstance(event, h11.EndOfMessage):
            break
        if not isinstance(event, h11.Data):
            raise EOFError
        try:
            if heard:
                await upstream.send(h11.Data(data=event.data))
        except OSError:
            heard = False  # it answered without reading on; its answer still counts
    if heard:
        with contextlib.suppress(OSError):
            await upstream.send(h11.EndOfMessage())
    if client.http.their_state is h11.DONE and not await client.more():
        raise EOFError


async def _download(client: Peer, upstream: Peer) -> bool:
    """The answer, as it comes. True: both sides switched to another protocol."""
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
        elif isinstance(event, h11.EndOfMessage):
            await client.send(h11.EndOfMessage())
            return False
        else:
            raise EOFError


async def _tunnel(client: Peer, upstream: Peer) -> None:
    """Raw bytes both ways until both sides said that they are done, or one of them broke off."""
    async with asyncio.TaskGroup() as ways:
        ways.create_task(_pour(client, upstream))
        ways.create_task(_pour(upstream, client))


async def _pour(source: Peer, sink: Peer) -> None:
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
    """Take what the client still sends for a moment: closing on unread bytes would destroy the answer."""
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
