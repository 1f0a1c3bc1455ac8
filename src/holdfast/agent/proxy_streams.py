"""Move bytes between a client and the served process: bodies, tunnels, and the end of a connection."""

import asyncio
import contextlib
import socket
import struct

import h11

from .proxy_headers import Headers, Peer, answer_headers

LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024
ABORT = struct.pack("ii", 1, 0)  # SO_LINGER 0 sends a reset, so that no client mistakes the cut for the end of an answer


async def upload(client: Peer, upstream: Peer) -> None:
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


async def download(client: Peer, upstream: Peer, added: Headers) -> bool:
    """Forwards the answer while it arrives, with the `added` headers. Returns True if both sides switched to another protocol."""
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
            headers = answer_headers(event) + added
            await client.send(h11.Response(status_code=event.status_code, headers=headers, reason=event.reason))
        elif isinstance(event, h11.Data):
            await client.send(h11.Data(data=event.data))
        else:
            assert isinstance(event, h11.EndOfMessage)  # if the process leaves before the end, h11 raises a RemoteProtocolError
            await client.send(h11.EndOfMessage())
            return False


async def tunnel(client: Peer, upstream: Peer) -> None:
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
        abort(source.writer)
        abort(sink.writer)


async def linger(client: Peer) -> None:
    """Reads what the client still sends, for at most 1 s, because a close with unread bytes would discard the answer."""
    if client.writer.is_closing():
        return
    client.writer.write_eof()
    taken = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while taken < LINGER_BYTES and (data := await client.reader.read(65_536)):
                taken += len(data)


def abort(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
    writer.transport.abort()
