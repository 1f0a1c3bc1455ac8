"""A client sends a request too slowly, or nothing at all, and would keep its connection forever."""

import time

import pytest
from strangers import GET, POST, TOKEN, connect, ended, greeted, is_open, read_answer

from holdfast.api import door, server
from served_api import Stage
from waiting import eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "SWEEP_SECONDS", 0.05)


def dropped(stage: Stage, reason: str) -> float:
    return stage.wired.context.metrics.connections_dropped.labels(reason)._value.get()


def test_a_connection_that_sends_nothing_is_closed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    with connect(stage.port) as connection:
        assert ended(connection)
    eventually(lambda: dropped(stage, "slow") == 1, 5, "it was counted")


@pytest.mark.parametrize("token", [b"", TOKEN])
@pytest.mark.parametrize("begin", [GET, POST + b"Content-Length: 1000\r\n", POST + b"Transfer-Encoding: chunked\r\n"])
def test_a_request_that_trickles_in_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch, begin: bytes, token: bytes) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(server, "BODY_SECONDS", 0.5)
    piece = b"x" if begin is GET else b"1\r\nx\r\n" if b"chunked" in begin else b"x"
    with connect(stage.port) as connection:
        connection.sendall(begin + token + (b"X: " if begin is GET else b"\r\n"))
        connection.settimeout(0.05)
        statuses: list[int] = []
        for _ in range(200):
            try:
                statuses.append(read_answer(connection)[0])
                if statuses[-1] in (0, 408):
                    break
            except TimeoutError:
                connection.sendall(piece)  # the trickle, which must not prolong the time
        assert statuses in ([408], [0], [401, 0]), statuses
    eventually(lambda: dropped(stage, "slow") == 1, 5, "it was counted")


def test_an_idle_connection_is_kept_longer_after_a_valid_token(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "NEXT_SECONDS", 0.3)
    with greeted(stage) as known, connect(stage.port) as stranger:
        stranger.sendall(GET + b"\r\n")
        assert read_answer(stranger)[0] == 401
        assert ended(stranger)
        assert is_open(known)
        known.sendall(GET + TOKEN + b"\r\n")
        assert read_answer(known)[0] == 200
    assert dropped(stage, "slow") == 0


def test_a_known_connection_is_closed_when_it_is_idle_too_long(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KNOWN_NEXT_SECONDS", 0.3)
    with greeted(stage) as known:
        assert ended(known)


def test_a_request_that_waits_for_its_answer_is_not_cut_off(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "NEXT_SECONDS", "KNOWN_NEXT_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(server, name, 0.3)
    begun = time.monotonic()
    answer = stage.ask("POST", "/v1/claims", {"pool": "agents", "command": ["true"], "wait": "1s"}, token="acme")
    assert answer.status == 202 or answer.json["state"] != "ended"
    assert time.monotonic() - begun > 0.3
