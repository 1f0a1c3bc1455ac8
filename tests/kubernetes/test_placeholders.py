"""A placeholder requests exactly the resources of a worker, container by container, and runs nothing."""

from typing import Any

from kube_stage import pool

from holdfast.kubernetes.headroom import placeholder, stem
from holdfast.kubernetes.template import SMALL, Setup, manifest
from holdfast.model.pool import Pool, PoolSpec, WorkerSpec
from holdfast.ports.cluster import Order

SETUP = Setup("one", "holdfast:test", ("http://x",))
LIMITS = {"limits": {"cpu": "2", "memory": "1Gi", "example.com/gpu": "1"}}
REQUESTS = {"requests": {"cpu": "100m"}}


def of(containers: list[dict[str, Any]], before: list[dict[str, Any]] | None = None, **spec: Any) -> Pool:
    pod = {"containers": containers, "initContainers": before or []}
    return pool(PoolSpec(**{"pod": {"spec": pod}} | spec))


def named(name: str, resources: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "x", **({"resources": resources} if resources is not None else {}), **more}


def asked(pod: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Returns what Kubernetes counts: the resources of each container in order, and whether it keeps running."""
    init = [("init", each.get("restartPolicy"), each.get("resources") or {}) for each in pod["spec"].get("initContainers") or []]
    return [*init, *(("beside", None, each.get("resources") or {}) for each in pod["spec"]["containers"])]


def same(pool: Pool) -> dict[str, Any]:
    made = placeholder(pool, "p", SETUP)
    assert asked(made) == asked(manifest(Order(worker="w", pool=pool, epoch=0), SETUP, "a"))
    return made


def test_limits_alone_are_copied_for_the_api_server_makes_requests_of_them() -> None:
    made = same(of([named("work", LIMITS), named("other")], worker=WorkerSpec(agent=False)))
    assert [each["resources"] for each in made["spec"]["containers"]] == [LIMITS, {}]


def test_what_a_job_runs_before_it_starts_counts() -> None:
    made = same(of([named("work", LIMITS)], [named("fetch", REQUESTS)]))
    assert [each["resources"] for each in made["spec"]["initContainers"]] == [REQUESTS, SMALL, LIMITS, SMALL]
    assert {tuple(each["command"]) for each in made["spec"]["initContainers"]} == {("true",)}, "they end, or it would never start"


def test_the_sidecar_of_a_session_counts_and_stays() -> None:
    made = same(of([named("work", LIMITS)], mode="session"))
    (agent,) = made["spec"]["initContainers"]
    assert (agent["resources"], agent["restartPolicy"], agent["command"]) == (SMALL, "Always", ["sleep", "infinity"])


def test_nothing_of_the_workers_own_is_in_it() -> None:
    mounted = named("work", {**LIMITS, "claims": [{"name": "gpu"}]}, env=[{"name": "KEY", "value": "secret"}], command=["serve"])
    made = placeholder(of([mounted]), "p", SETUP)
    assert "secret" not in str(made)
    for each in (*made["spec"]["initContainers"], *made["spec"]["containers"]):
        assert each.keys() <= {"name", "image", "command", "resources", "securityContext", "restartPolicy"}
        assert each["resources"].keys() <= {"requests", "limits"}, "a device that a worker claims is not a placeholder's to take"


def test_another_shape_has_another_name_whatever_makes_it() -> None:
    one = of([named("work", LIMITS)])
    assert stem(one, SETUP) == stem(of([named("work", LIMITS)]), SETUP)
    others = [of([named("work", REQUESTS)]), of([named("work", LIMITS)], worker=WorkerSpec(agent=False))]
    stems = {stem(one, SETUP), *(stem(each, SETUP) for each in others), stem(one, Setup("one", "holdfast:next", ("http://x",)))}
    assert len(stems) == 4
