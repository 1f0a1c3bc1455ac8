"""The doors as a whole: the document is what is served, metrics are well named, the generated docs are up to date."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from door_stage import Stage
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from holdfast.api.app import DOORS
from holdfast.api.auth import STREAMS
from holdfast.engine.metrics import Metrics

ROOT = Path(__file__).parents[2]
OPEN = {("get", "/healthz"), ("get", "/readyz")}


@pytest.fixture
def described(stage: Stage) -> dict[str, Any]:
    answer = stage.ask("GET", "/openapi.json", token=None)
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
    assert served - listed == {("get", "/openapi.json")}
    assert listed - served == set()
    assert len(stage.wired.app.routes) == len({door.path for door in DOORS}) + 1


def test_every_operation_says_what_it_is_for_and_who_may(described: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(ids) == len(set(ids))
    for method, path, operation in operations(described):
        assert operation["summary"], path
        guarded = (method, path) not in OPEN
        assert (operation["security"] == [{"bearer": []}]) is guarded, path
        assert ("401" in operation["responses"]) is guarded, path
        assert any(status.startswith("2") for status in operation["responses"]), path


def test_the_guarded_doors_ask_for_a_token_and_the_open_ones_do_not(stage: Stage, described: dict[str, Any]) -> None:
    for method, path, _ in operations(described):
        answer = stage.ask(method.upper(), re.sub(r"{\w+}", "x", path), {} if method in ("post", "put") else None, token=None)
        if (method, path) in OPEN:
            assert answer.status in (200, 503), path
        else:
            assert answer.status == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"


def test_a_refused_method_hears_of_all_that_there_are(stage: Stage) -> None:
    answer = stage.ask("PATCH", "/v1/pools/direct", {})
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT", "DELETE"}


def test_no_path_redirects(stage: Stage) -> None:
    """A redirect would name whatever host the caller wrote."""
    assert stage.ask("GET", "/v1/claims/", headers={"Host": "evil.example"}).status == 404


def test_a_defect_says_nothing_of_its_cause_to_callers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert routes <= {f"{door.method} {door.path}" for door in DOORS}


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
    assert stage.ask("GET", "/v1/events", token="acme").status == 200  # a page is no stream
    assert json.loads(answer.raw)["detail"]
