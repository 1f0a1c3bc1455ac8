"""The port for kubelets has two paths. Each returns a status code and nothing else, and needs no token."""

import asyncio
import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.api import probes
from holdfast.api.probes import Probes
from served_api import Stage


@contextmanager
def listening(stage: Stage) -> Iterator[int]:
    made = Probes(stage.wired.context.ready)
    port = stage.do(made.listen("127.0.0.1", 0))
    yield port
    stage.loop.call_soon_threadsafe(made.close)


def ask(port: int, method: str, path: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.headers.items()}
    finally:
        connection.close()


def test_alive_and_ready_are_different(stage: Stage) -> None:
    with listening(stage) as port:
        stage.wired.replica.beat_at = None
        assert [ask(port, "GET", path)[0] for path in ("/healthz", "/readyz")] == [200, 503]
        stage.wired.replica.beat_at = stage.loop.time()
        assert [ask(port, "GET", path)[0] for path in ("/healthz", "/readyz", "/readyz?x=1")] == [200, 200, 200]
        stage.loop.call_soon_threadsafe(stage.wired.context.signals.stopping.set)
        stage.do(asyncio.sleep(0))
        assert [ask(port, "GET", path)[0] for path in ("/healthz", "/readyz")] == [200, 503]


def test_any_other_path_is_not_found_and_answers_have_no_body(stage: Stage) -> None:
    with listening(stage) as port:
        for method, path in (
            *(("GET", path) for path in ("/", "/metrics", "/openapi.json", "/v1/pools", "/healthz/", "/readyz/../v1/pools")),
            *((method, "/healthz") for method in ("HEAD", "POST", "PUT", "OPTIONS")),
        ):
            assert ask(port, method, path)[0] == 404, (method, path)
        status, body, headers = ask(port, "GET", "/healthz")
        assert (status, body, headers) == (200, b"", {"content-length": "0", "connection": "close"})


def test_what_is_not_http_or_never_ends_is_cut_off(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "HEAD_SECONDS", 0.2)
    with listening(stage) as port:
        for sent, expected in (
            (b"\x00\x01\r\n\r\n", b"HTTP/1.1 400 "),
            (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 100_000, b"HTTP/1.1 400 "),
            (b"GET /healthz HTTP/1.1\r\n", b""),  # followed by nothing
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(sent)
                try:
                    answer = connection.recv(100)
                except ConnectionError:
                    continue  # the server closed the connection before it had read all bytes
                assert answer.startswith(expected), sent[:40]
                assert expected or not answer
        assert ask(port, "GET", "/healthz")[0] == 200
