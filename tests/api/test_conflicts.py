"""A change of a claim that is not possible answers 409 with the code that docs/api.md gives: `ended` or `stale`."""

import pytest

from fleet import Answer
from served_api import Stage


def change(stage: Stage, claim: str, verb: str, **body: object) -> Answer:
    return stage.ask("POST", f"/v1/claims/{claim}/{verb}", body, token="acme")


@pytest.mark.parametrize("verb", ["renew", "release", "cancel"])
def test_changing_a_claim_that_ended_in_another_way_is_answered_with_ended(stage: Stage, verb: str) -> None:
    claim = stage.claim()
    end = "release" if verb == "cancel" else "cancel"
    assert change(stage, claim["id"], end).status == 200
    answer = change(stage, claim["id"], verb, **({} if verb == "cancel" else {"fence": claim["fence"]}))
    assert (answer.status, answer.json["code"]) == (409, "ended")


@pytest.mark.parametrize("verb", ["release", "cancel"])
def test_ending_a_claim_twice_in_the_same_way_succeeds(stage: Stage, verb: str) -> None:
    claim = stage.claim()
    assert [change(stage, claim["id"], verb).status for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_an_old_fence_is_answered_with_stale(stage: Stage, verb: str) -> None:
    answer = change(stage, stage.claim()["id"], verb, fence=1)
    assert (answer.status, answer.json["code"]) == (409, "stale")


@pytest.mark.parametrize(("verb", "body"), [("renew", {"fence": 1}), ("release", {})])
def test_a_claim_that_waits_is_answered_with_stale_and_what_to_do(stage: Stage, verb: str, body: dict[str, int]) -> None:
    stage.ask("PUT", "/v1/pools/empty", {"warm": 0, "max": 0})
    waits = stage.claim(pool="empty", command=["true"], wait="0s")
    answer = change(stage, waits["id"], verb, **body)
    assert (answer.status, answer.json["code"]) == (409, "stale")
    assert "wait for it, or cancel it" in answer.json["detail"]
