"""Only errors that Postgres reports as bad data are the caller's fault. All other errors are logged and answered with 500."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import pytest
import structlog.testing
from starlette.requests import Request

from served_api import Stage

WAITS = {"pool": "agents", "command": ["true"], "wait": "0s"}


@pytest.fixture
def stage(served: Stage) -> Stage:
    return served


def break_match(monkeypatch: pytest.MonkeyPatch, error: Exception, only: str | None = None) -> None:
    """Makes the statement of every batch (or of every batch that contains `only`) fail with this error."""
    fetch = asyncpg.Connection.fetch

    async def failing(self: asyncpg.Connection, sql: str, *args: Any, **more: Any) -> Any:
        if ".match(" in sql and args[1] != "[]" and (only is None or only in args[1]):
            raise error
        return await fetch(self, sql, *args, **more)

    monkeypatch.setattr(asyncpg.Connection, "fetch", failing)


def test_a_defect_in_the_claim_statement_is_logged_and_answered_with_500(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    break_match(monkeypatch, asyncpg.exceptions.UndefinedColumnError('column "nowhere" does not exist'))
    with structlog.testing.capture_logs() as logs:
        answer = stage.ask("POST", "/v1/claims", WAITS)
    assert (answer.status, answer.json["code"]) == (500, "internal")
    assert [line["event"] for line in logs if line.get("exc_info")] == ["a request failed"]


def test_what_postgres_calls_bad_data_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    break_match(monkeypatch, asyncpg.exceptions.UntranslatableCharacterError("a secret value"))
    answer = stage.ask("POST", "/v1/claims", WAITS)
    assert (answer.status, answer.json["errors"][0]["field"]) == (422, "body")
    assert b"secret value" not in answer.raw


def test_a_request_that_breaks_its_batch_fails_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests at the same time share a batch. One of them makes the statement fail, and the others are still served."""
    break_match(monkeypatch, asyncpg.exceptions.NumericValueOutOfRangeError("bad"), only="poison")
    with ThreadPoolExecutor(8) as callers:
        asked = [{**WAITS, "payload": "poison" if n == 3 else n} for n in range(8)]
        answers = list(callers.map(lambda body: stage.ask("POST", "/v1/claims", body).status, asked))
    assert sorted(answers) == [202] * 7 + [422]
    assert answers[3] == 422


def test_no_module_of_the_api_keeps_an_exception_to_raise(stage: Stage) -> None:
    """A raised exception keeps its traceback, frames and the request in them. A shared one would keep those forever."""
    modules = [module for name, module in sys.modules.items() if name.startswith("holdfast.")]
    assert modules
    kept = [(module.__name__, name) for module in modules for name, value in vars(module).items() if isinstance(value, Exception)]
    assert kept == []


def test_a_refused_agent_request_is_not_kept_in_memory(stage: Stage) -> None:
    def refuse() -> None:
        answer = stage.ask("POST", "/v1/worker/ack", {"fence": 7}, token=stage.agent_token())
        assert answer.status == 409

    def requests() -> int:
        gc.collect()
        return sum(isinstance(each, Request) for each in gc.get_objects())

    refuse()
    before = requests()
    for _ in range(5):
        refuse()
    assert requests() <= before
