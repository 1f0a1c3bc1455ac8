"""What an agent logs about its server: one line when it is cut off, one when it is connected again, one per refused call."""

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
