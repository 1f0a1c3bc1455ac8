"""Live credentials are in no list. A holder that needs its credential reads its claim."""

import json
from typing import Any

import pytest

from served_api import Stage


@pytest.fixture
def held(stage: Stage) -> dict[str, Any]:
    """Returns an active claim whose worker has an endpoint."""
    claim = stage.claim()
    stage.do(stage.store.db.rows("UPDATE holdfast.worker SET endpoint = 'http://127.0.0.1:9' WHERE id = $1", claim["worker"]))
    return claim


def test_listing_claims_shows_no_credential_and_reading_one_does(stage: Stage, held: dict[str, Any]) -> None:
    credential = stage.ask("GET", f"/v1/claims/{held['id']}", token="acme").json["credential"]
    assert credential.startswith("hfc_")
    for token in ("acme", "operator", "admin"):
        listed = stage.ask("GET", "/v1/claims", token=token)
        assert [claim["endpoint"] for claim in listed.json["items"]] == ["http://127.0.0.1:9"]
        assert [claim["credential"] for claim in listed.json["items"]] == [None]
        assert b"hfc_" not in listed.raw


def test_no_list_shows_a_token_or_a_secret(stage: Stage, held: dict[str, Any]) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {})
    made = stage.ask("POST", "/v1/tokens", {"name": "ci", "role": "operator"}).json["token"]
    secret = "hunter2-do-not-show"
    stage.claim(pool="agents", command=["true"], wait="0s", secrets={"A": secret})
    lists = ["claims", "pools", "workers", "tenants", "tokens", "events", "duties", "replicas"]
    for name in lists:
        shown = json.dumps(stage.ask("GET", f"/v1/{name}").json)
        for hidden in (made, secret, "hfc_", "hfa_"):
            assert hidden not in shown, name
