"""Which headers pass the agent's proxy, where it finds credentials, and which requests it cannot forward."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import h11
import pytest

from holdfast.agent.proxy_headers import (
    HEAD_BYTES,
    HOP_BY_HOP,
    Headers,
    Peer,
    Presented,
    answer_headers,
    bad_request,
    presented,
    request_headers,
)

HOST = (b"Host", b"w-1")
CLOSE = (b"Connection", b"close")


def request(*headers: tuple[bytes, bytes], method: bytes = b"GET", target: bytes = b"/", host: bool = True) -> h11.Request:
    return h11.Request(method=method, target=target, headers=[*([HOST] if host else []), *headers])


def forwarded(*headers: tuple[bytes, bytes], target: bytes = b"/", matching: tuple[bytes, ...] = ()) -> tuple[bytes, Headers]:
    return request_headers(request(*headers, target=target), Presented([], matching=list(matching)))


# Credentials.


@pytest.mark.parametrize("value", [b"Bearer hfc_1", b"bearer hfc_1", b"BEARER   hfc_1"])
def test_a_credential_is_found_as_a_bearer_token(value: bytes) -> None:
    assert presented(request((b"Authorization", value))).credentials == [b"hfc_1"]


@pytest.mark.parametrize("value", [b"Basic hfc_1", b"hfc_1", b"Bearer"])
def test_another_kind_of_authorization_is_no_credential(value: bytes) -> None:
    assert presented(request((b"Authorization", value))).credentials == []


def test_every_credential_of_a_request_is_found_headers_first() -> None:
    target = b"/x?a=1&holdfast_credential=hfc%5F2&holdfast_credential=&holdfast_credential=hfc_3&b=2"
    shown = presented(request((b"Authorization", b"Bearer hfc_1"), (b"Authorization", b"Bearer other"), target=target))
    assert shown == Presented([b"hfc_1", b"other", b"hfc_2", b"hfc_3"], in_query=True)


def test_a_parameter_is_one_only_by_its_whole_name_and_in_the_query() -> None:
    assert presented(request(target=b"/holdfast_credential=hfc_1?my_holdfast_credential=hfc_2")).credentials == []


def test_a_proxys_authorization_counts_for_a_tunnel_only() -> None:
    header = (b"Proxy-Authorization", b"Bearer hfc_1")
    assert presented(request(header, method=b"CONNECT", target=b"w:80")).credentials == [b"hfc_1"]
    assert presented(request(header)).credentials == []
    own = (b"Authorization", b"Bearer hfc_2")
    assert presented(request(own, method=b"CONNECT", target=b"w:80")).credentials == [b"hfc_2"]


# Requests that two parsers could read differently.


@pytest.mark.parametrize("target", [b"/", b"/a?b", b"*"])
def test_a_path_can_be_forwarded(target: bytes) -> None:
    assert bad_request(request((b"Content-Length", b"3"), target=target), b"w:80") == ""


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (request(target=b"http://elsewhere/"), "a path"),
        (request((b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked")), "contradict"),
        (request((b"Connection", b"Host")), "frames"),
        (request((b"Connection", b"close, Content-Length")), "frames"),
        (request((b"Connection", b"transfer-encoding")), "frames"),
        (request(method=b"CONNECT", target=b"w:81"), "w:80"),
    ],
    ids=["absolute", "two lengths", "names host", "names length", "names encoding", "another tunnel"],
)
def test_what_could_be_read_in_two_ways_is_refused_with_the_reason(bad: h11.Request, why: str) -> None:
    assert why in bad_request(bad, b"w:80")


def test_two_hosts_are_refused_should_the_parser_ever_let_them_through() -> None:
    twice: Any = SimpleNamespace(method=b"GET", target=b"/", headers=[(b"host", b"a"), (b"host", b"b")])
    assert bad_request(twice, b"w:80") == "more than one Host"


def test_only_the_named_tunnel_is_open() -> None:
    assert bad_request(request(method=b"CONNECT", target=b"w:80"), b"w:80") == ""


# What the served process gets.


def test_headers_of_one_hop_end_here_and_others_pass_in_their_own_spelling() -> None:
    hops = [(name, b"x") for name in sorted(HOP_BY_HOP) if name not in (b"transfer-encoding", b"connection", b"upgrade")]
    assert len(HOP_BY_HOP) == 9
    _, headers = forwarded(*hops, (b"X-Own", b"1"), (b"Connection", b"X-Hop, keep-alive"), (b"X-Hop", b"2"))
    assert headers == [HOST, (b"X-Own", b"1"), CLOSE]


def test_the_credential_is_taken_out_wherever_it_stands() -> None:
    secret = b"hfc_1"
    target, headers = forwarded(
        (b"Authorization", b"Bearer hfc_1"),
        (b"Referer", b"http://w/?holdfast_credential=old"),
        (b"Cookie", b"mine=hfc_1"),
        (b"X-Own", b"hfc_2"),
        target=b"/x?a=1&holdfast_credential=hfc_1&b=2",
        matching=(b"other", secret),
    )
    assert target == b"/x?a=1&b=2"
    assert headers == [HOST, (b"X-Own", b"hfc_2"), CLOSE]


def test_an_authorization_that_is_not_ours_passes() -> None:
    own = (b"Authorization", b"Bearer of-the-application")
    assert forwarded(own)[1] == [HOST, own, CLOSE]


@pytest.mark.parametrize(
    ("target", "left"),
    [
        (b"/x", b"/x"),
        (b"/x?", b"/x"),
        (b"/x?a", b"/x?a"),
        (b"/x?holdfast_credential=1", b"/x"),
        (b"/x?a&holdfast_credential=1", b"/x?a"),
        (b"/x?a&b?c", b"/x?a&b?c"),
    ],
)
def test_the_rest_of_a_query_stays_as_it_was(target: bytes, left: bytes) -> None:
    assert forwarded(target=target)[0] == left


def test_a_body_in_chunks_is_announced_as_such() -> None:
    chunked = (b"Transfer-Encoding", b"chunked")
    assert forwarded(chunked)[1] == [HOST, chunked, CLOSE]
    assert forwarded((b"Content-Length", b"3"))[1] == [HOST, (b"Content-Length", b"3"), CLOSE]


@pytest.mark.parametrize(
    ("upgrade", "connection", "passes"),
    [
        (b"websocket", b"Upgrade", True),
        (b"WebSocket", b"keep-alive, upgrade", True),
        (b"h2c", b"Upgrade", False),
        (b"websocket", b"keep-alive", False),
    ],
)
def test_only_a_websocket_is_upgraded_and_only_if_the_connection_header_names_it(
    upgrade: bytes, connection: bytes, passes: bool
) -> None:
    headers = forwarded((b"Upgrade", upgrade), (b"Connection", connection))[1]
    assert headers == [HOST, *([(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")] if passes else [CLOSE])]


def test_an_answers_headers_of_one_hop_end_here_too() -> None:
    answer = h11.Response(
        status_code=200,
        headers=[(b"X-Own", b"1"), (b"Connection", b"X-Hop"), (b"X-Hop", b"2"), (b"Keep-Alive", b"5"), (b"Content-Length", b"3")],
    )
    kept = [(b"X-Own", b"1"), (b"Content-Length", b"3")]
    assert answer_headers(answer) == kept
    assert answer_headers(answer, upgrade=True) == [*kept, (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]


# Refusals.


class Wire:
    """Both directions of a stream: what was written, and what is left to read."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces, self.written, self.drained = list(pieces), b"", 0

    async def read(self, most: int) -> bytes:
        assert most == 65_536
        return self.pieces.pop(0) if self.pieces else b""

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        self.drained += 1


