"""A job's agent in this process: its result is stored and reported, and nothing of it is left when it leaves."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_server import STALE, Place, Server

from holdfast.agent.hold import Leave
from virtual_time import on_virtual_time, passed, settle


@pytest.mark.parametrize(
    ("answers", "why"), [([], "the server stored the result"), ([STALE], "the claim had already ended in another way")]
)
async def test_a_result_is_stored_reported_and_explained(
    place: Place, capsys: pytest.CaptureFixture[str], answers: list[Any], why: str
) -> None:
    server = Server()
    server.answers["result"] = answers
    server.offer(command=["sh", "-c", 'echo "$HOLDFAST_CLAIM"; cat "$HOLDFAST_PAYLOAD"; exit 4'], payload={"n": 1})
    assert await asyncio.wait_for(place.agent(server).run(), 60) == 0
    assert server.sent("result") == [{"fence": 7, "exit_code": 4, "reason": ""}]
    assert json.loads((place.folder / "result.json").read_text()) == {"claim": "c-1", "fence": 7, "exit_code": 4}
    assert (place.folder / "c-1").read_text() == 'c-1\n{"n": 1}'
    assert not (place.folder / "payload.json").exists()
    assert "running" in server.doing()
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(("pool", "ran"), [([], "claim"), (["echo", "pool"], "pool")])
async def test_the_pools_command_goes_before_the_claims(place: Place, pool: list[str], ran: str) -> None:
    server = Server(worker={"run": pool})
    server.offer(command=["echo", "claim"])
    assert await asyncio.wait_for(place.agent(server).run(), 60) == 0
    assert (place.folder / "c-1").read_text() == f"{ran}\n"


@pytest.mark.parametrize(("hook", "refusals"), [(["true"], []), (["false"], [{"fence": 7, "reason": "activate exited with 1"}])])
async def test_a_command_runs_only_after_its_hook_succeeded(place: Place, hook: list[str], refusals: list[Any]) -> None:
    server = Server(worker={"activate": hook})
    server.offer()
    assert await asyncio.wait_for(place.agent(server).run(), 60) == len(refusals)
    assert server.sent("refuse") == refusals
    assert len(server.sent("ack")) == len(server.sent("result")) == 1 - len(refusals)


async def test_a_claim_that_is_not_ours_during_its_hook_is_not_acknowledged(place: Place) -> None:
    server = Server(worker={"activate": ["sleep", "600"]})
    server.answers["progress"] = [STALE]
    server.offer()
    assert await asyncio.wait_for(place.agent(server).run(), 60) == 1
    assert (server.sent("ack"), len(server.sent("failed"))) == ([], 1)


# The end of the agent


def test_when_the_agent_leaves_its_work_has_cleaned_up_and_no_poll_is_open(place: Place) -> None:
    async def run() -> None:
        server, cleaned = Server(), []
        agent = place.agent(server)
        work = agent._work

        async def careful() -> None:
            try:
                await work()
            finally:
                await asyncio.sleep(1)
                cleaned.append(passed())

        agent._work = careful  # type: ignore[method-assign]
        living = asyncio.create_task(agent.run())
        await settle()
        agent.leave(Leave(0, "condemned"))
        assert await living == 0
        assert cleaned == [1.0]
        await settle()
        assert (server.open_polls, len(server.sent("poll"))) == (0, 1), "an agent that does not drain says no goodbye"

    on_virtual_time(run())


def stopping(how: Callable[[], None]) -> Any:
    calls: list[str] = []

    async def stop() -> None:
        calls.append("stop")
        how()

    return SimpleNamespace(calls=calls, stop=stop, kill=lambda: calls.append("kill"))


def test_the_served_process_is_stopped_and_in_any_case_killed(place: Place) -> None:
    def fails() -> None:
        raise ValueError("a defect")

    async def run() -> None:
        good, bad = place.agent(Server()), place.agent(Server())
        for agent, how in ((good, lambda: None), (bad, fails)):
            agent.served = stopping(how)
            agent.leave(Leave(0, "condemned"))
        assert await good.run() == 0
        with pytest.raises(ValueError, match="a defect"):
            await bad.run()
        assert good.served.calls == bad.served.calls == ["stop", "kill"]  # type: ignore[union-attr]

    on_virtual_time(run())


@pytest.mark.parametrize("busy", [True, False])
def test_only_a_free_agent_that_drains_says_goodbye(place: Place, busy: bool) -> None:
    async def run() -> None:
        server = Server()
        agent = place.agent(server)
        living = asyncio.create_task(agent.run())
        await settle()
        if busy:
            server.slow["ack"] = 600.0
            server.offer()
            await asyncio.sleep(1)
        agent.drain()
        agent.leave(Leave(0, "anyway"))
        await living
        assert len([poll for poll in server.sent("poll") if poll["wait"] == 0]) == int(not busy)

    on_virtual_time(run())
