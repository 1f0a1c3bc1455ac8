"""A session agent that is restarted without its worker: what it continues, and when it gives up."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from scripted_server import STALE, Place, Server
from session_life import KEY, Life

from fronted import becomes
from holdfast.agent import sessions
from holdfast.agent.memory import KEPT, Held, Kept, PodSettings
from holdfast.agent.messages import Hooks


def restarted(place: Place, port: int, **facts: Any) -> None:
    """Stores what an agent that died had stored."""
    settings = PodSettings("session", Hooks(port=port), 60, 1000)
    (place.folder / KEPT).write_bytes(msgspec.json.encode(Kept(settings, **facts)))


HELD = Held("c-5", 5, "acme", KEY)


async def test_a_restarted_agent_continues_its_claim_with_its_first_settings(
    begin: Callable[..., Life], place: Place, other_container: int
) -> None:
    restarted(place, other_container, held=HELD, served=4)
    life = begin({"port": 1, "reset": ["false"], "serve": ["false"]})  # the pool was changed since
    report = await life.does("running", 5, 4)
    await becomes(lambda: life.server.sent("ack"))
    assert (report["claim"], report["credential"]) == ("c-5", KEY)
    assert await life.status() == 200
    assert life.server.sent("ack") == [{"fence": 5, "endpoint": life.agent.endpoint, "incarnation": 0}]
    life.server.direct(do="end", fence=5, park=True)
    await life.does("idle", served=5)
    assert await life.status() == 401


async def test_a_restarted_agent_gives_access_only_after_the_server_confirmed_its_claim(
    begin: Callable[..., Life], place: Place, other_container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sessions.ASK_AGAIN == 5.0
    monkeypatch.setattr(sessions, "ASK_AGAIN", 0.05)
    restarted(place, other_container, held=HELD)
    server = Server()
    server.answers["ack"] = [STALE, STALE]
    life = begin(server=server)
    await becomes(lambda: life.agent.endpoint)
    assert await life.status() == 200, "its request waited for the third answer"
    assert len(server.sent("ack")) == 3


async def test_a_restarted_agent_whose_claim_ended_meanwhile_obeys_the_directive(
    begin: Callable[..., Life], place: Place, other_container: int
) -> None:
    restarted(place, other_container, held=HELD)
    server = Server()
    server.answers["ack"] = [STALE] * 100
    life = begin(server=server)
    await becomes(lambda: server.sent("ack"))
    server.direct(do="end", fence=5, reason="released")
    assert await life.code() == 0


async def test_an_agent_that_was_restarted_before_the_reset_fails(
    begin: Callable[..., Life], place: Place, other_container: int
) -> None:
    restarted(place, other_container, served=4, reset=False)
    life = begin()
    assert await life.code() == 1
    assert life.server.sent("failed") == [{"reason": "the agent was restarted before the worker was reset"}]


async def test_a_restarted_agent_without_a_claim_is_idle_and_reports_what_it_served(
    begin: Callable[..., Life], place: Place, other_container: int
) -> None:
    restarted(place, other_container, served=4)
    assert (await begin().does("idle", served=4))["claim"] is None


async def test_an_agent_that_cannot_store_its_state_fails(begin: Callable[..., Life], place: Place) -> None:
    (place.folder / KEPT).mkdir()  # a folder is in the way of the file
    life = begin()
    assert await life.code() == 1
    [failed] = life.server.sent("failed")
    assert failed["reason"].startswith("cannot store the state that a restart needs: ")
