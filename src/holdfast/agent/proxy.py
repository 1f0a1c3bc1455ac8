"""Guard a served port: forward requests with the active claim's credential, and cut all connections when the claim ends.

Each request is checked, also on a connection that carried a valid request before. h11 parses and frames bodies again on both
sides, so that the client and the served process cannot disagree about where a request ends.
"""

import asyncio
import contextlib
import errno
import socket

import h11

from . import proxy_streams
from .log import log
from .proxy_cookies import Access, continued, is_from_own_page, is_navigation, set_cookie
from .proxy_headers import Headers, Peer, Presented, bad_request, presented, request_headers
from .proxy_limits import Connections
from .proxy_streams import abort, download, linger, tunnel, upload
from .tasks import first_of, settle
from .upstream import LOOPBACK, Upstream

HEAD_SECONDS = 10.0  # for the head of a request, on a connection that has not shown the credential
IDLE_SECONDS = 60.0  # for the next request of a connection that has shown the credential
DECIDED_SECONDS = 60.0  # a request waits this long for the answer to the acknowledgement, then gets 503 with Retry-After
CONNECT_SECONDS = 5.0
PORT_ATTEMPTS = 20  # for a port that is free on IPv4 and on IPv6
TUNNEL = b"holdfast:0"


class Proxy:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._access: Access | None = None  # of the active claim
        self._expected: Access | None = None  # of the last claim that was acknowledged; `_decided` is set after the answer
        self._decided = asyncio.Event()
        self._connections = Connections(abort)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Starts to listen, and returns the port. Raises OSError.

        On loopback it listens on the same port of IPv6 as well, because a browser tries that address first for names such as
        `claim.localhost`. Otherwise another user could listen there, and get the holder's credential.
        """
        for attempt in range(PORT_ATTEMPTS):
            self._servers = [await asyncio.start_server(self._accept, host, port)]
            bound: int = self._servers[0].sockets[0].getsockname()[1]
            if host != LOOPBACK[0]:
                return bound
            try:
                self._servers.append(await asyncio.start_server(self._accept, LOOPBACK[1], bound))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    self._servers[0].close()
                    if port or attempt == PORT_ATTEMPTS - 1:
                        raise
                    continue  # try another port
            return bound  # without IPv6 there is no such address
        raise AssertionError

    def expect(self, credential: str) -> None:
        """Makes requests with this credential wait. The holder may learn of the worker before the agent knows that its
        acknowledgement was accepted."""
        self._expected = Access.of(credential)
        self._decided.clear()

    def open(self, credential: str) -> None:
        assert self._access is None, "the last claim's credential is still open"
        self._access = Access.of(credential)
        self._decided.set()

    def close(self) -> None:
        """Ends the claim's access: the credential becomes invalid, and every connection is cut at once."""
        self._access = None
        self._decided.set()
        for writer in list(self._writers):
            abort(writer)  # now, and not when its task runs next
        for task in list(self._tasks):
            task.cancel()

    def stop(self) -> None:
        for server in self._servers:
            server.close()
        self.close()

    # One connection

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._connections.admit(writer):
            abort(writer)
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
                await linger(client)
            writer.close()
        except (OSError, EOFError, h11.ProtocolError):  # a TimeoutError is an OSError
            abort(writer)  # one side closed the connection, so close the other side
        except Exception as error:
            log("proxy failed", why=type(error).__name__)
            abort(writer)
        finally:
            self._writers.discard(writer)
            self._connections.forget(writer)

    async def _one_request(self, client: Peer) -> bool:
        """Handles one request. Returns whether the connection may carry another request."""
        try:
            async with asyncio.timeout(IDLE_SECONDS if self._connections.is_proven(client.writer) else HEAD_SECONDS):
                event = await client.next()
        except TimeoutError:
            return False
        except h11.RemoteProtocolError as error:
            await client.refuse(error.error_status_hint or 400, "malformed", "the request is malformed")
            return False
        if not isinstance(event, h11.Request):
            return False  # the client closed the connection
        shown = presented(event)
        if not await self._decided_about(client, shown):
            await client.refuse(503, "undecided", "the server has not confirmed this claim yet: try again later")
            return False
        if self._access is None or not self._access.opened_by(shown):
            await client.refuse(401, "unauthorized", "the credential is not that of the active claim")
            return False
        self._connections.prove(client.writer)
        if complaint := bad_request(event, TUNNEL):
            await client.refuse(400, "malformed", complaint)
            return False
        if not shown.matching and not is_from_own_page(event):
            await client.refuse(403, "other-origin", "a page of another origin cannot use the session's cookie")
            return False
        added: Headers = []
        if shown.matching and is_navigation(event):
            if shown.in_query:
                await client.answer(*continued(event, shown.matching[0]))
                return False
            added = [] if shown.cookies else [set_cookie(shown.matching[0])]
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await self._upstream.connect()
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
                again = await self._forward(client, upstream, event, shown, added)
            writer.close()
            return again
        except BaseException:
            abort(writer)
            raise
        finally:
            self._writers.discard(writer)

    async def _decided_about(self, client: Peer, shown: Presented) -> bool:
        """Waits for the answer to the acknowledgement, if the request shows the expected credential. Returns False if there is
        still no answer, so that it is unknown whether the credential is valid."""
        expected = self._expected
        if expected is None or not expected.opened_by(shown):
            return True
        self._connections.prove(client.writer)  # the credential is real, so the wait must not be cut for others
        try:
            async with asyncio.timeout(DECIDED_SECONDS):
                await self._decided.wait()
        except TimeoutError:
            return self._expected is not expected
        return True

    async def _connect(self, client: Peer, upstream: Peer) -> None:
        while not isinstance(await client.next(), h11.EndOfMessage):
            pass
        await client.send(h11.Response(status_code=200, headers=[], reason="Connected"))
        await tunnel(client, upstream)

    async def _forward(self, client: Peer, upstream: Peer, request: h11.Request, shown: Presented, added: Headers) -> bool:
        target, headers = request_headers(request, shown)
        await upstream.send(h11.Request(method=request.method, target=target, headers=headers))
        up = asyncio.create_task(upload(client, upstream))
        down = asyncio.create_task(download(client, upstream, added))
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
                await tunnel(client, upstream)
                return False
            # The answer may come before the end of the request, and the next request can only follow after that end.
            await asyncio.wait({up}, timeout=0 if client.http.their_state is h11.DONE else proxy_streams.LINGER_SECONDS)
            return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE
        finally:
            await settle(up, down)
