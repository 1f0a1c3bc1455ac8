"""A claim needs a command exactly if its pool has none of its own."""

from typing import Any

import pytest

from holdfast.model.pool import PoolSpec, WorkerSpec
from served_api import Stage

IMAGE: dict[str, Any] = {"name": "main", "image": "busybox"}


def pool(containers: Any = None, **worker: Any) -> PoolSpec:
    pod = {} if containers is None else {"spec": {"containers": containers}}
    return PoolSpec(warm=0, max=5, worker=WorkerSpec(**worker), pod=pod)


@pytest.mark.parametrize(
    "spec",
    [pool(run=["nightly"]), pool([{**IMAGE, "command": ["/entry"]}]), pool([{**IMAGE, "command": ["/entry"]}, IMAGE])],
    ids=["worker.run", "the template's command", "the command of the first container"],
)
def test_a_pool_with_its_own_command_is_claimed_without_one(stage: Stage, spec: PoolSpec) -> None:
    stage.do(stage.store.pools.put("p-own", "own", spec, "api"))
    claim = stage.claim(pool="own", wait="0s")
    assert claim["state"] == "waiting"


@pytest.mark.parametrize(
    "spec",
    [
        pool(),
        pool([IMAGE]),
        pool([{**IMAGE, "args": ["-v"]}]),
        pool([IMAGE, {**IMAGE, "command": ["/beside"]}]),
        pool([]),
        pool("x"),
    ],
    ids=["one machine", "only an image", "only args", "only beside it", "no container", "no list"],
)
def test_a_pool_without_a_command_refuses_a_claim_without_one_and_says_what_to_do(stage: Stage, spec: PoolSpec) -> None:
    stage.do(stage.store.pools.put("p-own", "own", spec, "api"))
    answer = stage.ask("POST", "/v1/claims", {"pool": "own", "wait": "0s"})
    assert (answer.status, [error["field"] for error in answer.json["errors"]]) == (422, ["command"])
    assert "`holdfast run --pool own -- make test`" in answer.json["detail"]


def test_a_command_for_a_pool_that_runs_its_own_is_refused_with_what_to_do(stage: Stage) -> None:
    stage.do(stage.store.pools.put("p-own", "own", pool(run=["nightly"]), "api"))
    stage.do(stage.store.pools.put("p-shell", "shell", PoolSpec(mode="session", warm=0, worker=WorkerSpec(serve=["x"])), "api"))
    for name, hint in (("own", "leave it out to run that"), ("shell", "`holdfast claim --pool shell`")):
        answer = stage.ask("POST", "/v1/claims", {"pool": name, "command": ["true"], "wait": "0s"})
        assert (answer.status, hint in answer.json["detail"]) == (422, True), answer.raw
