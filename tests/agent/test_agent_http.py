"""One HTTP call of an agent: what it sends, and what counts as no answer."""

import asyncio
import socket

import msgspec
import pytest
from replica import Server, post, run

from holdfast.agent import http as module
from holdfast.agent.http import ANSWER_BYTES, CONNECT_SECONDS, HttpClient, HttpResponse, Unreachable
from holdfast.agent.messages import AgentReport, Assignment, Directive, ErrorBody, Hooks, Registration


def test_a_call_has_its_path_its_token_and_its_body() -> None:
    async def story(server: Server, client: HttpClient) -> None:
        assert await post(client, f"{server.url.replace('://', '://user:pass@')}/below") == HttpResponse(200, b"{}", 0.0)

    server = run(story)
    first, *headers = server.heads[0].strip().split(b"\r\n")
    assert first == b"POST /below/v1/worker/poll HTTP/1.1"
    assert headers == [
        f"Host: {server.url.removeprefix('http://')}".encode(),
        b"Content-Type: application/json",
        b"Content-Length: 7",
        b"Authorization: Bearer t0ken",
    ]
    assert server.bodies == [b'{"a":1}']


@pytest.mark.parametrize(
    "answer",
    [None, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX: close\r\n\r\n{}", b"no http at all: close\r\n\r\n"],
    ids=["nothing", "cut short", "not http"],
)
def test_what_is_no_whole_answer_is_none(answer: bytes | None) -> None:
    async def story(server: Server, client: HttpClient) -> None:
        with pytest.raises(Unreachable, match="connection failed"):
            await post(client, server.url)
        assert (await post(client, server.url)).status == 200, "and the connection was not kept"

    assert run(story, answer).connections == 2


def test_an_answer_beyond_its_bound_is_not_our_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ANSWER_BYTES == 8 * 1024 * 1024
    monkeypatch.setattr(module, "ANSWER_BYTES", 10)

    async def story(server: Server, client: HttpClient) -> None:
        assert (await post(client, server.url)).body == b"x" * 10
        with pytest.raises(Unreachable):
            await post(HttpClient(), server.url)

    run(story, *(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size for size in (10, 11)))


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match=r"cannot connect: .*Connect call failed"):
            asyncio.run(post(HttpClient(), url))


def test_a_server_that_takes_no_connection_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONNECT_SECONDS == 5.0
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.05)

    async def stuck(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", stuck)
    with pytest.raises(Unreachable, match="cannot connect: TimeoutError"):
        asyncio.run(post(HttpClient(), "http://h", 60.0))


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
        client = HttpClient()
        for url in ("http://h", "https://h", "http://h", "https://i"):
            with pytest.raises(Unreachable):
                await post(client, url)
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
        asyncio.run(post(HttpClient(), url))
    assert asked == [(host, port, tls)]


@pytest.mark.parametrize(("value", "seconds"), [(b"7", 7.0), (b"0", 0.0), (b"Wed, 21 Oct 2026 07:28:00 GMT", 0.0), (b"-1", 0.0)])
def test_a_pause_that_the_server_asks_for_is_read_in_seconds(value: bytes, seconds: float) -> None:
    async def story(server: Server, client: HttpClient) -> None:
        answer = await post(client, server.url)
        assert (answer.status, answer.retry_after) == (503, seconds)

    run(story, b"HTTP/1.1 503 Away\r\nRetry-After: " + value + b"\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize(
    ("body", "code"), [(b'{"code":"stale"}', "stale"), (b"{}", ""), (b"{", ""), (b"\xff", ""), (b'{"code":1}', "")]
)
def test_a_problems_code_is_read_if_there_is_one(body: bytes, code: str) -> None:
    assert HttpResponse(409, body).code == code


def test_an_answer_names_no_pause_unless_the_server_does() -> None:
    assert HttpResponse(200, b"").retry_after == 0


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
