"""A priority above the tenant's limit is granted up to the limit, and every answer says so."""

from holdfast.client.sync import SyncClient
from served_api import Stage

WHY = (
    "priority 7 was requested and 2 granted, because tenant 'acme' may use at most 2 (its maxPriority, which an admin can raise)"
)


def test_asking_for_more_priority_than_allowed_is_answered_with_what_was_granted_and_why(stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {"maxPriority": 2})
    claim = stage.claim(priority=7)
    shown = [claim, stage.ask("GET", f"/v1/claims/{claim['id']}").json, stage.ask("GET", "/v1/claims").json["items"][0]]
    for each in shown:
        assert (each["priority"], each["requested_priority"], each["priority_reason"]) == (2, 7, WHY)
    assert f"Its {WHY}." in stage.ask("GET", f"/v1/explain/claim/{claim['id']}").json["sentences"]


def test_asking_for_an_allowed_priority_needs_no_explanation(stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {"maxPriority": 7})
    claim = stage.claim(priority=7)
    assert (claim["priority"], claim["requested_priority"], claim["priority_reason"]) == (7, None, None)


def test_a_later_change_of_the_limit_does_not_change_what_was_granted(stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {"maxPriority": 2})
    claim = stage.claim(priority=7)
    stage.ask("PUT", "/v1/tenants/acme", {"maxPriority": 9})
    assert stage.ask("GET", f"/v1/claims/{claim['id']}").json["priority_reason"] == WHY


def test_the_sdk_shows_what_was_granted_and_why(stage: Stage) -> None:
    stage.ask("PUT", "/v1/tenants/acme", {"maxPriority": 2})
    with SyncClient(stage.url, "acme") as client:
        claim = client.claim("direct", priority=7)
    assert (claim.priority, claim.requested_priority, claim.priority_reason) == (2, 7, WHY)
