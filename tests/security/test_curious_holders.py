"""A tenant or a worker looks for what belongs to others: a worker that it has not been given yet, the reason of another claim."""

import json
from typing import Any

from served_api import Stage


def test_explain_shows_a_tenant_its_worker_only_when_the_claim_is_active(stage: Stage) -> None:
    """Before that the worker may not be protected yet, and may be given to another claim (P3)."""
    claim = stage.claim(pool="agents", command=["true"], wait="0s")

    def explained(token: str) -> str:
        answer = stage.ask("GET", f"/v1/explain/claim/{claim['id']}", token=token)
        assert answer.status == 200, answer.raw
        return json.dumps(answer.json)

    assert stage.do(stage.store.claims.state(claim["id"])) == "assigned"
    assert "w-agent" not in explained("acme")
    assert "w-agent" in explained("operator"), "an operator looks for what is wrong"
    token = stage.agent_token()
    given = stage.ask("POST", "/v1/worker/poll", {"doing": "idle", "wait": 10}, token=token).json["assignment"]
    assert stage.ask("POST", "/v1/worker/ack", {"fence": given["fence"], "endpoint": None}, token=token).status == 200
    assert "w-agent" in explained("acme")


def ended(stage: Stage, reason: str) -> dict[str, Any]:
    claim = stage.claim()
    body = {"fence": claim["fence"], "reason": reason}
    assert stage.ask("POST", f"/v1/claims/{claim['id']}/release", body, token="acme").status == 200
    return claim


def test_an_agent_does_not_learn_the_reason_of_another_claim(stage: Stage) -> None:
    claim = ended(stage, "the deal with Initech is off")
    report = {"doing": "running", "claim": claim["id"], "fence": claim["fence"], "tenant": "acme", "wait": 0}
    for credential in (None, "hfc_guessed"):
        answer = stage.ask("POST", "/v1/worker/poll", {**report, "credential": credential}, token=stage.agent_token())
        assert (answer.status, answer.json["do"]) == (200, "end"), "it has to let go of the claim all the same"
        assert "Initech" not in answer.raw.decode()
        assert answer.json["reason"] == "the claim is not this worker's"
    proof = stage.wired.context.auth.credential(claim["id"], claim["fence"])
    answer = stage.ask("POST", "/v1/worker/poll", {**report, "credential": proof}, token=stage.agent_token(claim["worker"]))
    assert (answer.json["do"], answer.json["reason"]) == ("end", "the deal with Initech is off")
