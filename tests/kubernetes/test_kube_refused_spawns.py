"""A spawn that is refused or cannot start frees its slot, and the pool shows the reason (seed 003)."""

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fleet_probes import metric
from kube_fleet import KubeFleet, Made, job
from pool_specs import sized

from waiting import eventually

BACKOFF = 2.0  # seconds after the first refusal; it doubles
LOOKED_AT = 5.0  # seconds after which a duty checks a row without a pod


def trouble(fleet: KubeFleet, pool: str, text: str) -> str:
    def look() -> Any:
        shown = fleet.api("GET", f"/v1/pools/{pool}").json["status"]["trouble"]
        return shown if shown and text in shown else None

    return str(eventually(look, 60, f"{pool} shows {text}"))


def test_a_spawn_beyond_the_quota_gives_its_slot_back_and_the_pool_shows_why(fleet_of: Made) -> None:
    fleet = fleet_of()
    quota = {"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}}
    path = f"/api/v1/namespaces/{fleet.namespace}/resourcequotas"
    fleet.access.ask("POST", path, quota)
    eventually(lambda: fleet.access.ask("GET", f"{path}/two").get("status", {}).get("hard"), 30, "the quota is in force")
    assert fleet.api("PUT", "/v1/pools/linux", job(warm=4, max=6)).status == 201
    assert "quota" in trouble(fleet, "linux", "exceeded quota")
    fleet.warm(2, within=60)
    # Rows without pods would be slots that cannot be used.
    eventually(lambda: len(fleet.workers()) == len(fleet.pods()) == 2, 60, "no slot is taken without a pod")
    held = fleet.claim("linux", command=["true"], wait="30s")
    assert fleet.see(held["id"], wait="60s")["outcome"] == "completed", "those that are there serve"
    fleet.access.ask("PATCH", f"{path}/two", {"spec": {"hard": {"pods": "9"}}}, kind="application/merge-patch+json")
    fleet.warm(4, within=90)
    eventually(lambda: fleet.api("GET", "/v1/pools/linux").json["status"]["trouble"] is None, 30, "it no longer complains")


def test_a_limit_range_and_a_bad_template_are_refused_with_their_reason(fleet_of: Made) -> None:
    fleet = fleet_of()
    limits = {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}
    fleet.access.ask("POST", f"/api/v1/namespaces/{fleet.namespace}/limitranges", {"metadata": {"name": "small"}, "spec": limits})
    large = {"requests": {"memory": "2Gi"}, "limits": {"memory": "2Gi"}}

    def refused() -> Any:  # the API server applies the range a moment later
        answer = fleet.api("PUT", "/v1/pools/large", sized(large))
        return answer.status == 422 and answer.json["detail"]

    assert "maximum memory usage" in eventually(refused, 30, "the dry run is refused")
    bad = job()
    bad["pod"]["spec"]["containers"][0]["ports"] = [{"containerPort": 99999}]
    answer = fleet.api("PUT", "/v1/pools/bad", bad)
    assert answer.status == 422
    assert answer.json["errors"][0]["field"] == "pod.spec.containers[0].ports[0].containerPort"
    assert fleet.api("GET", "/v1/pools").json["items"] == [], "nothing was changed"


def test_a_limit_range_that_came_later_refuses_a_spawn_and_the_pool_recovers_when_it_goes(fleet_of: Made) -> None:
    """The pool was accepted, but the replacement of its worker is refused."""
    large = {"requests": {"memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    fleet = fleet_of(pools={"linux": sized(large, warm=1, max=2)})
    fleet.warm(1, within=60)
    with limited(fleet, sized(large)["pod"], memory="1Gi"):
        held = fleet.claim("linux", command=["true"], wait="30s")
        assert held["protected"], "what is there can be stamped"
        shown = trouble(fleet, "linux", "maximum memory usage per Container is 1Gi")
        assert shown.startswith("limit: ")
        assert fleet.see(held["id"], wait="60s")["outcome"] == "completed", "and runs"
        _slots_come_back_at_once_and_tries_get_rarer(fleet)
    fleet.warm(1, within=90)
    eventually(lambda: fleet.api("GET", "/v1/pools/linux").json["status"]["trouble"] is None, 30, "it no longer complains")
    again = fleet.claim("linux", command=["true"], wait="30s")
    assert fleet.see(again["id"], wait="60s")["outcome"] == "completed"


@contextlib.contextmanager
def limited(fleet: KubeFleet, pod: dict[str, Any], **most: str) -> Iterator[None]:
    """Limits the containers of the namespace. Returns when the API server applies it."""
    path = f"/api/v1/namespaces/{fleet.namespace}/limitranges"
    fleet.access.ask("POST", path, {"metadata": {"name": "small"}, "spec": {"limits": [{"type": "Container", "max": most}]}})
    probe = {"metadata": {"name": "probe"}, **pod}
    try:
        eventually(lambda: fleet.access.request("POST", f"{fleet.pods_path}?dryRun=All", probe).status == 403, 30, "in force")
        yield
    finally:
        fleet.access.ask("DELETE", f"{path}/small")


def _slots_come_back_at_once_and_tries_get_rarer(fleet: KubeFleet) -> None:
    """By the store's history, a slot was taken only for the duration of a call, and the second pause is twice the first."""
    lives = """
    SELECT extract(epoch FROM created_at)::float8 AS since, extract(epoch FROM state_since)::float8 AS until
    FROM holdfast.worker WHERE pod_uid IS NULL AND state = 'gone' ORDER BY created_at
    """
    eventually(lambda: len(fleet.sql(lives)) >= 3, 60, "it tries again, and again")
    tries = fleet.sql(lives)
    assert max(each["until"] - each["since"] for each in tries) < LOOKED_AT, "given back before any pass would look"
    first, second = [after["since"] - before["until"] for before, after in pairwise(tries[:3])]
    assert (first >= BACKOFF, second >= 2 * BACKOFF) == (True, True), (first, second)
    assert fleet.workers() == [], "no slot is taken without a pod"
    assert metric(fleet, 'holdfast_spawn_failures_total{reason="limit"}') >= 3


def test_unschedulable_and_missing_images_are_shown_while_they_last(fleet_of: Made) -> None:
    missing = job(startTimeout="20s")
    missing["pod"]["spec"]["containers"][0]["image"] = "work:missing"
    huge = sized({"requests": {"cpu": "1000"}, "limits": {"cpu": "1000"}})
    fleet = fleet_of(pools={"missing": missing, "huge": huge})
    assert "unschedulable" in trouble(fleet, "huge", "unschedulable")
    assert "image" in trouble(fleet, "missing", "image")
    assert fleet.workers("warm") == [], "its image is pulled before a worker counts as warm"

    def gone() -> Any:
        events = fleet.api("GET", "/v1/events?pool=missing").json["items"]
        return [each for each in events if each["kind"] == "worker.gone"]

    eventually(gone, 90, "past its start timeout it goes, and its slot is free again")
