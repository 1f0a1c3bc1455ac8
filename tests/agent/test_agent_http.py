"""One HTTP call of an agent: what it sends, which connections it keeps, and what counts as no answer."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from holdfast.agent import http as module
from holdfast.agent.http import ANSWER_BYTES, CONNECT_SECONDS, IDLE_CONNECTIONS, Caller, HttpResponse, Unreachable
from holdfast.agent.messages import AgentReport, Assignment, Directive, ErrorBody, Hooks, Registration

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """A replica that answers each request of a connection with the next bytes of its script. None closes the connection."""

    def __init__(self, *script: bytes | None) -> None:
        self.script = list(script)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.transports: list[asyncio.WriteTransport] = []
        self.gate: asyncio.Event | None = None

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.transports.append(writer.transport)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                if self.gate is not None:
                    await self.gate.wait()
                answer = self.script.pop(0) if self.script else OK
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                if b"close" in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def run(story: Callable[[Server, Caller], Awaitable[None]], *script: bytes | None) -> Server:
    async def main() -> Server:
        async with Server(*script) as server:
            caller = Caller()
            try:
                await story(server, caller)
            finally:
                caller.close()
            return server

    return asyncio.run(main())


async def post(caller: Caller, url: str, timeout: float = 5.0) -> HttpResponse:
    return await caller.post(url, "/v1/worker/poll", "t0ken", b'{"a":1}', timeout)


def test_a_call_says_where_to_who_and_what() -> None:
    async def story(server: Server, caller: Caller) -> None:
        assert await post(caller, f"{server.url.replace('://', '://user:pass@')}/below") == HttpResponse(200, b"{}", 0.0)

    server = run(story)
    first, *headers = server.heads[0].strip().split(b"\r\n")
    assert first == b"POST /below/v1/worker/poll HTTP/1.1"
    assert headers == [
        f"Host: {server.url.removeprefix('http://')}".encode(),
        b"Authorization: Bearer t0ken",
        b"Content-Type: application/json",
        b"Content-Length: 7",
    ]
    assert server.bodies == [b'{"a":1}']


def test_a_connection_is_kept_between_calls_and_never_shared_with_another_server() -> None:
    async def story(server: Server, caller: Caller) -> None:
        for _ in range(3):
            await post(caller, server.url)
        assert server.connections == 1
        async with Server() as other:
            await post(caller, other.url)
            assert (server.connections, other.connections) == (1, 1)

    run(story)


@pytest.mark.parametrize("ends", [None, OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")], ids=["cut", "closed"])
def test_a_kept_connection_that_the_server_ended_is_replaced_without_a_word(ends: bytes | None) -> None:
    async def story(server: Server, caller: Caller) -> None:
        await post(caller, server.url)
        assert (await post(caller, server.url)).status == 200
        assert (await post(caller, server.url)).status == 200

    assert run(story, OK, ends, OK, OK).connections == 2


def test_at_most_four_connections_are_kept() -> None:
    async def story(server: Server, caller: Caller) -> None:
        for _ in range(2):
            server.gate = asyncio.Event()
            calls = [asyncio.create_task(post(caller, server.url)) for _ in range(6)]
            while len(server.bodies) % 6 or not server.bodies:
                await asyncio.sleep(0.001)
            server.gate.set()
            await asyncio.gather(*calls)
            server.bodies.clear()

    assert IDLE_CONNECTIONS == 4
    assert run(story).connections == 6 + 2


@pytest.mark.parametrize(
    "answer",
    [None, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX: close\r\n\r\n{}", b"no http at all: close\r\n\r\n"],
    ids=["nothing", "cut short", "not http"],
)
def test_what_is_no_whole_answer_is_none(answer: bytes | None) -> None:
    async def story(server: Server, caller: Caller) -> None:
        with pytest.raises(Unreachable, match="connection failed"):
            await post(caller, server.url)
        assert (await post(caller, server.url)).status == 200, "and the connection was not kept"

    assert run(story, answer).connections == 2


def test_an_answer_beyond_its_bound_is_not_our_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ANSWER_BYTES == 8 * 1024 * 1024
    monkeypatch.setattr(module, "ANSWER_BYTES", 10)

    async def story(server: Server, caller: Caller) -> None:
        assert (await post(caller, server.url)).body == b"x" * 10
        with pytest.raises(Unreachable):
            await post(Caller(), server.url)

    run(story, *(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size for size in (10, 11)))


def test_no_answer_within_the_time_is_none_and_its_connection_is_not_used_again() -> None:
    async def story(server: Server, caller: Caller) -> None:
        server.gate = asyncio.Event()
        with pytest.raises(Unreachable, match=r"no answer within 0\.05 s"):
            await post(caller, server.url, 0.05)
        server.gate.set()
        server.gate = None
        assert (await post(caller, server.url)).status == 200

    assert run(story).connections == 2


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match=r"cannot connect: .*Connect call failed"):
            asyncio.run(post(Caller(), url))


def test_a_server_that_takes_no_connection_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONNECT_SECONDS == 5.0
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.05)

    async def stuck(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", stuck)
    with pytest.raises(Unreachable, match="cannot connect: TimeoutError"):
        asyncio.run(post(Caller(), "http://h", 60.0))


def test_the_certificates_are_loaded_once_and_only_for_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    used: list[object] = []

    def load() -> object:
        loaded.append(object())
        return loaded[-1]

    async def connect(host: str, port: int, ssl: object) -> None:
        used.append(ssl)
        raise OSError("no")

    async def story() -> None:
        caller = Caller()
        for url in ("http://h", "https://h", "http://h", "https://i"):
            with pytest.raises(Unreachable):
                await post(caller, url)
            assert len(loaded) == (0 if url == "http://h" and len(used) == 1 else 1)

    monkeypatch.setattr(module.ssl, "create_default_context", load)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    asyncio.run(story())
    assert used == [None, loaded[0], None, loaded[0]]


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("http://h", "h", 80, False),
        ("https://h", "h", 443, True),
        ("http://h:81", "h", 81, False),
        ("https://h:82", "h", 82, True),
    ],
)
def test_the_port_and_the_encryption_follow_the_address(
    monkeypatch: pytest.MonkeyPatch, url: str, host: str, port: int, tls: bool
) -> None:
    asked: list[tuple[str, int, bool]] = []

    async def connect(host: str, port: int, ssl: object) -> None:
        asked.append((host, port, ssl is not None))
        raise OSError("no")

    monkeypatch.setattr(asyncio, "open_connection", connect)
    with pytest.raises(Unreachable):
        asyncio.run(post(Caller(), url))
    assert asked == [(host, port, tls)]


@pytest.mark.parametrize(("value", "seconds"), [(b"7", 7.0), (b"0", 0.0), (b"Wed, 21 Oct 2026 07:28:00 GMT", 0.0), (b"-1", 0.0)])
def test_a_pause_that_the_server_asks_for_is_read_in_seconds(value: bytes, seconds: float) -> None:
    async def story(server: Server, caller: Caller) -> None:
        answer = await post(caller, server.url)
        assert (answer.status, answer.retry_after) == (503, seconds)

    run(story, b"HTTP/1.1 503 Away\r\nRetry-After: " + value + b"\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize(
    ("body", "code"), [(b'{"code":"stale"}', "stale"), (b"{}", ""), (b"{", ""), (b"\xff", ""), (b'{"code":1}', "")]
)
def test_a_problems_code_is_read_if_there_is_one(body: bytes, code: str) -> None:
    assert HttpResponse(409, body).code == code


def test_an_answer_names_no_pause_unless_the_server_does() -> None:
    assert HttpResponse(200, b"").retry_after == 0


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_kept_connection_that_ended_is_closed_and_gets_no_request(how: str) -> None:
    async def story(server: Server, caller: Caller) -> None:
        await post(caller, server.url)
        [connection] = caller._idle[server.url]
        assert connection.good()
        for transport in server.transports:
            transport.close() if how == "closed" else transport.abort()
        while connection.good():
            await asyncio.sleep(0.001)
        asking = connection.ask
        connection.ask = None  # type: ignore[method-assign, assignment]
        assert (await post(caller, server.url)).status == 200
        assert asking.__self__._writer.is_closing()  # type: ignore[attr-defined]

    assert run(story).connections == 2


def test_closing_ends_the_kept_connections() -> None:
    async def story(server: Server, caller: Caller) -> None:
        await post(caller, server.url)
        [connection] = caller._idle[server.url]
        caller.close()
        assert connection._writer.is_closing()
        assert caller._idle == {}
        await post(caller, server.url)
        assert server.connections == 2

    run(story)


def test_what_a_server_leaves_out_has_its_default_and_what_it_adds_is_ignored() -> None:
    registration = msgspec.json.decode(b'{"token": "t0ken", "novelty": 1}', type=Registration)
    assert registration == Registration("t0ken", 3600, 20, "job", Hooks([], [], [], [], 8080), 3600, 64 * 1024 * 1024)
    given = msgspec.json.decode(b'{"claim": "c-1", "fence": 7, "tenant": "acme"}', type=Assignment)
    assert (given.command, bytes(given.payload), given.env, given.secrets, given.credential) == ([], b"null", {}, {}, None)
    assert msgspec.json.decode(b"{}", type=Directive) == Directive("nothing", None, None, "", False)
    assert (repr(registration), repr(given)) == ("Registration(job)", "Assignment(c-1, 7)"), "never what they carry"


@pytest.mark.parametrize(
    "kind", [Hooks, Registration, Assignment, Directive, AgentReport, HttpResponse, ErrorBody], ids=lambda kind: kind.__name__
)
def test_messages_are_frozen_values(kind: type) -> None:
    assert kind.__struct_config__.frozen  # type: ignore[attr-defined]
