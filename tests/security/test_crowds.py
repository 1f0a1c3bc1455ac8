"""Strangers open more connections than the replica can hold, or than one address may have."""

import pytest
from strangers import GET, TOKEN, connect, crowd, ended, greeted, is_open, read_answer

from holdfast.api import descriptors, door
from served_api import Stage
from waiting import eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(door, "SHARE", 1)  # all connections of a test come from the same address


def dropped(stage: Stage, reason: str) -> float:
    return stage.wired.context.metrics.connections_dropped.labels(reason)._value.get()


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
