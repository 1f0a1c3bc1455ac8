"""A client without a token sends requests that never end, or that grow in places where no limit was."""

import contextlib
import socket

import pytest
from strangers import GET, POST, TOKEN, connect, memory, read_answer

from served_api import Stage

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def pour(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)


def test_a_token_in_a_trailer_is_not_believed(stage: Stage) -> None:
    before = stage.rows()
    body = b'{"pool":"direct","wait":"0s"}'
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    with connect(stage.port) as connection:
        connection.sendall(POST + CHUNKED + chunk + TOKEN + b"\r\n")
        assert read_answer(connection)[0] == 401
        # The connection stays in step: the next request is another one.
        connection.sendall(POST + TOKEN + CHUNKED + chunk + b"Authorization: Bearer nobody\r\n\r\n")
        assert read_answer(connection)[0] in (201, 202)  # 201 if a worker was given out at once
    assert stage.rows()["claim"] == before["claim"] + 1


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"0\r\n", b"a:b\r\n" * 20_000),  # trailers
        (b"1;", b"a=b;" * 25_000),  # an extension of a chunk
        (b"", b"1;extension=1234567890\r\nx\r\n" * 4000),  # many short chunks with extensions
    ],
    ids=["trailers", "extension", "chunks"],
)
def test_what_surrounds_a_body_has_a_limit(stage: Stage, begin: bytes, again: bytes) -> None:
    before = memory()
    with connect(stage.port) as connection:
        pour(connection, POST + CHUNKED + begin)
        for _ in range(80):  # 8 MB
            pour(connection, again)
        assert read_answer(connection)[0] in (0, 401, 431)
        assert memory() - before < 40 << 20
    assert stage.ask("GET", "/healthz").status == 200


def test_requests_that_come_before_the_answer_are_not_collected(stage: Stage) -> None:
    with connect(stage.port) as connection:
        connection.sendall((GET + TOKEN + b"\r\n") * 2)
        assert read_answer(connection)[0] == 200
        assert read_answer(connection)[0] == 0, "the second one has to be sent again"
    assert stage.ask("GET", "/healthz").status == 200


def test_a_head_has_a_limit_also_if_it_arrives_at_once(stage: Stage) -> None:
    for extra in (b"X: " + b"a" * 70_000 + b"\r\n", b"a:\r\n" * 200):
        with connect(stage.port) as connection:
            pour(connection, GET + TOKEN + extra + b"\r\n")
            assert read_answer(connection)[0] in (0, 431)


def test_another_protocol_is_not_served(stage: Stage) -> None:
    with connect(stage.port) as connection:
        connection.sendall(GET + TOKEN + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert read_answer(connection)[0] == 200
        assert read_answer(connection)[0] == 0
