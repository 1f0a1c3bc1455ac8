"""The metrics: what is scraped follows the naming rules, and the generated docs describe it."""

import asyncio
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.api.app import ROUTES
from holdfast.api.metrics import refresh
from holdfast.metrics import Metrics
from holdfast.ports.store import PoolLoad
from served_api import DIRECT, Stage

ROOT = Path(__file__).parents[2]


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
