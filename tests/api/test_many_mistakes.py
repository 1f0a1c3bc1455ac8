"""A request with several mistakes is answered with all of them, and a mistyped name with the nearest one."""

from typing import Any

import pytest

from served_api import Stage

DURATION = "must be a duration such as 500ms, 60s, 10m or 1h30m"


def problems(stage: Stage, method: str, path: str, body: Any = None, token: str = "admin") -> dict[str, str]:
    answer = stage.ask(method, path, body, token=token)
    assert answer.status == 422, answer.raw
    found = answer.json["problems"]
    assert found == answer.json["errors"]
    assert answer.json["detail"] == "; ".join(f"{each['field']}: {each['reason']}" for each in found)
    return {each["field"]: each["reason"] for each in found}


def test_claiming_with_several_wrong_fields_names_all_of_them(stage: Stage) -> None:
    before = stage.rows()
    found = problems(stage, "POST", "/v1/claims", {"pool": "direct", "wait": "soon", "priorty": 3, "lease": "1 minute"})
    assert found == {"wait": DURATION, "priorty": "is not a field of this object; did you mean 'priority'?", "lease": DURATION}
    assert stage.rows() == before


def test_claiming_with_values_that_the_pool_does_not_allow_names_all_of_them(stage: Stage) -> None:
    request = {"pool": "direct", "wait": "9999h", "deadline": "0s", "maxDuration": "100h", "lease": "10ms", "secrets": {"A": "b"}}
    found = problems(stage, "POST", "/v1/claims", request)
    assert set(found) == {"wait", "deadline", "maxDuration", "lease", "secrets"}


def test_a_wrong_wait_is_refused_also_for_a_key_that_names_a_claim(stage: Stage) -> None:
    stage.claim(key="build-7")
    assert set(problems(stage, "POST", "/v1/claims", {"pool": "direct", "key": "build-7", "wait": "9999h"}, "acme")) == {"wait"}


def test_a_pool_with_several_mistakes_names_all_of_them(stage: Stage) -> None:
    before = stage.rows()
    spec = {"mode": "sesion", "warm": -1, "worker": {"comand": []}, "park": {"ttl": "1 min"}}
    found = problems(stage, "PUT", "/v1/pools/new", spec)
    assert found == {
        "mode": "must be 'job' or 'session'; did you mean 'session'?",
        "warm": "must be from 0 to 100000",
        "worker.comand": "is not a field of this object",
        "park.ttl": DURATION,
    }
    assert set(problems(stage, "PUT", "/v1/pools/Capital", {"warm": 5, "max": 2})) == {"name", "warm"}
    assert stage.rows() == before


def test_changing_what_cannot_change_names_all_of_it(stage: Stage) -> None:
    assert set(problems(stage, "PUT", "/v1/pools/direct", {"mode": "session"})) == {"mode", "worker.agent"}


def test_a_tenant_with_several_mistakes_names_all_of_them(stage: Stage) -> None:
    assert set(problems(stage, "PUT", "/v1/tenants/a%20b", {"parkTTL": "9999999h"})) == {"name", "parkTTL"}
    assert set(problems(stage, "PUT", "/v1/tenants/acme", {"weight": 0, "maxClaim": 3})) == {"weight", "maxClaim"}


def test_a_token_with_several_mistakes_names_all_of_them(stage: Stage) -> None:
    assert set(problems(stage, "POST", "/v1/tokens", {"name": "x", "role": "tenant", "expiresIn": "0s"})) == {
        "tenant",
        "expiresIn",
    }


def test_a_query_with_several_mistakes_names_all_of_them(stage: Stage) -> None:
    found = problems(stage, "GET", "/v1/claims?state=actve&limit=ten&curser=x")
    assert set(found) == {"state", "limit", "curser"}
    assert found["state"] == "must be 'active', 'assigned', 'ended' or 'waiting'; did you mean 'active'?"


def test_values_that_cannot_be_stored_are_all_named(stage: Stage) -> None:
    body = {"pool": "direct", "payload": {"a": "\x00", "n": 2**64}, "env": {"B": "\x00"}}
    assert set(problems(stage, "POST", "/v1/claims", body)) == {"payload.a", "payload.n", "env.B"}


@pytest.mark.parametrize(
    ("method", "path", "body", "near"),
    [
        ("GET", "/v1/pools/dirct", None, "direct"),
        ("DELETE", "/v1/pools/agent", None, "agents"),
        ("POST", "/v1/pools/direkt/freeze", {"reason": "x"}, "direct"),
        ("POST", "/v1/pools/direkt/thaw", {}, "direct"),
        ("GET", "/v1/explain/pool/direkt", None, "direct"),
        ("GET", "/v1/workers/w-agnet", None, "w-agent"),
        ("POST", "/v1/workers/w-agnet/retire", {"reason": "x"}, "w-agent"),
        ("GET", "/v1/explain/worker/w-agnet", None, "w-agent"),
        ("GET", "/v1/explain/clam/x", None, "claim"),
        ("GET", "/v1/tenants/acmee", None, "acme"),
        ("DELETE", "/v1/tokens/t-admim", None, "t-admin"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(stage: Stage, method: str, path: str, body: Any, near: str) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {})
    answer = stage.ask(method, path, body)
    assert answer.status == 404, answer.raw
    assert f"did you mean {near!r}?" in answer.json["detail"]


def test_a_mistyped_claim_is_answered_with_the_nearest_that_the_caller_may_see(stage: Stage) -> None:
    id_ = stage.claim()["id"]
    typo = id_[:-1] + ("0" if id_[-1] != "0" else "1")
    for path in (f"/v1/claims/{typo}", f"/v1/claims/{typo}/output", f"/v1/explain/claim/{typo}"):
        assert f"did you mean {id_!r}?" in stage.ask("GET", path, token="acme").json["detail"]
        assert f"did you mean {id_!r}?" in stage.ask("GET", path, token="operator").json["detail"]
        hidden = stage.ask("GET", path, token="rival")
        assert hidden.status == 404
        assert id_ not in hidden.json["detail"]
