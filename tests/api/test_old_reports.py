"""A report that an agent sent before commits were lost proves nothing afterwards, however late a replica reads it (P1, P7)."""

import time
from typing import Any

import pytest

from holdfast.model.effect import Done
from postgres.store_steps import ask
from served_api import Stage

BEFORE, NOW = 1, 2  # the database's incarnations


async def recover(stage: Stage) -> None:
    await stage.store.recovery.begin("restored", 0)
    assert await stage.store.recovery.end() == Done()


def poll(stage: Stage, worker: str = "w-agent", **report: Any) -> dict[str, Any]:
    body = {"doing": "idle", "wait": 0, **report}
    answer = stage.ask("POST", "/v1/worker/poll", body, token=stage.agent_token(worker))
    assert answer.status == 200, answer.raw
    return dict(answer.json)


def confirmed(stage: Stage) -> bool:
    row = stage.do(stage.store.workers.get("w-agent"))
    assert row is not None
    return row.confirmed


@pytest.mark.parametrize("seen", [0, BEFORE])
def test_a_poll_that_lay_in_the_buffer_of_a_paused_replica_confirms_no_worker(stage: Stage, seen: int) -> None:
    stage.do(recover(stage))
    began = time.monotonic()
    assert poll(stage, incarnation=seen, wait=20) == {"do": "nothing", "incarnation": NOW}
    assert time.monotonic() - began < 10, "the agent should send its report again at once"
    assert not confirmed(stage), "the worker may have got a claim since the agent sent this"
    assert poll(stage, incarnation=NOW) == {"do": "nothing"}
    assert confirmed(stage)


def test_a_poll_of_an_agent_that_does_not_know_incarnations_counts_as_before(stage: Stage) -> None:
    stage.do(recover(stage))
    assert poll(stage) == {"do": "nothing"}
    assert confirmed(stage)


def test_an_open_poll_is_answered_when_the_database_has_lost_commits(stage: Stage) -> None:
    began = time.monotonic()
    stage.loop.call_soon_threadsafe(
        stage.loop.call_later, 0.5, lambda: stage.loop.create_task(stage.store.recovery.begin("restored", 0))
    )
    assert poll(stage, incarnation=BEFORE, wait=20)["incarnation"] == NOW
    assert time.monotonic() - began < 15, "recovery waits for the agent's next report"


def test_the_agent_of_a_pod_without_a_row_learns_the_incarnation_first(stage: Stage) -> None:
    """Otherwise none of its reports would count, and a recovery would never adopt its pod."""
    assert poll(stage, "w-forgotten", incarnation=0)["incarnation"] == BEFORE
    answer = stage.ask(
        "POST", "/v1/worker/poll", {"doing": "idle", "incarnation": BEFORE}, token=stage.agent_token("w-forgotten")
    )
    assert (answer.status, answer.json["code"]) == (409, "unknown-worker")


@pytest.mark.parametrize(("seen", "confirms"), [(BEFORE, False), (NOW, True), (None, True)])
def test_an_old_acknowledgement_is_accepted_but_confirms_no_worker(stage: Stage, seen: int | None, confirms: bool) -> None:
    async def deliver() -> int:
        [pair] = (await stage.store.claims.match("p-agents", [ask("acme")], 1)).pairs
        await stage.store.claims.offer([(pair.claim, pair.fence, True)])
        assert await stage.store.claims.deliver("w-agent", "u-w-agent") is not None
        await recover(stage)
        return pair.fence

    body = {"fence": stage.do(deliver()), "incarnation": seen}
    for _ in range(2):
        assert stage.ask("POST", "/v1/worker/ack", body, token=stage.agent_token()).status == 200
        assert confirmed(stage) == confirms, "the agent may have ended this claim since, and hold another"
