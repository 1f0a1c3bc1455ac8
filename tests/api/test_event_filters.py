"""A reader of the history over HTTP filters it by kind and time, and pages through it in both directions."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from test_events import ACCEPT, stream

from fleet import eventually
from holdfast.client import SyncClient
from served_api import Stage


def read(stage: Stage, query: str, token: str = "admin") -> dict[str, Any]:
    answer = stage.ask("GET", f"/v1/events?{query}", token=token)
    assert answer.status == 200, answer.raw
    return dict(answer.json)


def some_history(stage: Stage) -> list[dict[str, Any]]:
    """Makes two claims, of which one has ended, and returns all events."""
    for _ in range(2):
        claim = stage.claim()
    stage.ask("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]}, token="acme")
    stage.ask("POST", "/v1/pools/direct/freeze", {"reason": "looking"})
    found = eventually(lambda: (items := read(stage, "limit=1000")["items"])[-1]["kind"] == "pool.frozen" and items, 10)
    return list(found)


def test_a_reader_pages_back_from_the_newest_event_to_the_first_and_forward_again(stage: Stage) -> None:
    everything = [event["id"] for event in some_history(stage)]
    page = read(stage, "limit=4&newest=true")
    back = [event["id"] for event in page["items"]]
    while page["previous"]:
        page = read(stage, f"limit=4&before={page['previous']}")
        back = [event["id"] for event in page["items"]] + back
    assert back == everything
    page = read(stage, f"limit=1000&after={page['next']}")
    assert [event["id"] for event in page["items"]] == everything[len(everything) - len(page["items"]) :]
    assert read(stage, f"limit=4&before={page['previous']}")["items"][-1]["id"] == everything[-len(page["items"]) - 1]


def test_a_reader_filters_by_kind_and_time(stage: Stage) -> None:
    everything = some_history(stage)
    assert [event["kind"] for event in read(stage, "kind=claim.ended")["items"]] == ["claim.ended"]
    assert {event["kind"].split(".")[0] for event in read(stage, "kind=pool,claim.ended")["items"]} == {"pool", "claim"}
    assert len(read(stage, "since=1h")["items"]) == len(everything)
    assert read(stage, "until=1h")["items"] == []
    middle = everything[len(everything) // 2]["at"]
    since, until = (read(stage, f"{name}={quote(middle)}")["items"] for name in ("since", "until"))
    assert since + until != []
    assert sorted(event["id"] for event in since + until) == sorted(event["id"] for event in everything)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).astimezone().isoformat()
    assert len(read(stage, f"until={tomorrow}")["items"]) == len(everything), "an offset need not be quoted"


def test_an_operator_reads_one_tenants_events_and_a_tenant_no_others(stage: Stage) -> None:
    mine, rivals = stage.claim("acme"), stage.claim("rival")
    eventually(lambda: read(stage, f"claim={rivals['id']}")["items"], 5)
    found = read(stage, "tenant=acme")["items"]
    assert {event["tenant"] for event in found} == {"acme"}
    assert mine["id"] in json.dumps(found)
    own = read(stage, "tenant=acme", token="acme")["items"]
    assert [event["id"] for event in own] == [event["id"] for event in found]
    assert stage.ask("GET", "/v1/events?tenant=rival", token="acme").status == 403


def test_a_stream_of_one_kind_sends_only_that_kind(stage: Stage) -> None:
    with stream(stage, "?kind=claim.ended,pool&newest=true&limit=1") as events:
        next(events)
        claim = stage.claim()
        stage.ask("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]}, token="acme")
        event = next(events)
        assert (event["kind"], event["claim"]) == ("claim.ended", claim["id"])


@pytest.mark.parametrize(
    ("query", "field", "reason"),
    [
        ("pool=dirett", "pool", "there is no pool 'dirett'; did you mean 'direct'?"),
        ("kind=claim.endet", "kind", "there is no kind 'claim.endet'; did you mean 'claim.ended'?"),
        ("kind=", "kind", "there is no kind ''; a kind is for example claim.ended"),
        ("since=yesterday", "since", "is neither a duration such as 10m nor a time"),
        ("since=2030-01-01T00:00:00", "since", "has no time zone"),
        ("until=9000h9000h9000h", "until", "longer than a year"),
        ("before=garbage", "before", "not a cursor"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused_with_a_hint(stage: Stage, query: str, field: str, reason: str) -> None:
    answer = stage.ask("GET", f"/v1/events?{query}")
    assert (answer.status, answer.json["errors"][0]["field"]) == (422, field)
    assert reason in answer.json["errors"][0]["reason"]


@pytest.mark.parametrize("query", ["before=MS4x", "until=1m"])
def test_a_stream_has_no_end(stage: Stage, query: str) -> None:
    answer = stage.ask("GET", f"/v1/events?{query}", headers=ACCEPT)
    assert (answer.status, answer.json["errors"][0]["field"]) == (422, query.split("=")[0])


def test_the_sdk_pages_back_from_the_newest_event_to_the_first(stage: Stage) -> None:
    everything = [event["id"] for event in some_history(stage)]
    with SyncClient(stage.url, "admin") as client:
        found = client.list_events(newest=True, limit=4)
        back = [event.id for event in found.items]
        while found.previous:
            found = client.list_events(before=found.previous, limit=4)
            back = [event.id for event in found.items] + back
        assert back == everything
        hour_ago = datetime.now() - timedelta(hours=1)
        assert [event.id for event in client.list_events(since=hour_ago, kind="pool.frozen").items] == everything[-1:]
