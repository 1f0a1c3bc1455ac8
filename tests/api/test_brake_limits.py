"""The brake over HTTP: its limits are set by admins, with an event, and the brakes of tenants are shown and released."""

from typing import Any

import pytest

from served_api import Stage

DEFAULTS = {"workers": 50, "claims": 50, "share": 0.25, "tenant_share": 0.5}


def limits(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in DEFAULTS}


def brake_tenant(stage: Stage, tenant: str) -> None:
    planted = f"INSERT INTO holdfast.tenant_brake VALUES ('{tenant}', now(), '25 claims were ended')"
    stage.do(stage.store.db.rows(planted))


def test_admins_set_the_limits_and_an_event_says_who(stage: Stage) -> None:
    assert limits(stage.ask("GET", "/v1/brake").json) == DEFAULTS
    wanted = {"workers": 100, "claims": 60, "share": 0.3, "tenantShare": 0.1}
    answer = stage.ask("PUT", "/v1/brake", wanted)
    assert answer.status == 200, answer.raw
    assert limits(answer.json) == {"workers": 100, "claims": 60, "share": 0.3, "tenant_share": 0.1}
    assert answer.json["limit"] == 100
    assert stage.ask("PUT", "/v1/brake", wanted).status == 200
    events = stage.ask("GET", "/v1/events?kind=brake.set").json["items"]
    assert [(event["actor"]["id"], event["data"]) for event in events] == [("t-admin", wanted)], "only a change is an event"
    assert stage.ask("PUT", "/v1/brake", {"claims": 7}).status == 200
    assert limits(stage.ask("GET", "/v1/brake").json) == DEFAULTS | {"claims": 7}, "what is left out gets its default"


@pytest.mark.parametrize("token", ["operator", "acme"])
def test_only_admins_set_them(stage: Stage, token: str) -> None:
    assert stage.ask("PUT", "/v1/brake", {"claims": 7}, token=token).status == 403
    assert limits(stage.ask("GET", "/v1/brake").json) == DEFAULTS


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"claims": -1}, "claims"),
        ({"share": 1.5}, "share"),
        ({"tenantShare": 0}, "tenantShare"),
        ({"limit": 5}, "limit"),
        (None, "body"),
    ],
)
def test_wrong_limits_are_refused_with_their_field(stage: Stage, body: Any, field: str) -> None:
    answer = stage.ask("PUT", "/v1/brake", body)
    assert answer.status == 422
    assert [problem["field"] for problem in answer.json["problems"]] == [field]


def test_a_tenants_brake_is_shown_everywhere_and_released_by_its_name(stage: Stage) -> None:
    claim, other = stage.claim(), stage.claim(token="rival")
    brake_tenant(stage, "acme")
    shown = stage.ask("GET", "/v1/brake").json
    assert (shown["tripped"], [each["tenant"] for each in shown["tenants"]]) == (False, ["acme"])
    checks = {check["name"]: check for check in stage.ask("GET", "/v1/doctor").json["checks"]}
    assert "the brake of tenant acme tripped" in checks["no tenant's brake is tripped"]["detail"]
    assert checks["the brake is released"]["ok"]
    assert 'holdfast_tenant_brake_tripped{tenant="acme"} 1.0' in stage.ask("GET", "/metrics").raw.decode()

    explained = stage.ask("GET", f"/v1/explain/claim/{claim['id']}", token="acme").json
    assert explained["facts"]["braked"] is True
    assert "its leases do not end" in explained["sentences"][1]
    assert "an operator has to release it" in explained["sentences"][1]
    assert "--tenant acme" in stage.ask("GET", f"/v1/explain/claim/{claim['id']}").json["sentences"][1]
    assert stage.ask("GET", f"/v1/explain/claim/{other['id']}").json["facts"]["braked"] is False

    refused = stage.ask("POST", "/v1/brake/release", {"reason": "looked at it"})
    assert (refused.status, refused.json["code"]) == (409, "not-tripped")
    assert "name one of them: acme" in refused.json["detail"]
    wrong = stage.ask("POST", "/v1/brake/release", {"reason": "looked at it", "tenant": "acma"})
    assert "did you mean 'acme'" in wrong.json["detail"]
    released = stage.ask("POST", "/v1/brake/release", {"reason": "looked at it", "tenant": "acme"}, token="operator")
    assert (released.status, released.json["tenants"]) == (200, [])
    assert "holdfast_tenant_brake_tripped{" not in stage.ask("GET", "/metrics").raw.decode()


def test_a_deleted_tenant_leaves_no_brake_behind(stage: Stage) -> None:
    brake_tenant(stage, "acme")
    assert stage.ask("DELETE", "/v1/tenants/acme").status == 204
    assert stage.ask("GET", "/v1/brake").json["tenants"] == []
