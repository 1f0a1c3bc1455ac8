"""The API as a whole: /openapi.json describes what is served, no route answers without a token, and streams have a limit."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from fleet import eventually
from holdfast.api.app import ROUTES
from holdfast.api.auth import STREAMS
from holdfast.ports.store import StoreUnavailable
from served_api import Stage

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("/openapi.json", "/openapi-agents.json")
ANYONES = ("/healthz", "/readyz", *DOCUMENTS)


@pytest.fixture
def described(stage: Stage) -> dict[str, Any]:
    """Returns the paths of both documents."""
    paths: dict[str, Any] = {}
    for document in DOCUMENTS:
        answer = stage.ask("GET", document)
        assert answer.status == 200
        assert not paths.keys() & answer.json["paths"].keys()
        paths |= answer.json["paths"]
    return {"paths": paths}


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in described["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


# The document


def test_the_document_lists_what_is_served_and_nothing_else(stage: Stage, described: dict[str, Any]) -> None:
    listed = {(method, path) for method, path, _ in operations(described)}
    served = {
        (method.lower(), route.path)
        for route in stage.wired.app.routes
        if isinstance(route, Route)
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert served == listed
    assert len(stage.wired.app.routes) == len({each.path for each in ROUTES})


def test_every_operation_documents_its_purpose_and_its_roles(described: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(ids) == len(set(ids))
    for _, path, operation in operations(described):
        assert operation["summary"], path
        assert operation["security"] == [{"bearer": []}], path
        assert "401" in operation["responses"], path
        assert any(status.startswith("2") for status in operation["responses"]), path


# Tokens


def test_no_request_is_answered_without_a_token(stage: Stage, described: dict[str, Any]) -> None:
    documented = [(method.upper(), re.sub(r"{\w+}", "x", path)) for method, path, _ in operations(described)]
    strange = [("GET", "/"), ("GET", "/nowhere"), ("OPTIONS", "/v1/pools"), ("PATCH", "/v1/pools/direct"), ("HEAD", "/healthz")]
    for method, path in documented + strange:
        body = {} if method in ("POST", "PUT") else None
        for token in (None, "a-guess") if path != "/v1/worker/register" else (None,):
            answer = stage.ask(method, path, body, token=token)
            assert answer.status == 401, (method, path, token)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert b"direct" not in answer.raw
            assert "allow" not in answer.headers, "without a valid token, no answer shows which paths and methods exist"


@pytest.mark.parametrize("holder", ["admin", "operator", "acme", "agent"])
def test_every_valid_token_may_read_health_and_the_openapi_document(stage: Stage, holder: str) -> None:
    token = stage.agent_token() if holder == "agent" else holder
    stage.wired.replica.beat_at = stage.loop.time()
    for path in ANYONES:
        assert stage.ask("GET", path, token=token).status == 200, path
    assert stage.ask("GET", "/v1/nowhere", token=token).status == 404
    assert stage.ask("PATCH", "/healthz", token=token).status == 405


def test_while_the_store_is_away_known_tokens_are_answered_that_we_are_alive(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: str) -> None:
        raise StoreUnavailable("away")

    auth = stage.wired.context.auth
    assert stage.ask("GET", "/healthz", token="operator").status == 200
    monkeypatch.setattr(stage.store.tokens, "by_hash", away)
    later = auth._clock() + 3600
    monkeypatch.setattr(auth, "_clock", lambda: later)  # nothing in the cache is fresh any more
    assert stage.ask("GET", "/healthz", token="operator").status == 200
    assert stage.ask("GET", "/healthz", token=stage.agent_token()).status == 200
    assert stage.ask("GET", "/healthz").status == 503, "a token that was never seen may be a guess"
    assert stage.ask("GET", "/v1/me", token="operator").status == 503, "and nothing else is open to what may be revoked by now"


def test_a_refused_method_is_answered_with_all_allowed_methods(stage: Stage) -> None:
    answer = stage.ask("PATCH", "/v1/pools/direct", {})
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT", "DELETE"}


def test_no_path_redirects(stage: Stage) -> None:
    """A redirect would contain the host name that the caller sent."""
    assert stage.ask("GET", "/v1/claims/", headers={"Host": "evil.example"}).status == 404


def test_a_defect_shows_nothing_of_its_cause_to_callers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("with hunter2 in it")

    monkeypatch.setattr(stage.store.pools, "loads", broken)
    answer = stage.ask("GET", "/v1/pools")
    assert (answer.status, answer.json["code"]) == (500, "internal")
    assert b"hunter2" not in answer.raw


# Replicas


def test_replicas_that_are_gone_are_shown_for_ten_minutes_and_then_forgotten(stage: Stage) -> None:
    ages = {"r-live": 0, "r-silent": 60, "r-stopped": 60, "r-long-silent": 660, "r-long-stopped": 660}
    for id_, age in ages.items():
        stage.do(stage.store.fleet.join(id_, 1, "here", "http://127.0.0.1:1", "0"))
        if "stopped" in id_:
            stage.do(stage.store.fleet.leave(id_))
        shift = (
            "UPDATE holdfast.replica SET seen_at = seen_at - make_interval(secs => $2), "
            "stopped_at = stopped_at - make_interval(secs => $2) WHERE id = $1"
        )
        stage.do(stage.store.db.rows(shift, id_, float(age)))
    shown = {replica["id"]: replica["state"] for replica in stage.ask("GET", "/v1/replicas").json["items"]}
    assert shown == {"r-live": "live", "r-silent": "silent", "r-stopped": "stopped"}


# Streams


def test_one_token_opens_only_so_many_streams(stage: Stage) -> None:
    auth = stage.wired.context.auth
    caller = stage.do(auth.caller("Bearer acme"))
    auth._streams[caller.id, STREAMS] = STREAMS
    answer = stage.ask("GET", "/v1/events", token="acme", headers={"Accept": "text/event-stream"})
    assert (answer.status, answer.json["code"]) == (429, "too-many")
    assert stage.ask("GET", "/v1/events", token="acme").status == 200  # a page is not a stream
    assert json.loads(answer.raw)["detail"]


def test_a_claim_that_the_database_lost_while_its_caller_waited_is_to_be_asked_for_again(stage: Stage) -> None:
    """After a failover that lost the last commits the claim is unknown, which is not the caller's mistake."""
    with ThreadPoolExecutor(1) as caller:
        body = {"pool": "agents", "command": ["true"], "key": "lost", "wait": "20s"}
        waiting = caller.submit(lambda: stage.ask("POST", "/v1/claims", body))
        lose = "DELETE FROM holdfast.claim WHERE key = 'lost' RETURNING id"
        [row] = eventually(lambda: stage.do(stage.store.db.rows(lose)), 10, "it is stored, and lost again")
        stage.do(_wake(stage, row["id"]))
        answer = waiting.result(20)
    assert (answer.status, answer.json["code"]) == (503, "unavailable"), answer.raw


async def _wake(stage: Stage, claim: str) -> None:
    stage.wired.context.signals.claims.changed(claim)


def test_a_key_returns_its_claim_after_the_pool_was_deleted(stage: Stage) -> None:
    claim = stage.claim(key="build-7", lease="60s")
    assert stage.ask("DELETE", "/v1/pools/direct").status in (200, 202, 204)
    request = {"pool": "direct", "wait": "0s", "key": "build-7"}
    again = stage.ask("POST", "/v1/claims", request | {"lease": "60s"}, token="acme")
    assert (again.status, again.json["id"], again.json["worker"]) == (200, claim["id"], claim["worker"])
    assert stage.ask("POST", "/v1/claims", request | {"lease": "30s"}, token="acme").status == 404
    assert stage.ask("POST", "/v1/claims", request | {"lease": "60s"}, token="rival").status == 404