def peer(wire: Any) -> Peer:
    return Peer(wire, wire, h11.SERVER)


@pytest.mark.parametrize(
    ("status", "more"), [(400, b""), (401, b'WWW-Authenticate: Bearer realm="holdfast"'), (503, b"Retry-After: 5")]
)
def test_a_refusal_is_a_problem_that_ends_the_connection(status: int, more: bytes) -> None:
    wire = Wire(b"GET / HTTP/1.1\r\nHost: w\r\n\r\n")

    async def story() -> None:
        one = peer(wire)
        assert isinstance(await one.next(), h11.Request)
        await one.refuse(status, "some-code", "some detail")

    asyncio.run(story())
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert json.loads(body) == {"status": status, "code": "some-code", "detail": "some detail"}
    lines = head.split(b"\r\n")
    assert lines[0].startswith(f"HTTP/1.1 {status} ".encode())
    first, *last = b"Content-Type: application/problem+json", f"Content-Length: {len(body)}".encode(), b"Connection: close"
    assert lines[1:] == [first, *([more] if more else []), *last]
    assert wire.drained >= 3


def test_a_head_may_come_in_pieces_and_has_a_bound() -> None:
    assert HEAD_BYTES == 65_536
    pieces = Wire(b"GET / HT", b"TP/1.1\r\nHo", b"st: w\r\n\r\n")
    found = asyncio.run(peer(pieces).next())
    assert isinstance(found, h11.Request)
    large = Wire(b"GET / HTTP/1.1\r\nHost: w\r\nX: ", *([b"x" * 15_000] * 4), b"\r\n\r\n")
    assert isinstance(asyncio.run(peer(large).next()), h11.Request), "cookies of 60 KB are within it"
    endless = Wire(b"GET / HTTP/1.1\r\nX: ", *([b"x" * 30_000] * 4))
    with pytest.raises(h11.RemoteProtocolError):
        asyncio.run(peer(endless).next())


def test_reading_bytes_returns_whether_more_may_come() -> None:
    one = peer(Wire(b"GET / HTTP/1.1\r\n", b"Host: w\r\n\r\n"))
    assert asyncio.run(one.more()) is True
    assert asyncio.run(one.more()) is True
    assert isinstance(asyncio.run(one.next()), h11.Request), "what was taken is not lost"
    assert asyncio.run(one.more()) is False
