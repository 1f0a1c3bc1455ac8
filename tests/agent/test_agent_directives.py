"""Which directives an agent obeys, which offers it takes, and how it drains after SIGTERM."""

import asyncio
import signal

import pytest
from scripted_server import Place, Server

from holdfast.agent import main
from holdfast.agent.hold import GRACE, Leave
from holdfast.agent.main import Agent
from holdfast.agent.messages import Assignment, Directive
from holdfast.agent.staging import NOT_STAGED
from virtual_time import Loop, on_virtual_time, passed, settle


def idle(place: Place) -> Agent:
    agent = place.agent(Server())
    agent.report_state("idle")
    return agent


def offer(agent: Agent, fence: int = 7, claim: str = "c-1") -> None:
    agent._obey(Directive(do="hold", assignment=Assignment(claim, fence, "acme")))


def test_an_offer_is_taken_once_and_reported_as_activating(place: Place) -> None:
    async def run() -> None:
        agent = idle(place)
        offer(agent)
        offer(agent)
        assert agent._offers.qsize() == 1
        assert agent.hold is not None
        assert (agent.hold.assignment.claim, agent.greatest_fence, agent._report.doing) == ("c-1", 7, "activating")
        assert await agent.next_hold() is agent.hold

    on_virtual_time(run())


def test_a_repeated_offer_is_no_news_and_another_one_is_logged(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        agent = idle(place)
        offer(agent)
        offer(agent)
        assert "ignored" not in capsys.readouterr().err, "the server repeats an offer until it is acknowledged"
        for fence, claim in ((8, "c-1"), (7, "c-2")):
            offer(agent, fence, claim)
            assert "ignored" in capsys.readouterr().err
        assert agent._offers.qsize() == 1

    on_virtual_time(run())


@pytest.mark.parametrize(("greatest", "taken"), [(6, True), (7, False), (8, False)])
def test_an_offer_with_an_old_fence_is_ignored(place: Place, greatest: int, taken: bool) -> None:
    async def run() -> None:
        agent = idle(place)
        agent.greatest_fence = greatest
        offer(agent)
        assert (agent.hold is not None) is taken
        assert agent._offers.qsize() == int(taken)

    on_virtual_time(run())


@pytest.mark.parametrize("doing", ["activating", "running", "resetting"])
def test_an_offer_to_an_agent_that_is_not_idle_is_ignored(place: Place, doing: str) -> None:
    async def run() -> None:
        agent = idle(place)
        agent.report_state(doing)
        offer(agent)
        assert (agent.hold, agent.greatest_fence) == (None, 0)

    on_virtual_time(run())


def test_an_offer_to_a_draining_agent_is_ignored(place: Place) -> None:
    async def run() -> None:
        agent = idle(place)
        agent.draining = True
        offer(agent)
        assert agent.hold is None

    on_virtual_time(run())


def test_a_hold_without_an_assignment_and_an_unknown_directive_are_ignored(place: Place) -> None:
    async def run() -> None:
        agent = idle(place)
        for do in ("hold", "dance", "nothing", "end"):
            agent._obey(Directive(do=do))
        assert (agent.hold, agent._leaving.done(), agent._report.doing) == (None, False, "idle")

    on_virtual_time(run())


@pytest.mark.parametrize(("fence", "ends"), [(7, True), (6, False), (None, False)])
def test_only_the_end_of_the_held_assignment_is_obeyed(place: Place, fence: int | None, ends: bool) -> None:
    async def run() -> None:
        agent = idle(place)
        offer(agent)
        assert agent.hold is not None
        agent._obey(Directive(do="end", fence=fence, reason="released"))
        assert agent.hold.ended.done() is ends

    on_virtual_time(run())


def test_only_a_free_agent_obeys_an_exit(place: Place) -> None:
    async def run() -> None:
        busy, free, unnamed = idle(place), idle(place), idle(place)
        offer(busy)
        for agent, reason in ((busy, "x"), (free, "the pool is gone"), (unnamed, "")):
            agent._obey(Directive(do="exit", reason=reason))
        assert not busy._leaving.done()
        assert [(leave.code, leave.reason) for leave in (free._leaving.result(), unnamed._leaving.result())] == [
            (0, "the pool is gone"),
            (0, "condemned"),
        ]
        free.leave(Leave(1, "later"))
        assert free._leaving.result().code == 0, "the first reason counts"

    on_virtual_time(run())


# SIGTERM


def test_sigterm_and_sigint_drain(place: Place) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        server = Server()
        living = asyncio.create_task(place.agent(server).run())
        await settle()
        assert set(loop.handlers) == {signal.SIGTERM, signal.SIGINT}
        loop.handlers[signal.SIGTERM]()
        assert await living == 0
        assert (server.doing(), passed()) == (["idle", "draining"], 0)
        assert server.sent("poll")[-1]["wait"] == 0, "the last report waits for no directive"

    on_virtual_time(run())


def test_the_goodbye_of_a_free_agent_is_given_up_after_half_a_second(place: Place) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server)
        living = asyncio.create_task(agent.run())
        await settle()
        server.away = {"poll"}
        agent.drain()
        assert await living == 0
        assert passed() == main.DRAIN_REPORT_SECONDS

    on_virtual_time(run())


def test_an_agent_that_is_not_registered_leaves_without_a_goodbye(place: Place) -> None:
    async def run() -> None:
        server = Server()
        server.away = {"register"}
        agent = place.agent(server)
        living = asyncio.create_task(agent.run())
        await settle()
        agent.drain()
        assert await living == 0
        assert server.sent("poll") == []

    on_virtual_time(run())


def test_a_free_agent_with_a_stage_never_leaves_with_a_success(place: Place) -> None:
    async def run() -> None:
        agent = place.agent(Server(), stage=place.stage)
        living = asyncio.create_task(agent.run())
        await settle()
        agent.drain()
        assert await living == NOT_STAGED, "a success would start the worker's container"

    on_virtual_time(run())


def test_a_busy_agent_drains_until_its_grace_is_over_and_says_so_once(place: Place) -> None:
    async def run() -> None:
        server = Server(grace=30)
        agent = place.agent(server)
        living = asyncio.create_task(agent.run())
        await settle()
        offer(agent)
        hold = agent.hold
        assert hold is not None
        agent.drain()
        agent.drain()
        assert (agent._report.doing, agent._leaving.done()) == ("draining", False)
        await asyncio.sleep(29.9)
        assert not hold.ended.done()
        await asyncio.sleep(0.2)
        assert hold.ended.result() == Directive(do=GRACE, reason="the worker's grace ran out")
        living.cancel()

    on_virtual_time(run())


def test_a_draining_agent_leaves_when_its_claim_is_over(place: Place) -> None:
    async def run() -> None:
        agent = idle(place)
        offer(agent)
        (place.folder / "payload.json").write_text("{}")
        agent.let_go()
        assert agent.hold is None
        assert not (place.folder / "payload.json").exists()
        agent.draining = True
        with pytest.raises(Leave, match="drained") as leave:
            agent.let_go()
        assert leave.value.code == 0

    on_virtual_time(run())


def test_a_claim_from_before_a_restart_is_reported_as_running(place: Place) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server)
        agent.registration = await agent.control.register()
        hold = agent.resume(Assignment("c-1", 7, "acme"))
        await settle()
        assert (agent.hold, agent.greatest_fence) == (hold, 7)
        assert [(each["doing"], each["claim"]) for each in server.sent("poll")] == [("running", "c-1")]
        agent._start_polling()
        await settle()
        assert server.most_polls == 1

    on_virtual_time(run())
