"""Prometheus' token is readable by many people. It reads the metrics, and nothing else."""

from holdfast.api.app import ROUTES
from holdfast.api.auth import Caller, hash_token
from holdfast.api.routes import AGENT, ANYONE, BOOTSTRAP
from holdfast.ports.store import Store
from served_api import Stage


async def scraper(store: Store) -> None:
    await store.tokens.make("t-scraper", hash_token("scraper"), "prometheus", "metrics", None, None)


def test_the_token_reads_the_metrics_and_is_refused_everywhere_else(stage: Stage) -> None:
    stage.do(scraper(stage.store))
    answered = set()
    for route in ROUTES:
        path = route.path.replace("{name}", "direct").replace("{kind}", "pool").replace("{id}", "direct")
        path = path.replace("{worker}", "w-1").replace("{claim}", "c-1")
        answer = stage.ask(route.method, path, {} if route.body is not None else None, token="scraper")
        if answer.status not in (401, 403):
            answered.add(route.path)
        elif route.roles not in (AGENT, BOOTSTRAP):
            assert answer.status == 403, route.path
    public = {route.path for route in ROUTES if route.roles in (ANYONE, BOOTSTRAP)}
    assert answered - public == {"/metrics"}
    assert b"holdfast_workers" in stage.ask("GET", "/metrics", token="scraper").raw


def test_only_an_admin_creates_such_a_token_and_it_has_no_tenant(stage: Stage) -> None:
    body = {"name": "prometheus", "role": "metrics"}
    assert stage.ask("POST", "/v1/tokens", body, token="operator").status == 403
    assert stage.ask("POST", "/v1/tokens", {**body, "tenant": "acme"}).status == 422
    made = stage.ask("POST", "/v1/tokens", body)
    assert (made.status, made.json["role"]) == (201, "metrics")
    assert stage.ask("GET", "/metrics", token=made.json["token"]).status == 200
    assert stage.ask("GET", "/v1/pools", token=made.json["token"]).status == 403


def test_a_role_that_is_not_known_to_be_trusted_is_not() -> None:
    assert not Caller("t-1", "metrics", None).trusted
    assert not Caller("t-1", "metrics", None).sees("acme")
