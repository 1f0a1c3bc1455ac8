"""A client goes away in the middle of a request or of an answer. That is not a defect, so it is counted and not logged as one."""

import contextlib
import logging
from collections.abc import Iterator

import structlog.testing
from strangers import POST, TOKEN, connect

from holdfast.serve import LibraryLogs
from served_api import Stage
from waiting import eventually

STREAM = b"Accept: text/event-stream\r\n\r\n"


@contextlib.contextmanager
def library_logs() -> Iterator[None]:
    """Logs what libraries log as a replica does."""
    handler = LibraryLogs(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def gone(stage: Stage) -> float:
    return stage.wired.context.metrics.disconnects._value.get()


def test_in_the_middle_of_a_body(stage: Stage) -> None:
    with structlog.testing.capture_logs() as logs, library_logs():
        with connect(stage.port) as connection:
            connection.sendall(POST + TOKEN + b'Content-Length: 1000\r\n\r\n{"pool":')
            eventually(lambda: stage.wired.door.open == 1, 5, "the connection was accepted")
        eventually(lambda: gone(stage) == 1, 5, "it was counted")
        assert stage.ask("GET", "/healthz").status == 200
    assert [each["event"] for each in logs] == []


def test_in_the_middle_of_a_stream_and_of_a_wait(stage: Stage) -> None:
    claim = stage.claim(token="admin", tenant="acme")["id"]
    with structlog.testing.capture_logs() as logs, library_logs():
        for path in (f"/v1/claims/{claim}/output?follow=true", "/v1/events"):
            with connect(stage.port) as connection:
                connection.sendall(b"GET " + path.encode() + b" HTTP/1.1\r\nHost: h\r\n" + TOKEN + STREAM)
                assert connection.recv(12) == b"HTTP/1.1 200", path
        body = b'{"pool":"agents","tenant":"acme","wait":"20s"}'
        with connect(stage.port) as connection:
            connection.sendall(POST + TOKEN + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            eventually(lambda: stage.wired.door.open == 1, 5, "the claim waits")
        eventually(lambda: stage.wired.door.open == 0, 10, "the connections are gone")
        assert stage.ask("GET", "/healthz").status == 200
    assert [each["event"] for each in logs] == []
