"""An event that somebody caused names the token that they used. The token itself is nowhere."""

from typing import Any

import pytest
from test_events import stream

from fleet import eventually
from holdfast.api.auth import hash_token
from holdfast.client import SyncClient
from holdfast.model.effect import Done
from served_api import TOKENS, Stage

SECRET = "the-token-that-nobody-may-read"
ACTORS = {name: {"id": id_, "name": name, "role": role} for name, (id_, role, _) in TOKENS.items()}
BECAUSE = {"reason": "looked at it"}


@pytest.fixture
def after(stage: Stage) -> str:
    """Returns the cursor of the head of the history, so that a test reads only what it caused."""
    return str(stage.ask("GET", "/v1/events?newest=true&limit=1").json["next"])


def caused(stage: Stage, after: str, kind: str) -> list[dict[str, Any]]:
    """Returns the actors of the events of this kind, once there are any."""
    path = f"/v1/events?after={after}&kind={kind}"
    found = eventually(lambda: stage.ask("GET", path).json["items"], 5, kind)
    return [event["actor"] for event in found]


def test_the_history_names_who_made_and_released_and_cancelled_a_claim(stage: Stage, after: str) -> None:
    first, second = stage.claim("acme"), stage.claim("acme")
    stage.ask("POST", f"/v1/claims/{first['id']}/release", {"fence": first["fence"]}, token="acme")
    stage.ask("POST", f"/v1/claims/{second['id']}/cancel", BECAUSE, token="operator")
    assert caused(stage, after, "claim.created") == [ACTORS["acme"]] * 2
    assert caused(stage, after, "claim.ended") == [ACTORS["acme"], ACTORS["operator"]]
    assert caused(stage, after, "claim.assigned") == [None, None], "Holdfast itself chose the worker"


def test_each_of_several_claims_in_one_batch_names_its_own_caller(stage: Stage, after: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(stage.claim, ["acme", "rival"] * 3))
    eventually(lambda: len(caused(stage, after, "claim.created")) == 6, 5)
    found = stage.ask("GET", f"/v1/events?after={after}&kind=claim.created").json["items"]
    assert {event["claim"]: event["actor"] for event in found} == {each["id"]: ACTORS[each["tenant"]] for each in made}


def test_the_history_names_who_changed_froze_thawed_and_deleted_a_pool(stage: Stage, after: str) -> None:
    assert stage.ask("PUT", "/v1/pools/new", {"mode": "job", "max": 5}, token="operator").status == 201
    assert stage.ask("PUT", "/v1/pools/new", {"mode": "job", "max": 6}, token="admin").status == 200
    assert stage.ask("POST", "/v1/pools/new/freeze", BECAUSE, token="operator").status == 200
    assert stage.ask("POST", "/v1/pools/new/thaw", {}, token="admin").status == 200
    assert stage.ask("DELETE", "/v1/pools/new", token="operator").status == 200
    kinds = {"pool.created": "operator", "pool.changed": "admin", "pool.frozen": "operator", "pool.thawed": "admin"}
    for kind, name in {**kinds, "pool.draining": "operator"}.items():
        assert caused(stage, after, kind) == [ACTORS[name]], kind


def test_the_history_names_who_changed_and_deleted_a_tenant(stage: Stage, after: str) -> None:
    assert stage.ask("PUT", "/v1/tenants/newco", {"weight": 2}, token="admin").status == 200
    assert stage.ask("PUT", "/v1/tenants/newco", {"weight": 3}, token="admin").status == 200
    assert stage.ask("DELETE", "/v1/tenants/newco", token="admin").status == 204
    for kind in ("tenant.created", "tenant.changed", "tenant.deleted"):
        assert caused(stage, after, kind) == [ACTORS["admin"]], kind


