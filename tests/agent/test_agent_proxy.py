"""The agent's proxy lets the holder use everything that HTTP can do, and refuses all other callers."""

import asyncio
import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
from agent_control_plane import Plane
from running_agent import Running

from holdfast.agent import proxy
from holdfast.agent.upstream import Port
from waiting import eventually

SERVED = str(Path(__file__).with_name("session_server.py"))
KEY = "open-sesame"
AUTH = {"Authorization": f"Bearer {KEY}"}


class Session:
    def __init__(self, plane: Plane, running: Running) -> None:
        self.plane, self.running = plane, running
        self.url: str = plane.polls[-1]["endpoint"]

    def dial(self) -> socket.socket:
        address = urlsplit(self.url)
        return socket.create_connection((address.hostname or "", address.port or 0), timeout=60)


@pytest.fixture
def held(planes: Callable[..., Plane], agent: Callable[..., Running]) -> Callable[..., Session]:
    def hold(*arguments: str) -> Session:
        plane = planes(mode="session", worker={"serve": [sys.executable, SERVED, *arguments]})
        plane.assign(credential=KEY)
        running = agent(plane)
        eventually(lambda: plane.doing() == "running")
        return Session(plane, running)

    return hold


def read_all(sock: socket.socket) -> bytes:
    got = b""
    while piece := sock.recv(65_536):
        got += piece
    return got


