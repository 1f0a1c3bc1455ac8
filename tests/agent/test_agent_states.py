"""The agent's life on virtual time: how a staged job is handed over, when the agent polls, and with which code it leaves."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from scripted_server import STALE, Place, Server, answer

from holdfast.agent import main
from holdfast.agent.hold import NOT_OURS, Hold, Leave
from holdfast.agent.messages import Assignment, Directive
from holdfast.agent.staging import NOT_STAGED
from virtual_time import on_virtual_time, passed, settle


def test_the_numbers_of_the_agent_are_the_documented_ones() -> None:
    assert (main.SHORT_ACTIVATION, main.SOON, main.FINAL_REPORT_SECONDS, main.DRAIN_REPORT_SECONDS) == (0.1, 1.0, 15.0, 0.5)


# A staged job, from its offer to the agent's exit


def test_a_job_is_staged_acknowledged_signed_and_left_to_its_container(place: Place) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server, stage=place.stage, termination=place.folder / "termination")
        server.offer(payload={"n": 1})
        assert await agent.run() == 0
        assert server.sent("ack") == [{"fence": 7, "endpoint": None, "incarnation": 0}]
        assert json.loads((place.folder / "termination").read_text()) == {"claim": "c-1", "fence": 7}
        assert {each.name for each in place.stage.iterdir()} == {"run", "variables", "assignment.json", "payload.json"}
        assert not (place.folder / "payload.json").exists(), "the agent's own copy is removed"
        assert (server.sent("failed"), server.sent("refuse"), server.closed) == ([], [], True)

    on_virtual_time(run())


def test_the_pools_command_is_staged_before_the_claims(place: Place) -> None:
    async def run() -> None:
        server = Server(worker={"run": ["pool"]})
        server.offer(command=["claim"])
        assert await place.agent(server, stage=place.stage).run() == 0
        assert json.loads((place.stage / "assignment.json").read_text())["command"] == ["pool"]

    on_virtual_time(run())


def test_a_job_that_is_not_ours_is_not_left_to_its_container(place: Place) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server, stage=place.stage, termination=place.folder / "termination")
        server.answers["ack"] = [STALE]
        server.offer()
        assert await agent.run() == 1
        assert server.sent("failed") == [{"reason": NOT_OURS}]
        assert list(place.stage.iterdir()) == []
        assert not (place.folder / "termination").exists()

    on_virtual_time(run())


def test_a_job_that_cannot_be_staged_is_refused_with_the_reason(place: Place) -> None:
    async def run() -> None:
        server = Server()
        server.offer()
        assert await place.agent(server, stage=place.folder / "nowhere" / "job").run() == 1
        assert server.sent("refuse") == [{"fence": 7, "reason": "the job could not be staged: No such file or directory"}]
        assert server.sent("ack") == []

    on_virtual_time(run())


def test_a_payload_that_cannot_be_written_refuses_the_claim(place: Place) -> None:
    async def run() -> None:
        server = Server()
        server.offer()
        assert await place.agent(server, folder=place.folder / "nowhere").run() == 1
        assert [each["fence"] for each in server.sent("refuse")] == [7]
        assert server.sent("ack") == []

    on_virtual_time(run())


@pytest.mark.parametrize(("hook", "code"), [([], NOT_STAGED), (["true"], 1)])
def test_a_claim_that_ends_before_its_acknowledgement_spends_the_worker_only_if_a_hook_is_set(
    place: Place, hook: list[str], code: int
) -> None:
    async def run() -> None:
        server = Server(worker={"activate": hook})
        agent = place.agent(server, stage=place.stage)

        async def ended(*_: Any) -> str:
            return "ended"

        agent.activate_and_acknowledge = ended  # type: ignore[method-assign, assignment]
        server.offer()
        assert await agent.run() == code
        assert len(server.sent("failed")) == len(hook)
        assert list(place.stage.iterdir()) == []

    on_virtual_time(run())


def test_an_end_while_the_acknowledgement_is_in_progress_is_obeyed(place: Place) -> None:
    async def run() -> None:
        server = Server()
        server.slow["ack"] = 5.0
        server.offer()
        server.direct(do="end", fence=7, reason="released")
        assert await place.agent(server).run() == 0
        assert passed() < 5
        assert (server.sent("failed"), server.sent("result")) == ([], [])

    on_virtual_time(run())


def test_an_acknowledgement_that_is_not_needed_any_more_is_not_repeated(place: Place) -> None:
    async def run() -> None:
        server = Server()
        server.slow["ack"] = 5.0
        agent, hold = place.agent(server), Hold(Assignment("c-1", 7, "acme"))
        asyncio.get_running_loop().call_later(1, hold.end, Directive(do="end"))
        assert (await agent.acknowledge(hold), passed()) == ("ended", 1)
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    on_virtual_time(run())


def test_an_acknowledgement_tells_what_the_server_answered(place: Place) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server)
        agent.endpoint = "http://here"
        server.answers["ack"] = [answer({}), STALE]
        accepted, stale = (Hold(Assignment("c-1", fence, "acme")) for fence in (7, 8))
        assert (await agent.acknowledge(accepted), accepted.accepted) == ("accepted", True)
        assert (await agent.acknowledge(stale), stale.accepted) == ("stale", False)
        assert server.sent("ack") == [{"fence": fence, "endpoint": "http://here", "incarnation": 0} for fence in (7, 8)]

    on_virtual_time(run())


# Registration


def test_a_mode_that_this_agent_does_not_know_is_a_failure(place: Place) -> None:
    async def run() -> None:
        server = Server(mode="swarm")
        assert await place.agent(server).run() == 1
        assert server.sent("failed") == [{"reason": "this agent knows no mode 'swarm'"}]

    on_virtual_time(run())


def test_a_failure_that_no_server_takes_is_given_up_after_fifteen_seconds(place: Place) -> None:
    async def run() -> None:
        server = Server(mode="swarm")
        server.away = {"failed"}
        assert await place.agent(server).run() == 1
        assert passed() == main.FINAL_REPORT_SECONDS

    on_virtual_time(run())


def test_a_defect_ends_the_agent_with_a_failure(place: Place) -> None:
    async def run() -> None:
        agent = place.agent(Server())

        async def broken() -> None:
            raise ValueError("a defect")

        agent._work = broken  # type: ignore[method-assign]
        assert await agent.run() == 1

    on_virtual_time(run())


@pytest.mark.parametrize(
    ("lonely", "seconds", "busy", "leaves"), [(60, 59.9, False, False), (60, 60, False, True), (60, 99, True, False)]
)
def test_only_a_free_agent_that_reached_no_server_for_its_time_leaves(
    place: Place, lonely: float, seconds: float, busy: bool, leaves: bool
) -> None:
    async def run() -> None:
        agent = place.agent(Server(), lonely=lonely)
        agent.hold = Hold(Assignment("c-1", 7, "acme")) if busy else None
        if leaves:
            with pytest.raises(Leave, match="no server has accepted a call for 60 s") as leave:
                agent._leave_if_silent(seconds)
            assert leave.value.code == 1
        else:
            agent._leave_if_silent(seconds)

    on_virtual_time(run())


def test_a_lonely_agent_leaves_from_its_open_poll(place: Place) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server, lonely=60.0)
        living = asyncio.create_task(agent.run())
        await asyncio.sleep(30)
        server.away = {"poll", "register"}
        assert await living == 1
        assert 90 <= passed() <= 120

    on_virtual_time(run())


# The open poll


def test_a_poll_is_open_at_all_times_and_repeated_with_each_new_state(place: Place) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server)
        living = asyncio.create_task(agent.run())
        await settle()
        assert server.sent("poll") == [
            {"doing": "idle", "incarnation": 0, "wait": 20}
            | dict.fromkeys(("claim", "fence", "tenant", "reset_fence", "endpoint", "credential"))
        ]
        agent.hold = Hold(Assignment("c-1", 7, "acme", credential="secret"))
        agent.endpoint, agent.served_fence = "http://here", 5
        agent.report_state("running")
        await settle()
        assert server.sent("poll")[1] == {
            "doing": "running",
            "claim": "c-1",
            "fence": 7,
            "tenant": "acme",
            "credential": "secret",
            "reset_fence": 5,
            "endpoint": "http://here",
            "incarnation": 0,
            "wait": 20,
        }
        assert (server.open_polls, server.most_polls, passed()) == (1, 1, 0)
        living.cancel()

    on_virtual_time(run())


def test_a_poll_that_ended_without_news_is_repeated_at_once(place: Place) -> None:
    async def run() -> None:
        server = Server()
        living = asyncio.create_task(place.agent(server).run())
        await asyncio.sleep(70)
        assert server.times("poll") == [0, 20, 40, 60]
        living.cancel()

    on_virtual_time(run())


def test_answers_that_change_nothing_and_come_at_once_are_not_asked_for_in_a_tight_loop(place: Place) -> None:
    async def run() -> None:
        server = Server(poll_seconds=0)
        living = asyncio.create_task(place.agent(server).run())
        await asyncio.sleep(10)
        polls = server.times("poll")
        gaps = [round(after - before, 6) for before, after in pairwise(polls)]
        assert 0.1 <= gaps[0] <= 0.2
        assert max(gaps) <= main.SOON
        assert min(gaps[4:]) >= main.SOON / 2, "the pause doubles up to a second"
        server.slow["poll"] = main.SOON + 1
        await asyncio.sleep(10)
        assert 4 <= len(server.times("poll")) - len(polls) <= 6, "a slow answer needs no pause"
        living.cancel()

    on_virtual_time(run())


def test_a_change_during_the_pause_is_reported_at_once(place: Place) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server)
        living = asyncio.create_task(agent.run())
        for _ in range(6):
            server.direct(do="unknown")
        await asyncio.sleep(1.5)
        before = passed()
        agent.report_state("running")
        await settle()
        assert (server.times("poll")[-1], server.doing()[-1]) == (before, "running")
        living.cancel()

    on_virtual_time(run())


@pytest.mark.parametrize(("seconds", "reported"), [(0.05, False), (0.15, True)])
def test_only_an_activation_that_takes_longer_is_reported_by_itself(place: Place, seconds: float, reported: bool) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server)
        living = asyncio.create_task(agent.run())
        await settle()
        agent.report_state("activating")
        await asyncio.sleep(seconds)
        agent.report_state("running")
        await settle()
        assert server.doing() == ["idle", *(["activating"] if reported else []), "running"]
        living.cancel()

    on_virtual_time(run())


def test_a_defect_in_the_poll_ends_no_busy_worker(place: Place) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server)
        living = asyncio.create_task(agent.run())
        await settle()
        obey = agent._obey

        def broken(directive: Directive) -> None:
            agent._obey = obey  # type: ignore[method-assign]
            raise ValueError("a defect")

        agent._obey = broken  # type: ignore[method-assign]
        server.direct(do="exit")
        await asyncio.sleep(5)
        assert not living.done()
        assert len(server.sent("poll")) == 2
        server.direct(do="exit")
        assert await living == 0

    on_virtual_time(run())
