"""Strangers or tenants open more connections than the replica can hold, or than one address or one tenant may have."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from strangers import GET, POST, TOKEN, connect, crowd, ended, greet, greeted, is_open, read_answer

from holdfast.api import descriptors, door
from served_api import Stage
from waiting import eventually

ACME = b"Authorization: Bearer acme\r\n"
EVENTS = b"GET /v1/events HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n" + ACME + b"\r\n"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(door, "SHARE", 1)  # all connections of a test come from the same address
    monkeypatch.setattr(door, "FEWEST_PER_TENANT", 1)


def dropped(stage: Stage, reason: str) -> float:
    return stage.wired.context.metrics.connections_dropped.labels(reason)._value.get()


@contextlib.contextmanager
def idle(stage: Stage, count: int, token: str = "acme") -> Iterator[list[socket.socket]]:
    """Opens connections with one answered request each."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(greeted(stage, token)) for _ in range(count)]


def opened(connections: list[socket.socket]) -> list[bool]:
    return [is_open(each) for each in connections]


def follow_events(stage: Stage) -> socket.socket:
    connection = connect(stage.port)
    connection.sendall(EVENTS)
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_known_connections_stay_and_new_ones_are_served_when_strangers_take_all_places(stage: Stage) -> None:
    stage.wired.door.most = 20
    with greeted(stage) as known, crowd(stage.port, 30) as strangers:
        assert stage.ask("GET", "/healthz").status == 200
        assert stage.wired.door.open <= 20
        assert ended(strangers[0]), "the oldest one made room"
        assert is_open(strangers[-1])
        known.sendall(GET + TOKEN + b"\r\n")
        assert read_answer(known)[0] == 200
    assert dropped(stage, "full") == 12
    eventually(lambda: stage.wired.door.open == 0, 5, "all connections are gone")


def test_a_stranger_never_takes_the_place_of_a_known_connection(stage: Stage) -> None:
    stage.wired.door.most = 3
    with greeted(stage) as first, greeted(stage) as second, greeted(stage) as third:
        with connect(stage.port) as stranger:
            assert ended(stranger)
        assert [is_open(each) for each in (first, second, third)] == [True] * 3


def test_an_address_has_a_share_of_its_own_and_known_connections_do_not_count(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "SHARE", 10)
    monkeypatch.setattr(door, "FEWEST_PER_ADDRESS", 1)
    stage.wired.door.most = 50
    known = [greeted(stage) for _ in range(10)]  # as agents behind the same address
    with crowd(stage.port, 8) as strangers:
        eventually(lambda: dropped(stage, "address") == 3, 5, "three are too many")
        assert [is_open(each) for each in strangers] == [False] * 3 + [True] * 5
        assert all(is_open(each) for each in known)
    for each in known:
        each.close()


def test_a_tenant_that_opens_as_many_connections_as_there_are_places_locks_nobody_out(stage: Stage) -> None:
    stage.wired.door.most = 40  # 5 per tenant
    with idle(stage, 40) as connections:
        for token in ("admin", "rival", "acme", stage.agent_token()) * 3:
            assert stage.ask("GET", "/healthz", token=token).status == 200
        assert all(ended(each) for each in connections[:35]), "each new one took the place of the oldest"
        assert opened(connections[-4:]) == [True] * 4
    assert dropped(stage, "tenant") >= 35
    eventually(lambda: stage.wired.door.open == 0, 5, "all connections are gone")


