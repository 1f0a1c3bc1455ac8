"""A reader of claims and workers over HTTP gets exactly those that its filters name."""

from typing import Any
from urllib.parse import quote

import pytest

from served_api import Stage


def ids(stage: Stage, path: str, token: str = "admin") -> list[str]:
    answer = stage.ask("GET", f"/v1/{path}", token=token)
    assert answer.status == 200, answer.raw
    return [item["id"] for item in answer.json["items"]]


def released(stage: Stage, **request: Any) -> dict[str, Any]:
    claim = stage.claim(**request)
    return dict(stage.ask("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]}, token="acme").json)


def test_claims_are_found_by_outcome_key_worker_and_age(stage: Stage) -> None:
    first, second = released(stage, key="build 7"), stage.claim(key="build 8")
    cancelled = stage.claim()
    stage.ask("POST", f"/v1/claims/{cancelled['id']}/cancel", {}, token="acme")
    rivals = stage.claim("rival", key="build 7")
    assert ids(stage, "claims?outcome=released") == [first["id"]]
    assert ids(stage, "claims?outcome=cancelled") == [cancelled["id"]]
    assert ids(stage, "claims?outcome=lost") == []
    assert ids(stage, f"claims?key={quote('build 7')}") == [rivals["id"], first["id"]]
    assert ids(stage, f"claims?key={quote('build 7')}&tenant=acme") == [first["id"]]
    assert ids(stage, f"claims?key={quote('build 7')}", token="acme") == [first["id"]]
    assert ids(stage, f"claims?worker={second['worker']}") == [second["id"]]
    assert ids(stage, f"claims?worker={rivals['worker']}", token="acme") == []
    assert len(ids(stage, "claims?since=1h")) == 4
    assert ids(stage, f"claims?since={quote(cancelled['created_at'])}") == [rivals["id"], cancelled["id"]]
    assert ids(stage, "claims?since=0s") == []
    assert ids(stage, "claims?outcome=released&pool=direct&state=ended&since=1h") == [first["id"]]


def test_a_claim_that_is_being_handed_over_is_not_found_by_its_worker(stage: Stage) -> None:
    waiting = stage.ask("POST", "/v1/claims", {"pool": "agents", "command": ["true"], "wait": "0s"}, token="acme").json
    assert waiting["state"] in ("waiting", "assigned")
    assert ids(stage, "claims?worker=w-agent", token="acme") == []


def test_pages_of_filtered_claims_continue_after_their_cursor(stage: Stage) -> None:
    made = [released(stage)["id"] for _ in range(5)]
    stage.claim()
    found: list[str] = []
    cursor = ""
    while cursor is not None:
        page = stage.ask("GET", f"/v1/claims?outcome=released&limit=2{cursor}").json
        found += [claim["id"] for claim in page["items"]]
        cursor = f"&cursor={page['next']}" if page["next"] else None
    assert found == made[::-1]


def test_workers_are_found_by_tenant_state_and_age(stage: Stage) -> None:
    held = stage.claim("acme")["worker"]
    stage.claim("rival")
    assert ids(stage, "workers?tenant=acme") == [held]
    assert ids(stage, "workers?tenant=acme&state=warm") == []
    assert len(ids(stage, "workers?since=1h&pool=direct")) == 6
    assert ids(stage, "workers?since=0s") == []


@pytest.mark.parametrize("noun", ["claims", "workers", "events"])
def test_a_list_of_a_pool_that_does_not_exist_is_refused_with_the_nearest_name(stage: Stage, noun: str) -> None:
    answer = stage.ask("GET", f"/v1/{noun}?pool=dirett")
    assert (answer.status, answer.json["errors"][0]["field"]) == (422, "pool")
    assert "there is no pool 'dirett'; did you mean 'direct'?" in answer.json["detail"]


def test_the_claims_of_a_deleted_pool_are_still_listed(stage: Stage) -> None:
    claim = stage.claim()
    assert stage.ask("DELETE", "/v1/pools/direct").status == 200
    assert ids(stage, "claims?pool=direct") == [claim["id"]]


@pytest.mark.parametrize("query", ["claims?outcome=won", "claims?since=soon", "workers?since=soon"])
def test_a_filter_that_cannot_be_meant_is_refused(stage: Stage, query: str) -> None:
    answer = stage.ask("GET", f"/v1/{query}")
    assert (answer.status, answer.json["errors"][0]["field"]) == (422, query.split("?")[1].split("=")[0])
