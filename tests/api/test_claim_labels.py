"""Users label their claims, and find claims and their events by these labels."""

from typing import Any
from urllib.parse import quote

import pytest
from test_events import stream

from fleet import eventually
from holdfast.api.claim_shapes import ClaimRequest
from holdfast.api.claims import _hashes
from holdfast.api.encryption import Cipher
from holdfast.client import SyncClient
from served_api import KEY, Stage


def found(stage: Stage, label: str, noun: str = "claims", token: str = "admin") -> set[str]:
    answer = stage.ask("GET", f"/v1/{noun}?label={quote(label)}", token=token)
    assert answer.status == 200, answer.raw
    return {item["id" if noun == "claims" else "claim"] for item in answer.json["items"]}


def test_claims_are_found_by_their_labels(stage: Stage) -> None:
    web = stage.claim(labels={"team": "web", "ci": ""})["id"]
    data = stage.claim(labels={"team": "data", "branch": "feature/login"})["id"]
    rivals = stage.claim("rival", labels={"team": "web"})["id"]
    stage.claim()
    assert found(stage, "team=web") == {web, rivals}
    assert found(stage, "team=web", token="acme") == {web}
    assert found(stage, "team") == {web, data, rivals}
    assert found(stage, "team=web,ci") == {web}
    assert found(stage, "ci=") == {web}
    assert found(stage, "branch=feature/login,team=data") == {data}
    assert found(stage, "team=nobody") == found(stage, "ci=x") == set()


def test_a_claim_keeps_its_labels_through_its_whole_life(stage: Stage) -> None:
    labels = {"team": "web", "ci": ""}
    claim = stage.claim(labels=labels, key="k-1")
    assert (claim["state"], claim["labels"]) == ("active", labels)
    path = f"/v1/claims/{claim['id']}"
    assert stage.ask("GET", path).json["labels"] == labels
    assert stage.ask("POST", f"{path}/renew", {"fence": claim["fence"]}, token="acme").json["labels"] == labels
    assert "Its labels are ci, team=web." in stage.ask("GET", f"/v1/explain/claim/{claim['id']}").json["sentences"]
    assert stage.ask("POST", f"{path}/release", {"fence": claim["fence"]}, token="acme").json["labels"] == labels
    assert found(stage, "team=web") == {claim["id"]}
    assert stage.claim()["labels"] == {}


def test_events_are_found_by_the_labels_of_their_claim(stage: Stage) -> None:
    claim = stage.claim(labels={"team": "web"})["id"]
    stage.claim(labels={"team": "data"})
    eventually(lambda: found(stage, "team=web,team", "events") == {claim}, 5)
    assert found(stage, "team=web", "events", token="rival") == set()
    with stream(stage, "?label=team%3Ddata&kind=claim.created") as events:
        next(events)
        stage.claim(labels={"team": "web"})
        again = stage.claim(labels={"team": "data"})["id"]
        assert next(events)["claim"] == again


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({f"l-{n}": "" for n in range(17)}, "labels"),
        ({"": "x"}, "labels"),
        ({"a b": "x"}, "labels"),
        ({"a" * 64: "x"}, "labels"),
        ({"a": "x" * 64}, "labels.a"),
        ({"a": "x,y"}, "labels.a"),
        ({"a": 5}, "labels.a"),
        (["a"], "labels"),
        (None, "labels"),
    ],
)
def test_labels_beyond_the_limits_are_refused_and_nothing_is_stored(stage: Stage, labels: Any, field: str) -> None:
    before = stage.rows()
    answer = stage.ask("POST", "/v1/claims", {"pool": "direct", "labels": labels}, token="acme")
    assert (answer.status, answer.json["errors"][0]["field"]) == (422, field)
    assert stage.rows() == before


def test_sixteen_labels_are_accepted(stage: Stage) -> None:
    labels = {f"l-{n}": "x" * 63 for n in range(16)}
    assert stage.claim(labels=labels)["labels"] == labels


@pytest.mark.parametrize("label", ["", "a b", "team=x,team=y", "team=" + "x" * 64])
def test_a_filter_of_labels_that_cannot_be_meant_is_refused(stage: Stage, label: str) -> None:
    for noun in ("claims", "events"):
        answer = stage.ask("GET", f"/v1/{noun}?label={quote(label)}")
        assert (answer.status, answer.json["errors"][0]["field"]) == (422, "label")


def test_a_key_with_other_labels_names_another_request(stage: Stage) -> None:
    first = stage.claim(key="k-1", labels={"a": "1", "b": "2"})
    assert stage.claim(key="k-1", labels={"b": "2", "a": "1"})["id"] == first["id"]
    other = stage.ask("POST", "/v1/claims", {"pool": "direct", "key": "k-1", "labels": {"a": "2"}}, token="acme")
    assert (other.status, other.json["code"]) == (409, "key-taken")


def test_a_request_without_labels_has_the_hash_of_earlier_releases() -> None:
    """Otherwise a client that repeats its request during an upgrade would be refused."""
    earlier = "5e95e8c3be7c8e5d7d04663532274088"
    for request in (ClaimRequest(pool="linux", command=["true"]), ClaimRequest(pool="linux", command=["true"], labels={})):
        assert _hashes(Cipher(KEY), request, "acme") == (earlier, None)


def test_the_sdk_sends_labels_and_finds_claims_by_them(stage: Stage) -> None:
    with SyncClient(stage.url, "acme") as client:
        claim = client.claim("direct", labels={"team": "web", "ci": ""})
        assert claim.labels == {"team": "web", "ci": ""}
        client.claim("direct", labels={"team": "data"})
        assert [each.id for each in client.list_claims(labels={"team": "web", "ci": None})] == [claim.id]
        assert [each.id for each in client.list_claims(labels="team=web")] == [claim.id]
        eventually(lambda: {event.claim for event in client.list_events(labels={"team": "web"}).items} == {claim.id}, 5)