def read_head(sock: socket.socket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got:
        piece = sock.recv(1)
        assert piece, got
        got += piece
    return got


def raw(session: Session, *lines: str, body: bytes = b"") -> bytes:
    """Sends one request as it is written, and reads until the agent closes the connection."""
    with session.dial() as sock:
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return read_all(sock)


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def test_the_credential_is_stripped_wherever_it_stands(held: Callable[..., Session]) -> None:
    session = held()
    close, host, auth = "Connection: close", "Host: h", f"Authorization: Bearer {KEY}"
    for lines in (
        ("GET /a?b=1 HTTP/1.1", host, auth, close),
        (f"GET /a?holdfast_credential={KEY}&b=1 HTTP/1.1", host, close),
        (f"GET /a?b=1&holdfast_credential={KEY} HTTP/1.1", host, auth, close),
        ("GET /a?b=1 HTTP/1.1", host, auth, close, f"Referer: http://h/?holdfast_credential={KEY}"),
    ):
        answer = raw(session, *lines)
        assert status(answer) == 200
        shown = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert shown["target"] == "/a?b=1"
        assert KEY.encode() not in answer
    answer = raw(session, f"GET /?holdfast_credential={KEY} HTTP/1.1", host, "Authorization: Basic abc", close)
    assert b"Basic abc" in answer  # this header belongs to the served process


def test_every_request_of_a_connection_is_checked(held: Callable[..., Session]) -> None:
    session = held()
    with session.dial() as sock:
        good = f"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        sock.sendall((good + good + "GET / HTTP/1.1\r\nHost: h\r\n\r\n").encode())  # also when requests are pipelined
        got = read_all(sock)
    assert re.findall(rb"HTTP/1\.1 (\d+)", got) == [b"200", b"200", b"401"]


def test_requests_that_two_parsers_could_read_differently_are_refused(held: Callable[..., Session]) -> None:
    session = held()
    head = ("POST /count HTTP/1.1", "Host: h", f"Authorization: Bearer {KEY}")
    for more in (
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Transfer-Encoding: chunked, identity",),
        ("Content-Length: 5", "Connection: close, content-length"),
        ("Content-Length: +5",),
        ("Content-Length : 5",),
    ):
        assert status(raw(session, *head, *more, body=b"0\r\n\r\n")) in (400, 501), more
    assert status(raw(session, "GET http://elsewhere/ HTTP/1.1", *head[1:])) == 400


def test_hop_by_hop_headers_end_here(held: Callable[..., Session]) -> None:
    answer = raw(
        held(),
        *(
            "GET / HTTP/1.1",
            "Host: h",
            f"Authorization: Bearer {KEY}",
            "Connection: close, X-Hop",
            "X-Hop: 1",
        ),
        *("TE: trailers", "Keep-Alive: 5", "Proxy-Authorization: Basic x", "Upgrade: h2c", "X-End: 2"),
    )
    names = {name.lower() for name, _ in json.loads(answer.partition(b"\r\n\r\n")[2])["headers"]}
    assert "x-end" in names
    assert not names & {"x-hop", "te", "keep-alive", "proxy-authorization", "upgrade", "authorization"}


async def test_large_bodies_stream_both_ways(held: Callable[..., Session]) -> None:
    session = held()
    piece, pieces = b"x" * 1_000_000, 64

    async def upload() -> "asyncio.AsyncIterator[bytes]":  # type: ignore[name-defined]
        for _ in range(pieces):
            yield piece

    async with aiohttp.ClientSession(headers=AUTH) as client:
        async with client.post(session.url + "/count", data=upload()) as answer:
            assert (await answer.json())["size"] == len(piece) * pieces
        async with client.post(session.url + "/count", data=piece) as answer:  # with a Content-Length
            assert (await answer.json())["size"] == len(piece)
        got = 0
        async with client.post(session.url + "/echo", data=upload()) as answer:
            async for part in answer.content.iter_any():
                got += len(part)
        assert got == len(piece) * pieces
    process_status = Path(f"/proc/{session.running.popen.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", process_status)
    assert peak
    assert int(peak[1]) < 60_000  # nothing of the 64 MB was kept in memory


async def test_websockets_pass(held: Callable[..., Session]) -> None:
    session = held()

    async with aiohttp.ClientSession() as client:
        async with client.ws_connect(session.url + "/ws", headers=AUTH) as talk:
            await talk.send_str("hello")
            assert await talk.receive_str(timeout=60) == "olleh"
        async with client.ws_connect(f"{session.url}/ws?holdfast_credential={KEY}") as talk:
            await talk.send_str("again")
            assert await talk.receive_str(timeout=60) == "niaga"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(session.url + "/ws")
        assert refused.value.status == 401


def test_other_tcp_passes_through_a_tunnel(held: Callable[..., Session]) -> None:
    session = held("raw")
    for header in ("Proxy-Authorization", "Authorization"):
        with session.dial() as sock:
            head = f"CONNECT holdfast:0 HTTP/1.1\r\nHost: holdfast:0\r\n{header}: Bearer {KEY}\r\n\r\n"
            sock.sendall(head.encode() + b"early ")
            assert status(read_head(sock)) == 200
            sock.sendall(b"\x00\xff bytes")
            sock.shutdown(socket.SHUT_WR)  # half closed, which plain TCP allows
            assert read_all(sock) == b"early \x00\xff bytes<end>"
    host = "Host: holdfast:0"
    assert status(raw(session, "CONNECT holdfast:0 HTTP/1.1", host)) == 401
    assert status(raw(session, "CONNECT holdfast:0 HTTP/1.1", host, "Proxy-Authorization: Bearer wrong")) == 401
    assert status(raw(session, "CONNECT other:22 HTTP/1.1", host, f"Authorization: Bearer {KEY}")) == 400


def test_the_end_of_a_claim_cuts_what_is_under_way(held: Callable[..., Session]) -> None:
    session = held()
    stream, idle, socket_ = session.dial(), session.dial(), session.dial()
    auth = f"Host: h\r\nAuthorization: Bearer {KEY}\r\n"
    stream.sendall(f"GET /ticks HTTP/1.1\r\n{auth}\r\n".encode())
    assert status(read_head(stream)) == 200
    assert stream.recv(1)
    idle.sendall(f"HEAD / HTTP/1.1\r\n{auth}\r\n".encode())
    assert status(read_head(idle)) == 200  # and the connection is kept alive
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    socket_.sendall(f"GET /ws HTTP/1.1\r\n{auth}{upgrade}{key}\r\n".encode())
    assert status(read_head(socket_)) == 101
    session.plane.end(7, park=True)
    for sock in (stream, idle, socket_):
        with pytest.raises(ConnectionResetError):  # a reset, so that no client treats the answer as complete
            read_all(sock)
        sock.close()
    eventually(lambda: session.plane.polls[-1]["reset_fence"] == 7)
    assert status(raw(session, "GET / HTTP/1.1", "Host: h", f"Authorization: Bearer {KEY}")) == 401


@pytest.mark.parametrize("path", ["/ticks", "/quiet"])
def test_a_client_that_leaves_ends_what_it_asked_for(held: Callable[..., Session], path: str) -> None:
    session = held()
    before = connections(session)
    with session.dial() as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        eventually(lambda: connections(session) == before + 2)  # the client's, and the one to the served process
    eventually(lambda: connections(session) == before)


def connections(session: Session) -> int:
    """Returns how many connections the agent has, without those to the control plane, which come and go."""
    plane = urlsplit(session.plane.url).port
    found = psutil.Process(session.running.popen.pid).net_connections("tcp")
    return sum(each.status != psutil.CONN_LISTEN and each.raddr != () and each.raddr.port != plane for each in found)


async def test_while_an_acknowledgement_is_unanswered_the_holder_gets_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "DECIDED_SECONDS", 0.1)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        writer.close()

    served = await asyncio.start_server(serve, "127.0.0.1", 0)
    front = proxy.Proxy(Port(("127.0.0.1",), served.sockets[0].getsockname()[1]))
    port = await front.listen("127.0.0.1", 0)

    async def ask(client: aiohttp.ClientSession, credential: str) -> tuple[int, str | None]:
        headers = {"Authorization": f"Bearer {credential}"}
        async with client.get(f"http://127.0.0.1:{port}/", headers=headers) as answer:
            return answer.status, answer.headers.get("Retry-After")

    async with aiohttp.ClientSession() as client:
        assert await ask(client, KEY) == (401, None), "the proxy does not expect this credential"
        front.expect(KEY)
        assert await ask(client, "another") == (401, None), "that one is wrong whatever is decided"
        assert await ask(client, KEY) == (503, "5"), "the credential may be right: the acknowledgement has no answer yet"
        front.open(KEY)
        assert await ask(client, KEY) == (200, None)
        front.close()
        assert await ask(client, KEY) == (401, None), "and now it is wrong"
    front.stop()
    served.close()
