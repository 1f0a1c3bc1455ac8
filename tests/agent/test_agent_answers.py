"""Which answers of a server end a call, which go to another replica, and what the agent logs about them."""

import asyncio

import pytest
from scripted_server import Place, Server, answer

from virtual_time import on_virtual_time, passed

WATCHED = ("cut off", "connected again", "refused")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns the events that were logged about the server."""
    logged = capsys.readouterr().err.splitlines()
    return [event for line in logged for event in WATCHED if f" {event} " in line]


def test_an_outage_is_two_lines_however_long_it_is(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        server = Server()
        control = place.agent(server).control
        assert await control.progress(7)
        assert lines(capsys) == [], "a first connection is no news"
        server.away = {"ack"}
        calling = asyncio.create_task(control.acknowledge(7, None))
        await asyncio.sleep(60)
        assert len(server.sent("ack")) > 5
        assert lines(capsys) == ["cut off"]
        server.away = set()
        assert await calling
        assert lines(capsys) == ["connected again"]
        assert await control.progress(7)
        assert lines(capsys) == []

    on_virtual_time(run())


def test_a_call_that_is_refused_again_and_again_is_one_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        server = Server()
        control = place.agent(server).control
        server.answers["ack"] = [answer({"code": "odd"}, 422) for _ in range(5)]
        assert await control.acknowledge(7, None)
        assert lines(capsys) == ["refused"]
        assert passed() > 1, "with a pause after each of them"

    on_virtual_time(run())


@pytest.mark.parametrize(("status", "calls"), [(200, 1), (204, 1), (299, 1), (300, 2), (304, 2), (404, 2)])
def test_only_a_success_ends_a_call(place: Place, status: int, calls: int) -> None:
    async def run() -> None:
        server = Server()
        server.answers["ack"] = [answer({}, status)]
        assert await place.agent(server).control.acknowledge(7, None)
        assert len(server.sent("ack")) == calls

    on_virtual_time(run())


@pytest.mark.parametrize(("status", "servers", "pauses"), [(404, 1, True), (499, 1, True), (500, 2, False), (503, 2, False)])
def test_a_replica_that_fails_is_left_at_once_and_one_that_refuses_is_asked_again_later(
    place: Place, status: int, servers: int, pauses: bool
) -> None:
    async def run() -> None:
        server = Server()
        server.answers["ack"] = [answer({}, status)]
        agent = place.agent(server, servers=("http://one", "http://two"))
        assert await agent.control.acknowledge(7, None)
        assert len(set(server.servers[-2:])) == servers
        assert (passed() > 0) is pauses

    on_virtual_time(run())
