"""The API as a whole: /openapi.json describes what is served, metrics follow naming rules, the generated docs are up to date."""

import asyncio
import importlib.util
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served_api import DIRECT, Stage
from starlette.routing import Route

from fleet import eventually
from holdfast.api.app import ROUTES
from holdfast.api.auth import STREAMS
from holdfast.api.metrics import refresh
from holdfast.metrics import Metrics
from holdfast.ports.store import PoolLoad, StoreUnavailable

ROOT = Path(__file__).parents[2]
ANYONES = ("/healthz", "/readyz", "/openapi.json")


@pytest.fixture
def described(stage: Stage) -> dict[str, Any]:
    answer = stage.ask("GET", "/openapi.json")
    assert answer.status == 200
    return dict(answer.json)


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in described["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


# The document


def test_the_document_lists_what_is_served_and_nothing_else(stage: Stage, described: dict[str, Any]) -> None:
    listed = {(method, path) for method, path, _ in operations(described)}
    served = {
        (method.lower(), route.path)
        for route in stage.wired.app.routes
        if isinstance(route, Route)
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert served == listed
    assert len(stage.wired.app.routes) == len({each.path for each in ROUTES})


def test_every_operation_documents_its_purpose_and_its_roles(described: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(ids) == len(set(ids))
    for _, path, operation in operations(described):
        assert operation["summary"], path
        assert operation["security"] == [{"bearer": []}], path
        assert "401" in operation["responses"], path
        assert any(status.startswith("2") for status in operation["responses"]), path


# Tokens


def test_no_request_is_answered_without_a_token(stage: Stage, described: dict[str, Any]) -> None:
    documented = [(method.upper(), re.sub(r"{\w+}", "x", path)) for method, path, _ in operations(described)]
    strange = [("GET", "/"), ("GET", "/nowhere"), ("OPTIONS", "/v1/pools"), ("PATCH", "/v1/pools/direct"), ("HEAD", "/healthz")]
    for method, path in documented + strange:
        body = {} if method in ("POST", "PUT") else None
        for token in (None, "a-guess") if path != "/v1/worker/register" else (None,):
            answer = stage.ask(method, path, body, token=token)
            assert answer.status == 401, (method, path, token)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert b"direct" not in answer.raw
            assert "allow" not in answer.headers, "without a valid token, no answer shows which paths and methods exist"


@pytest.mark.parametrize("who", ["admin", "operator", "acme", "agent"])
def test_every_valid_token_may_read_health_and_the_openapi_document(stage: Stage, who: str) -> None:
    token = stage.agent_token() if who == "agent" else who
    stage.wired.replica.beat_at = stage.loop.time()
    for path in ANYONES:
        assert stage.ask("GET", path, token=token).status == 200, path
    assert stage.ask("GET", "/v1/nowhere", token=token).status == 404
    assert stage.ask("PATCH", "/healthz", token=token).status == 405


def test_while_the_store_is_away_known_tokens_are_answered_that_we_are_alive(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: str) -> None:
        raise StoreUnavailable("away")

    auth = stage.wired.context.auth
    assert stage.ask("GET", "/healthz", token="operator").status == 200
    monkeypatch.setattr(stage.store.tokens, "by_hash", away)
    later = auth._clock() + 3600
    monkeypatch.setattr(auth, "_clock", lambda: later)  # nothing in the cache is fresh any more
    assert stage.ask("GET", "/healthz", token="operator").status == 200
    assert stage.ask("GET", "/healthz", token=stage.agent_token()).status == 200
    assert stage.ask("GET", "/healthz").status == 503, "a token that was never seen may be a guess"
    assert stage.ask("GET", "/v1/me", token="operator").status == 503, "and nothing else is open to what may be revoked by now"


def test_a_refused_method_is_answered_with_all_allowed_methods(stage: Stage) -> None:
    answer = stage.ask("PATCH", "/v1/pools/direct", {})
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT", "DELETE"}


def test_no_path_redirects(stage: Stage) -> None:
    """A redirect would contain the host name that the caller sent."""
    assert stage.ask("GET", "/v1/claims/", headers={"Host": "evil.example"}).status == 404


def test_a_defect_shows_nothing_of_its_cause_to_callers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("with hunter2 in it")

    monkeypatch.setattr(stage.store.pools, "loads", broken)
    answer = stage.ask("GET", "/v1/pools")
    assert (answer.status, answer.json["code"]) == (500, "internal")
    assert b"hunter2" not in answer.raw


# Metrics


def test_metrics_parse_and_follow_the_naming_of_prometheus(stage: Stage) -> None:
    claim = stage.claim()
    stage.ask("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]})
    stage.ask("GET", f"/v1/claims/{claim['id']}")
    stage.ask("GET", "/v1/workers/w-1")
    stage.ask("GET", "/v1/tenants/acme")
    text = stage.ask("GET", "/metrics").raw.decode()
    families = list(text_string_to_metric_families(text))
    assert {family.name for family in families} >= {"holdfast_workers", "holdfast_http_requests", "holdfast_claim_ends"}
    for family in families:
        assert re.fullmatch(r"holdfast_[a-z][a-z0-9_]*", family.name)
        assert family.documentation or family.name.endswith("_created"), family.name
        if family.type == "counter":
            assert all(sample.name.endswith(("_total", "_created")) for sample in family.samples), family.name
        else:
            assert not family.name.endswith(("_total", "_count", "_sum", "_bucket")), family.name
        for sample in family.samples:
            assert not sample.labels.keys() & {"tenant", "worker", "claim", "id", "token", "path"}, sample
            assert not any(re.search(r"\b[cwt]-", value) or "acme" in value for value in sample.labels.values()), sample


TOTALS = (
    "holdfast_duty_actions_total",
    "holdfast_duty_skips_total",
    "holdfast_duty_takeovers_total",
    "holdfast_recoveries_total",
)


def test_totals_that_are_kept_in_the_database_are_counters(stage: Stage) -> None:
    stage.do(stage.store.db.rows("UPDATE holdfast.term SET actions = 7, skips = 3, taken_over = 2 WHERE duty = 'scale'"))
    stage.do(stage.store.recovery.begin("the timeline changed", 0))
    scraped = samples(stage)
    scale = {"duty": "scale"}
    assert [scraped[name][0] for name in TOTALS] == ["counter"] * 4
    assert [value(scraped, name, scale) for name in TOTALS[:3]] == [7, 3, 2]
    assert value(scraped, "holdfast_recoveries_total", {}) == 1
    never = [
        duty for duty in ("match", "deadlines", "prune") if value(scraped, "holdfast_duty_takeovers_total", {"duty": duty}) == 0
    ]
    assert len(never) == 3, "from 0 on, so that the first is an increase"


def test_an_unprotected_hand_over_is_an_increase_from_the_first_one_on(stage: Stage) -> None:
    for pool in ("direct", "agents"):
        assert value(samples(stage), "holdfast_handover_unprotected_total", {"pool": pool}) == 0
    stage.wired.context.metrics.unprotected.labels("direct").inc()
    assert value(samples(stage), "holdfast_handover_unprotected_total", {"pool": "direct"}) == 1


def test_two_scrapes_at_once_do_not_add_up(stage: Stage) -> None:
    """Each scrape reads all values before it sets them, so that two scrapes cannot mix."""
    stage.do(stage.store.fleet.join("r-1", 1, "here", "http://127.0.0.1:1", "0"))
    stage.do(stage.store.db.rows("UPDATE holdfast.worker SET suspect_since = holdfast.now() WHERE id = 'w-1'"))

    async def at_once() -> None:
        await asyncio.gather(*(refresh(stage.wired.context) for _ in range(5)))

    stage.do(at_once())
    metrics = stage.wired.context.metrics
    assert metrics.registry.get_sample_value("holdfast_replicas", {"state": "live"}) == 1
    assert metrics.registry.get_sample_value("holdfast_workers_suspect", {"pool": "direct"}) == 1


def test_of_two_pools_with_one_name_the_live_one_is_shown(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.claim()
    stage.ask("DELETE", "/v1/pools/direct")
    stage.do(stage.store.pools.put("p-new", "direct", DIRECT, "api"))
    stage.ask("POST", "/v1/pools/direct/freeze", {"reason": "it is the new one"})
    loads = stage.do(stage.store.pools.loads())
    assert len(loads) == 3
    for order in (loads, loads[::-1]):

        async def read(order: list[PoolLoad] = order) -> list[PoolLoad]:
            return order

        monkeypatch.setattr(stage.store.pools, "loads", read)
        assert value(samples(stage), "holdfast_pool_frozen", {"pool": "direct"}) == 1


def samples(stage: Stage) -> dict[str, tuple[str, list[Any]]]:
    """Returns type and samples by the scraped name."""
    found: dict[str, tuple[str, list[Any]]] = {}
    for family in text_string_to_metric_families(stage.ask("GET", "/metrics").raw.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, (family.type, []))[1].append(sample)
    return found


def value(scraped: dict[str, tuple[str, list[Any]]], name: str, labels: dict[str, str]) -> float | None:
    return next((float(sample.value) for sample in scraped[name][1] if sample.labels == labels), None)


def test_routes_are_counted_by_their_template_not_by_what_was_asked(stage: Stage) -> None:
    for n in range(3):
        stage.ask("GET", f"/v1/claims/guess-{n}")
        stage.ask("GET", f"/nowhere/{n}")
    requests = next(
        family
        for family in text_string_to_metric_families(stage.ask("GET", "/metrics").raw.decode())
        if family.name == "holdfast_http_requests"
    )
    routes = {sample.labels["route"] for sample in requests.samples}
    assert routes <= {f"{each.method} {each.path}" for each in ROUTES}


# Replicas


def test_replicas_that_are_gone_are_shown_for_ten_minutes_and_then_forgotten(stage: Stage) -> None:
    ages = {"r-live": 0, "r-silent": 60, "r-stopped": 60, "r-long-silent": 660, "r-long-stopped": 660}
    for id_, age in ages.items():
        stage.do(stage.store.fleet.join(id_, 1, "here", "http://127.0.0.1:1", "0"))
        if "stopped" in id_:
            stage.do(stage.store.fleet.leave(id_))
        shift = (
            "UPDATE holdfast.replica SET seen_at = seen_at - make_interval(secs => $2), "
            "stopped_at = stopped_at - make_interval(secs => $2) WHERE id = $1"
        )
        stage.do(stage.store.db.rows(shift, id_, float(age)))
    shown = {replica["id"]: replica["state"] for replica in stage.ask("GET", "/v1/replicas").json["items"]}
    assert shown == {"r-live": "live", "r-silent": "silent", "r-stopped": "stopped"}


# The generated docs


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "scripts" / "gen_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_docs_are_up_to_date(generator: ModuleType) -> None:
    for name, text in generator.documents().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"docs/{name} is old: run `make docs`"


def test_every_metric_is_documented_under_the_name_it_is_scraped_by() -> None:
    written = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}` | {family.type} |" in written


# Streams


def test_one_token_opens_only_so_many_streams(stage: Stage) -> None:
    auth = stage.wired.context.auth
    caller = stage.do(auth.caller("Bearer acme"))
    auth._streams[caller.id] = STREAMS
    answer = stage.ask("GET", "/v1/events", token="acme", headers={"Accept": "text/event-stream"})
    assert (answer.status, answer.json["code"]) == (429, "too-many")
    assert stage.ask("GET", "/v1/events", token="acme").status == 200  # a page is not a stream
    assert json.loads(answer.raw)["detail"]


def test_a_claim_that_the_database_lost_while_its_caller_waited_is_to_be_asked_for_again(stage: Stage) -> None:
    """After a failover that lost the last commits the claim is unknown, which is not the caller's mistake."""
    with ThreadPoolExecutor(1) as caller:
        body = {"pool": "agents", "command": ["true"], "key": "lost", "wait": "20s"}
        waiting = caller.submit(lambda: stage.ask("POST", "/v1/claims", body))
        lose = "DELETE FROM holdfast.claim WHERE key = 'lost' RETURNING id"
        [row] = eventually(lambda: stage.do(stage.store.db.rows(lose)), 10, "it is stored, and lost again")
        stage.do(_wake(stage, row["id"]))
        answer = waiting.result(20)
    assert (answer.status, answer.json["code"]) == (503, "unavailable"), answer.raw


async def _wake(stage: Stage, claim: str) -> None:
    stage.wired.context.signals.claims.changed(claim)


def test_a_key_returns_its_claim_after_the_pool_was_deleted(stage: Stage) -> None:
    claim = stage.claim(key="build-7", lease="60s")
    assert stage.ask("DELETE", "/v1/pools/direct").status in (200, 202, 204)
    request = {"pool": "direct", "wait": "0s", "key": "build-7"}
    again = stage.ask("POST", "/v1/claims", request | {"lease": "60s"}, token="acme")
    assert (again.status, again.json["id"], again.json["worker"]) == (200, claim["id"], claim["worker"])
    assert stage.ask("POST", "/v1/claims", request | {"lease": "30s"}, token="acme").status == 404
    assert stage.ask("POST", "/v1/claims", request | {"lease": "60s"}, token="rival").status == 404