def test_the_history_names_who_applied_files_and_who_scaled_a_pool(stage: Stage, after: str) -> None:
    objects = [{"kind": "WorkerPool", "name": "new", "spec": {"warm": 0}}]
    assert stage.ask("POST", "/v1/apply", {"objects": objects}, token="operator").status == 200
    assert stage.ask("POST", "/v1/pools/new/scale", {"warm": 1}, token="admin").status == 200
    assert caused(stage, after, "pool.created") == [ACTORS["operator"]]
    assert caused(stage, after, "pool.changed") == [ACTORS["admin"]]


def test_the_history_names_who_retired_a_worker_and_who_released_the_brake(stage: Stage, after: str) -> None:
    assert stage.ask("POST", "/v1/workers/w-1/retire", BECAUSE, token="operator").status == 200
    stage.do(stage.store.db.rows("UPDATE holdfast.installation SET brake_tripped_at = holdfast.now() RETURNING 1"))
    assert stage.ask("POST", "/v1/brake/release", BECAUSE, token="admin").status == 200
    assert caused(stage, after, "worker.retiring") == [ACTORS["operator"]]
    assert caused(stage, after, "brake.released") == [ACTORS["admin"]]


def test_the_history_names_who_decided_about_an_unconfirmed_worker(stage: Stage, after: str) -> None:
    async def recover() -> None:
        await stage.store.recovery.begin("restored", 0)
        assert await stage.store.recovery.end() == Done()

    stage.do(recover())
    for worker, decision in (("w-1", "confirm"), ("w-2", "give-up")):
        assert stage.ask("POST", f"/v1/recovery/{worker}", {"decision": decision, **BECAUSE}, token="operator").status == 200
    for kind in ("worker.confirmed", "worker.given_up", "worker.retiring"):
        assert caused(stage, after, kind) == [ACTORS["operator"]], kind


def test_the_history_names_who_made_and_revoked_a_token_and_which(stage: Stage, after: str) -> None:
    asked = {"name": "ci of team x", "role": "tenant", "tenant": "acme"}
    made = stage.ask("POST", "/v1/tokens", asked, token="admin").json
    assert stage.ask("DELETE", f"/v1/tokens/{made['id']}", token="admin").status == 204
    assert stage.ask("DELETE", "/v1/tokens/t-none", token="admin").status == 404
    assert caused(stage, after, "token.revoked") == [ACTORS["admin"]]
    events = stage.ask("GET", f"/v1/events?after={after}&kind=token")
    assert [event["kind"] for event in events.json["items"]] == ["token.created", "token.revoked"]
    for event in events.json["items"]:
        assert event["actor"] == ACTORS["admin"]
        assert event["tenant"] == "acme"
        assert event["data"] == {"token": made["id"], "name": "ci of team x", "role": "tenant"}
        assert event["reason"] == f"token {made['id']} (ci of team x, tenant)"
    assert made["token"] not in events.raw.decode()
    assert hash_token(made["token"]) not in events.raw.decode()


def test_stream_explanation_and_sdk_name_the_actor_and_no_token(stage: Stage, after: str) -> None:
    stage.do(stage.store.tokens.make("t-ci", hash_token(SECRET), "ci of team x", "tenant", "acme", None))
    claim = stage.claim(SECRET)
    actor = {"id": "t-ci", "name": "ci of team x", "role": "tenant"}
    with stream(stage, f"?claim={claim['id']}") as events:
        event = next(events)
        assert (event["kind"], event["actor"]) == ("claim.created", actor)
    explained = stage.ask("GET", f"/v1/explain/claim/{claim['id']}")
    assert "(by ci of team x, tenant t-ci)" in explained.raw.decode()
    with SyncClient(stage.url, "admin") as client:
        [created] = client.list_events(claim=claim["id"], kind="claim.created").items
        assert created.actor is not None
        assert (created.actor.id, created.actor.name, created.actor.role) == tuple(actor.values())
    everything = stage.ask("GET", "/v1/events?limit=1000").raw.decode() + explained.raw.decode()
    assert SECRET not in everything
    assert hash_token(SECRET) not in everything
