"""A replica that has not compared its marks sends its agents to another replica, because it can do nothing for them (P7, P8)."""

import time

from fleet import Answer
from holdfast.ports.recovery import UNCOMPARED
from postgres.store_steps import ask
from served_api import Stage


def poll(stage: Stage, wait: int = 0) -> Answer:
    body = {"doing": "idle", "wait": wait, "incarnation": 1}
    return stage.ask("POST", "/v1/worker/poll", body, token=stage.agent_token())


async def saw(stage: Stage, mark: int) -> None:
    stage.store.recovery.saw(mark)


async def offer(stage: Stage) -> str:
    [pair] = (await stage.store.claims.match("p-agents", [ask("acme")], 1)).pairs
    await stage.store.claims.offer([(pair.claim, pair.fence, True)])
    return pair.claim


def test_an_agent_that_polls_a_replica_which_has_not_compared_its_marks_is_sent_to_another(stage: Stage) -> None:
    claim = stage.do(offer(stage))
    stage.do(saw(stage, UNCOMPARED))
    refused = poll(stage)
    assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (503, "unavailable", "2")
    assert "has not compared" in refused.json["detail"]
    stage.do(saw(stage, 0))
    assert poll(stage).json["assignment"]["claim"] == claim, "nothing was lost"


def test_an_open_poll_is_refused_when_its_replica_stops_acting(stage: Stage) -> None:
    began = time.monotonic()
    stage.loop.call_soon_threadsafe(stage.loop.call_later, 0.5, stage.store.recovery.saw, UNCOMPARED)
    assert poll(stage, wait=20).status == 503
    assert time.monotonic() - began < 15, "the agent would wait for a claim at a replica that gives out none"


def test_a_poll_during_a_recovery_is_accepted_because_the_agents_report_counts(stage: Stage) -> None:
    stage.do(stage.store.recovery.begin("restored", 0))
    body = {"doing": "idle", "wait": 0, "incarnation": 2}
    answer = stage.ask("POST", "/v1/worker/poll", body, token=stage.agent_token())
    assert (answer.status, answer.json) == (200, {"do": "nothing"})
