"""POST /v1/apply and POST /v1/pools/{name}/scale: what is refused, and that a refused request changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.client import Invalid
from holdfast.client.sync import SyncClient
from holdfast.model.pool import PoolSpec
from served_api import Stage

GOOD = {"kind": "WorkerPool", "name": "good", "spec": {"warm": 0}}
ACME = {"kind": "Tenant", "name": "acme", "spec": {"weight": 2}}


@pytest.mark.parametrize(
    ("objects", "status", "field", "detail"),
    [
        ([GOOD, GOOD], 422, "objects[1].name", "WorkerPool 'good' appears twice; it is also objects[0]"),
        ([GOOD, {**ACME, "spec": {"parkTTL": "9000h"}}], 422, "objects[1].spec.parkTTL", "Tenant 'acme': spec.parkTTL: "),
        (
            [GOOD, {**GOOD, "name": "bad", "spec": {"warm": 9, "max": 3}}],
            422,
            "objects[1].spec.warm",
            "WorkerPool 'bad': spec.warm: ",
        ),
        ([GOOD, {**GOOD, "name": "bad", "spec": {"worm": 9}}], 422, "objects[1].spec.worm", "worm"),
        ([GOOD, {**GOOD, "name": "Bad!"}], 422, "objects[1].name", ""),
        ([GOOD, {**GOOD, "kind": "Pod"}], 422, "objects[1].kind", ""),
        ([GOOD, {**GOOD, "name": "declared"}], 409, "objects[1].name", "WorkerPool 'declared': name: pool 'declared' belongs to"),
        ([GOOD, {**GOOD, "name": "direct"}], 422, "objects[1].spec.worker.agent", "WorkerPool 'direct': spec.worker.agent: "),
        ([], 422, "objects", ""),
    ],
)
def test_a_refusal_names_the_object_and_the_field_and_nothing_is_stored(
    stage: Stage, objects: list[dict[str, Any]], status: int, field: str, detail: str
) -> None:
    stage.do(stage.store.pools.put("p-declared", "declared", PoolSpec(), "cr"))
    before = stage.rows()
    answer = stage.ask("POST", "/v1/apply", {"objects": objects})
    assert (answer.status, answer.json["errors"][0]["field"]) == (status, field), answer.raw
    assert detail in answer.json["detail"]
    assert stage.rows() == before


def test_all_mistakes_of_all_objects_are_answered_at_once(stage: Stage) -> None:
    bad = [{**GOOD, "name": f"bad-{n}", "spec": {"warm": 9, "max": 3, "park": {"min": 2, "max": 1}}} for n in range(2)]
    answer = stage.ask("POST", "/v1/apply", {"objects": [bad[0], GOOD, bad[1]]})
    fields = [error["field"] for error in answer.json["errors"]]
    assert fields == [f"objects[{n}].spec.{field}" for n in (0, 2) for field in ("warm", "park.min")]


def test_a_tenants_token_may_neither_apply_nor_scale(stage: Stage) -> None:
    assert stage.ask("POST", "/v1/apply", {"objects": [GOOD]}, token="acme").status == 403
    assert stage.ask("POST", "/v1/pools/direct/scale", {"warm": 1}, token="acme").status == 403


def test_a_folder_of_manifests_may_be_larger_than_other_requests(stage: Stage) -> None:
    long = {"worker": {"activate": ["sh", "-c", "x" * 30_000]}}
    objects = [{**GOOD, "name": f"pool-{n}", "spec": long} for n in range(10)]
    assert stage.ask("POST", "/v1/apply", {"objects": objects}).status == 200
    objects = [{**GOOD, "name": f"pool-{n}", "spec": long} for n in range(40)]
    assert stage.ask("POST", "/v1/apply", {"objects": objects}).status == 413


def test_requests_for_the_same_pools_at_the_same_time_are_all_stored(stage: Stage) -> None:
    """A request whose checks are outdated is checked again, so that its caller does not notice the other requests."""

    def apply(n: int) -> int:
        objects = [{**GOOD, "name": name, "spec": {"warm": 0, "max": n}} for name in ("one", "two")]
        return stage.ask("POST", "/v1/apply", {"objects": objects}).status

    with ThreadPoolExecutor(4) as callers:
        assert list(callers.map(apply, range(1, 5))) == [200] * 4
    sizes = {each["name"]: each["spec"]["max"] for each in stage.ask("GET", "/v1/pools").json["items"]}
    assert sizes["one"] == sizes["two"], "the last request was stored as a whole"


def test_a_pool_that_changes_between_the_check_and_the_change_is_checked_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request deletes the pool and makes one of another mode under its name, which the first check could not see."""
    assert stage.ask("POST", "/v1/apply", {"objects": [GOOD]}).status == 200
    pools = stage.store.pools
    store = pools.apply

    async def overtaken(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        await pools.delete("good")
        await pools.put("p-other", "good", PoolSpec(mode="session"), "api")
        return await store(*arguments, **named)

    monkeypatch.setattr(pools, "apply", overtaken)
    answer = stage.ask("POST", "/v1/apply", {"objects": [{**GOOD, "spec": {"warm": 1}}, ACME]})
    assert (answer.status, answer.json["errors"][0]["field"]) == (422, "objects[0].spec.mode")
    assert stage.ask("GET", "/v1/pools/good").json["spec"]["mode"] == "session"


def test_the_sdk_applies_and_scales(stage: Stage) -> None:
    with SyncClient(stage.url, "admin") as client:
        assert [each.result for each in client.apply([GOOD, ACME], dry_run=True)] == ["created", "created"]
        made = client.apply([GOOD, ACME])
        assert [(each.kind, each.name, each.result, each.before) for each in made] == [
            ("WorkerPool", "good", "created", None),
            ("Tenant", "acme", "created", None),
        ]
        assert made[1].after["weight"] == 2
        assert client.scale("good", max=3).spec["max"] == 3
        with pytest.raises(Invalid) as refused:
            client.apply([{**GOOD, "spec": {"warm": 4, "max": 3}}])
        assert [error.field for error in refused.value.problem.errors] == ["objects[0].spec.warm"]


def test_scaling_changes_only_what_is_given(stage: Stage) -> None:
    before = stage.ask("GET", "/v1/pools/agents").json["spec"]
    answer = stage.ask("POST", "/v1/pools/agents/scale", {"warm": 2, "max": 9}, token="operator")
    assert (answer.status, answer.json["spec"]) == (200, {**before, "warm": 2, "max": 9})
    answer = stage.ask("POST", "/v1/pools/agents/scale", {"warm": 3})
    assert answer.json["spec"] == {**before, "warm": 3, "max": 9}
    events = stage.ask("GET", "/v1/events?newest=true&limit=2").json["items"]
    assert [(event["kind"], event["pool"]) for event in events] == [("pool.changed", "agents")] * 2


@pytest.mark.parametrize(
    ("pool", "body", "status", "detail"),
    [
        ("agents", {}, 422, "warm: give warm, max or both"),
        ("agents", {"warm": 7}, 422, "warm: warm (7) must not exceed max (5)"),
        ("agents", {"worm": 7}, 422, "worm"),
        ("agent", {"warm": 1}, 404, "did you mean 'agents'?"),
        ("declared", {"warm": 1}, 409, "belongs to its WorkerPool object"),
    ],
)
def test_scaling_is_refused_with_the_reason(stage: Stage, pool: str, body: dict[str, int], status: int, detail: str) -> None:
    stage.do(stage.store.pools.put("p-declared", "declared", PoolSpec(), "cr"))
    before = stage.rows()
    answer = stage.ask("POST", f"/v1/pools/{pool}/scale", body)
    assert (answer.status, detail in answer.json["detail"]) == (status, True), answer.raw
    assert stage.rows() == before