def test_a_request_in_progress_keeps_its_connection(stage: Stage) -> None:
    stage.wired.door.most = 40  # 5 per tenant
    body = b'{"pool":"agents","command":["true"],"wait":"20s"}'
    with connect(stage.port) as claim, follow_events(stage) as stream:
        claim.sendall(POST + ACME + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        eventually(lambda: len(stage.ask("GET", "/v1/claims").json["items"]) == 1, 5, "the claim is stored")
        with idle(stage, 10) as connections:
            assert all(ended(each) for each in connections[:7])
            assert opened(connections[7:]) == [True] * 3
            assert is_open(stream)
            [waiting] = stage.ask("GET", "/v1/claims").json["items"]
            assert stage.ask("POST", f"/v1/claims/{waiting['id']}/cancel", {}, token="acme").status == 200
            assert read_answer(claim)[0] in (200, 201, 202), "the claim's answer still arrives"


def test_a_tenant_with_too_many_requests_in_progress_is_refused_until_one_ends(stage: Stage) -> None:
    stage.wired.door.most = 40  # 5 per tenant
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(follow_events(stage)) for _ in range(5)]
        with connect(stage.port) as late:
            assert greet(late, "acme") == 429
            assert ended(late), "it does not keep its place"
        assert stage.ask("GET", "/v1/claims", token="acme").json["code"] == "too-many"
        for token in ("admin", "rival"):
            assert stage.ask("GET", "/healthz", token=token).status == 200
        assert opened(streams) == [True] * 5
        streams[0].close()
        eventually(lambda: stage.ask("GET", "/healthz", token="acme").status == 200, 5, "there is room again")


def test_tenants_together_leave_room_and_the_largest_gives_way(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "TENANT_SHARE", 1)
    stage.wired.door.most = 8  # 6 for tenants
    with idle(stage, 1, "rival") as small, idle(stage, 5) as large, idle(stage, 2, "rival") as more:
        assert all(ended(each) for each in large[:2])
        assert opened([*small, *large[2:], *more]) == [True] * 6
        assert stage.wired.door.open == 6
        with idle(stage, 2, "admin"):
            assert opened([*small, *large[2:], *more]) == [True] * 6, "there are places for all"


def test_an_idle_connection_of_a_tenant_gives_way_to_an_agent_when_there_is_no_other_place(stage: Stage) -> None:
    stage.wired.door.most = 8
    agent = stage.agent_token()
    with idle(stage, 1) as tenants, idle(stage, 7, agent) as agents:
        assert opened(tenants) == [True]
        with greeted(stage, agent):
            assert ended(tenants[0])
            assert opened(agents) == [True] * 7


def test_the_connection_counts_for_the_caller_of_its_last_request(stage: Stage) -> None:
    stage.wired.door.most = 40  # 5 per tenant
    with idle(stage, 5) as proxied:
        assert [greet(each, "rival") for each in proxied] == [200] * 5
        with idle(stage, 5):
            assert opened(proxied) == [True] * 5
        assert [greet(each, "admin") for each in proxied] == [200] * 5
        with idle(stage, 5), idle(stage, 5, "rival"):
            assert opened(proxied) == [True] * 5
    eventually(lambda: stage.wired.door.open == 0, 5, "all connections are gone")
    assert (stage.wired.door._tenants, stage.wired.door._by_tenant) == (0, {})


def test_what_strangers_have_sent_takes_a_bounded_amount_of_memory(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "STRANGERS_BYTES", 1_000_000)
    with greeted(stage) as known, crowd(stage.port, 30) as strangers:
        for each in strangers:
            each.sendall(GET + b"X: " + b"a" * 60_000)
        eventually(lambda: dropped(stage, "memory") >= 14, 5, "the first ones are closed")
        assert is_open(known)
        assert stage.ask("GET", "/healthz").status == 200


def test_without_descriptors_strangers_are_closed_and_accepting_pauses(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with greeted(stage) as known, crowd(stage.port, 5) as strangers:
        monkeypatch.setattr(descriptors, "used_up", lambda: True)
        assert all(ended(each) for each in strangers)
        with connect(stage.port) as late:
            assert ended(late)
        assert is_open(known)
        monkeypatch.setattr(descriptors, "used_up", lambda: False)
        eventually(lambda: stage.ask("GET", "/healthz").status == 200, 5, "clients are served again")


def test_the_cap_leaves_descriptors_for_duties() -> None:
    assert descriptors.connections_within(1_000_000) == descriptors.MOST_CONNECTIONS
    assert descriptors.connections_within(1024) == 1024 - descriptors.RESERVED
    assert descriptors.connections_within(100) == 50


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("10.1.2.3", 5), "10.1.2.3"),
        (("::ffff:10.1.2.3", 5, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::"),
        (("2001:db8:1:2:9:9:9:9", 5, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::"),
        ("", ""),  # a unix socket
        (None, ""),
    ],
)
def test_addresses_are_counted_as_one_client_has_them(peer: object, expected: str) -> None:
    assert door.address_of(peer) == expected
