"""The number of statements for a claim that becomes active, for a renewal and for a release."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fleet import eventually
from holdfast.postgres.database import Database
from served_api import Stage

AGENT = {"doing": "idle", "wait": 20}


@pytest.fixture
def stage(served: Stage) -> Stage:
    return served


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that collects every statement that is sent to the store from now on."""
    sent: list[str] = []
    rows = Database.rows

    async def counted(self: Database, text: str, *args: object) -> Any:
        sent.append(text)
        return await rows(self, text, *args)

    monkeypatch.setattr(Database, "rows", counted)
    return sent


def of(stage: Stage, method: str, path: str, body: Any, token: str) -> dict[str, Any]:
    answer = stage.ask(method, path, body, token=token)
    assert answer.status in (200, 201), answer.raw
    return dict(json.loads(answer.raw))


def serve_one(stage: Stage, statements: list[str], claim: dict[str, Any]) -> dict[str, Any]:
    """Makes a claim for a worker whose agent polls already, and acknowledges as the agent does. Returns the holder's answer. The
    agent's report from before the claim is not counted.
    """
    agent = stage.agent_token()
    statements.clear()
    with ThreadPoolExecutor(2) as pool:
        polling = pool.submit(of, stage, "POST", "/v1/worker/poll", AGENT, agent)
        eventually(lambda: len(statements) >= 1, 10, "the agent polls")
        statements.clear()
        asking = pool.submit(of, stage, "POST", "/v1/claims", claim, "acme")
        hold = polling.result(30)
        assert hold["do"] == "hold", hold
        of(stage, "POST", "/v1/worker/ack", {"fence": hold["assignment"]["fence"]}, agent)
        return asking.result(30)


def warm_up(stage: Stage) -> None:
    """Fills the caches of tokens and pools, so that they are not counted."""
    stage.ask("GET", "/v1/claims?pool=agents", token="acme")
    stage.do(stage.wired.context.pool("agents"))


def test_a_claim_becomes_active_with_five_statements(stage: Stage, statements: list[str]) -> None:
    warm_up(stage)
    served = serve_one(stage, statements, {"pool": "agents", "command": ["true"], "wait": "20s"})
    assert served["state"] == "active"
    assert len(statements) <= 5, statements


def test_a_renewal_and_a_release_are_one_statement_each(stage: Stage, statements: list[str]) -> None:
    warm_up(stage)
    served = serve_one(stage, statements, {"pool": "agents", "command": ["true"], "wait": "20s", "lease": "30s"})
    statements.clear()
    path, body = f"/v1/claims/{served['id']}", {"fence": served["fence"]}
    renewed = of(stage, "POST", f"{path}/renew", body, "acme")
    assert renewed["lease_until"] >= served["lease_until"]
    assert len(statements) == 1, statements
    statements.clear()
    released = of(stage, "POST", f"{path}/release", body, "acme")
    assert (released["state"], released["outcome"]) == ("ended", "released")
    assert len(statements) == 1, statements
