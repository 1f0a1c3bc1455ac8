"""A tenant sees of a pool what it needs for its claims. The template, the network and the troubles are the operators'."""

import pytest

from holdfast.model.pool import NetworkSpec, PoolSpec, WorkerSpec
from served_api import Stage

INNER = "inner-detail"
SPEC = PoolSpec(
    mode="job",
    warm=0,
    max=3,
    worker=WorkerSpec(run=["sh", "-c", INNER], activate=[INNER]),
    pod={"spec": {"containers": [{"name": "work", "image": f"registry/{INNER}"}]}},
    network=NetworkSpec(egress=[{"to": [{"podSelector": {"matchLabels": {"app": INNER}}}]}]),
    labels=["gpu"],
)


@pytest.fixture
def stage(served: Stage) -> Stage:
    served.do(served.store.pools.put("p-inner", "inner", SPEC, "api"))
    served.do(served.store.pools.trouble("p-inner", f"image {INNER} cannot be pulled", 60.0))
    served.do(served.store.pools.freeze("inner", f"because of {INNER}", None))
    return served


def test_a_tenant_sees_what_it_needs_and_nothing_of_the_operators(stage: Stage) -> None:
    one = stage.ask("GET", "/v1/pools/inner", token="acme")
    listed = stage.ask("GET", "/v1/pools", token="acme")
    events = stage.ask("GET", "/v1/events?limit=1000", token="acme")
    for answer in (one, listed, events):
        assert answer.status == 200
        assert INNER.encode() not in answer.raw
    assert one.json in listed.json["items"]
    assert (one.json["name"], one.json["state"], one.json["frozen"]) == ("inner", "live", True)
    assert one.json["spec"] == {
        "mode": "job",
        "warm": 0,
        "max": 3,
        "claim": {"lease": "60s", "maxDuration": None},
        "park": {"ttl": "1m", "maxTTL": "1h"},
        "labels": ["gpu"],
    }
    assert one.json["status"].keys() == {"spawning", "warm", "free", "waiting", "oldest_wait"}


def test_a_tenant_whose_claim_waits_is_not_shown_the_reasons_of_operators(stage: Stage) -> None:
    claim = stage.ask("POST", "/v1/claims", {"pool": "inner", "wait": "0s"}, token="acme").json
    explained = stage.ask("GET", f"/v1/explain/claim/{claim['id']}", token="acme")
    assert explained.status == 200
    assert INNER not in "\n".join(explained.json["sentences"])
    text = " ".join(explained.json["sentences"])
    assert "The pool is frozen: " in text
    assert "failed; operators see why." in text
    assert stage.ask("GET", "/v1/explain/pool/inner", token="acme").status == 403


def test_operators_see_everything(stage: Stage) -> None:
    for token in ("admin", "operator"):
        shown = stage.ask("GET", "/v1/pools/inner", token=token).json
        assert shown["spec"]["pod"] == SPEC.pod
        assert INNER in shown["status"]["trouble"]
        assert INNER in shown["frozen"]
        assert INNER in str(stage.ask("GET", "/v1/explain/pool/inner", token=token).json["sentences"])
