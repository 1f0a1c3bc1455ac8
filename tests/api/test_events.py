"""The history over HTTP: a stream resumes without loss, and a tenant sees only its own events."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fleet import eventually
from holdfast.api.auth import STREAMS
from served_api import Stage

ACCEPT = {"Accept": "text/event-stream"}


@contextmanager
def stream(stage: Stage, query: str = "", *, token: str = "admin", last: str | None = None) -> Iterator[Iterator[dict[str, Any]]]:
    """Yields the events of a live stream, each with its id. When the server ends the stream, it raises StopIteration."""
    connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", **ACCEPT, **({"Last-Event-ID": last} if last else {})}
    connection.request("GET", f"/v1/events{query}", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    assert answer.headers["content-type"].startswith("text/event-stream")

    def events() -> Iterator[dict[str, Any]]:
        message: dict[str, str] = {}
        while line := answer.readline():
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field:
                message[field] = value
            elif "data" in message:
                event = json.loads(message["data"])
                assert (event["id"], event["kind"]) == (message["id"], message["event"])
                yield event
                message = {}

    try:
        yield events()
    finally:
        connection.close()


def history(stage: Stage, query: str = "", token: str = "admin") -> list[dict[str, Any]]:
    """Returns all events, one event per page, so that every cursor is used."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        answer = stage.ask("GET", f"/v1/events?limit=1{after}{query}", token=token)
        assert answer.status == 200, answer.raw
        if not answer.json["items"]:
            return found
        found += answer.json["items"]
        after = f"&after={answer.json['next']}"


def after(stage: Stage, id_: str) -> list[str]:
    """Returns this event and all later ones."""
    ids = [event["id"] for event in history(stage)]
    return ids[ids.index(id_) :]


def test_a_stream_cut_off_after_any_event_resumes_with_the_next(stage: Stage) -> None:
    for n in range(3):
        claim = stage.claim(key=f"k-{n}")
        stage.ask("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]})
    everything = eventually(lambda: len(found := history(stage)) > 12 and found, 10)
    ids = [event["id"] for event in everything]
    assert len(set(ids)) == len(ids)
    for cut in range(len(ids)):
        with stream(stage, last=ids[cut - 1] if cut else None) as events:
            assert next(events)["id"] == ids[cut]


def test_a_stream_that_waits_gets_what_happened_while_it_was_away_and_what_happens_now(stage: Stage) -> None:
    first = stage.claim()
    eventually(lambda: history(stage, f"&claim={first['id']}"), 5)
    with stream(stage, f"?claim={first['id']}") as events:
        last = next(events)["id"]
    stage.ask("POST", f"/v1/claims/{first['id']}/release", {"fence": first["fence"]})  # while no client listens
    with stream(stage, f"?claim={first['id']}", last=last) as events:
        kinds = []
        while not kinds or kinds[-1] != "claim.ended":
            kinds.append(next(events)["kind"])
    assert kinds == [event["kind"] for event in history(stage, f"&claim={first['id']}")][1:]
    with stream(stage, "?pool=direct&newest=true&limit=1", token="acme") as events:
        assert next(events)["kind"] == "claim.ended"
        second = stage.claim()  # while the client listens
        assert next(event for event in events if event["claim"])["claim"] == second["id"]


def test_a_tenant_sees_its_own_events_only(stage: Stage) -> None:
    mine, rivals = stage.claim("acme"), stage.claim("rival")
    eventually(lambda: history(stage, f"&claim={rivals['id']}"), 5)
    seen = history(stage, token="acme")
    assert {event["tenant"] for event in seen} == {"acme"}
    assert mine["id"] in {event["claim"] for event in seen}
    assert rivals["id"] not in json.dumps(seen)
    for query in (f"&claim={rivals['id']}", f"&worker={rivals['worker']}"):
        assert history(stage, query, token="acme") == []
    with stream(stage, token="acme") as events:
        assert [next(events)["id"] for _ in seen] == [event["id"] for event in seen]
        again = stage.claim("rival")
        more = stage.claim("acme")
        assert next(events)["claim"] == more["id"] != again["id"]


def test_what_is_another_tenants_does_not_exist(stage: Stage) -> None:
    rivals = stage.claim("rival")
    for path in ("claims/{}", "claims/{}/output", "explain/claim/{}"):
        answer = stage.ask("GET", "/v1/" + path.format(rivals["id"]), token="acme")
        unknown = stage.ask("GET", "/v1/" + path.format("c-0000000000000000"), token="acme")
        assert answer.status == unknown.status == 404
        assert answer.json["detail"].replace(rivals["id"], "?") == unknown.json["detail"].replace("c-0000000000000000", "?")
    assert rivals["id"] not in stage.ask("GET", "/v1/claims", token="acme").raw.decode()


def test_a_stream_ends_when_its_token_is_revoked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.auth.CACHE_SECONDS", 0.1)
    made = stage.ask("POST", "/v1/tokens", {"name": "x", "role": "operator"}).json
    with stream(stage, "?newest=true&limit=1", token=made["token"]) as events:
        next(events)
        assert stage.ask("DELETE", f"/v1/tokens/{made['id']}").status == 204
        stage.claim()
        assert len(list(events)) <= 5  # until the server ends the stream


def test_a_stream_that_was_left_is_forgotten(stage: Stage) -> None:
    auth = stage.wired.context.auth
    with stream(stage, token="acme"):
        eventually(lambda: auth._streams["t-acme", STREAMS] == 1, 5)
    eventually(lambda: not auth._streams, 10)


def test_a_quiet_stream_moves_on_with_what_others_do(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every read would go through all events of other tenants again."""
    looks: list[str | None] = []
    events_of = stage.store.history.events

    async def noted(**query: Any) -> Any:
        if query.get("tenant") == "acme":
            looks.append(query["after"])
        return await events_of(**query)

    monkeypatch.setattr(stage.store.history, "events", noted)
    with stream(stage, token="acme") as events:
        for _ in range(2):
            stage.claim("rival")
            before = len(looks)
            eventually(lambda before=before: len(looks) > before, 5, "another look")
        head = history(stage)[-1]["id"]
        stage.claim("rival")
        eventually(lambda: looks[-1] in after(stage, head), 5, "a look from the head on")
        mine = stage.claim("acme")
        assert next(events)["claim"] == mine["id"]


def test_a_bad_last_event_id_is_refused(stage: Stage) -> None:
    answer = stage.ask("GET", "/v1/events", headers={**ACCEPT, "Last-Event-ID": "garbage"})
    assert (answer.status, answer.json["errors"][0]["field"]) == (422, "after")
