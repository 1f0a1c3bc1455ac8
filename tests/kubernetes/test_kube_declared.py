"""WorkerPool objects on a real API server, one pass of the duty `pools` at a time: their status, and their deletion."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kube_fleet import job
from webhooks import NAME, hooked, unreachable

from holdfast.duties.pools import Pools
from holdfast.install.manifests import custom_resource
from holdfast.kubernetes import KubernetesCluster
from holdfast.kubernetes import declared as adapter
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.template import Setup
from holdfast.model.effect import Effect, Failed
from holdfast.ports.declared import Condition, DeclaredStatus
from holdfast.postgres.store import PostgresStore
from holdfast_testcluster import keys
from holdfast_testcluster.access import Access
from postgres.recorded_cluster import passed
from postgres.store_steps import make_warm
from waiting import eventually

MERGE = "application/merge-patch+json"


class Place:
    """WorkerPools of one namespace as their owner sees them, and the installation `one` there."""

    def __init__(self, access: Access, namespace: str) -> None:
        self.access, self.namespace = access, namespace
        self.path = f"/apis/holdfast.dev/v1alpha1/namespaces/{namespace}/workerpools"

    def open(self) -> KubernetesCluster:
        setup = Setup("one", "holdfast:test", ("http://127.0.0.1:9",))
        return KubernetesCluster(Api(find_access(self.access.kubeconfig)), self.namespace, setup)

    def declare(self, name: str = "linux", **spec: Any) -> None:
        meta = {"name": name, "labels": {"holdfast.dev/install": "one"}}
        body = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "WorkerPool", "metadata": meta, "spec": job(**spec)}
        self.access.ask("POST", self.path, body)

    def edit(self, change: dict[str, Any], name: str = "linux") -> None:
        self.access.ask("PATCH", f"{self.path}/{name}", change, kind=MERGE)

    def status(self, name: str = "linux") -> dict[str, Any]:
        """Returns the status, with its conditions by type."""
        shown = self.access.ask("GET", f"{self.path}/{name}")["status"]
        return {**shown, "conditions": {each["type"]: each for each in shown["conditions"]}}

    def events(self) -> list[str]:
        found = self.access.ask("GET", f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [each["reason"] for each in sorted(found, key=lambda event: str(event["metadata"]["name"]))]


@pytest.fixture
def place(control_plane: Access, namespace: str) -> Place:
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(custom_resource()))
    served = "/apis/holdfast.dev/v1alpha1/workerpools"
    eventually(lambda: control_plane.request("GET", served).status == 200, 30, "the CRD is served")
    return Place(control_plane, namespace)


Pass = Callable[[], Awaitable[list[Effect]]]


@pytest.fixture
async def cluster(place: Place) -> AsyncIterator[KubernetesCluster]:
    opened = place.open()
    yield opened
    await opened.close()


@pytest.fixture
def pass_(store: PostgresStore, cluster: KubernetesCluster) -> Pass:
    """Returns a function that runs one pass of the duty."""

    async def run() -> list[Effect]:
        return [effect for _, effect in await passed(Pools(), store, cluster)]

    return run


async def test_an_object_shows_that_it_could_not_be_checked_and_is_accepted_when_it_can_be(
    place: Place, store: PostgresStore, cluster: KubernetesCluster, pass_: Pass, tmp_path: Path
) -> None:
    keys.make_authority(tmp_path)

    with unreachable(tmp_path) as port, hooked(place.access, place.namespace, tmp_path, port):
        place.declare()
        assert any(isinstance(effect, Failed) for effect in await pass_())
        shown = place.status()["conditions"]
        assert (shown["Ready"]["status"], shown["Degraded"]["status"]) == ("False", "True")
        assert shown["Degraded"]["reason"] == "Unchecked"
        assert NAME in shown["Degraded"]["message"], "it names the webhook"
        assert await store.pools.get("linux") is None, "what was not checked is not made"
    await pass_()
    assert await store.pools.get("linux") is not None
    await pass_()
    assert place.status()["conditions"]["Degraded"]["status"] == "False"


# A refused edit (the pool goes on)


async def test_a_refused_edit_of_a_live_pool_leaves_its_counts_revision_and_freeze_as_they_are(
    place: Place, store: PostgresStore, cluster: KubernetesCluster, pass_: Pass
) -> None:
    place.declare(warm=2)
    await pass_()
    pool = await store.pools.get("linux")
    assert pool is not None
    await make_warm(store, pool, 2)
    await store.pools.freeze("linux", "looking into it")
    await pass_()
    before = place.status()
    assert (before["free"], before["desired"], before["revision"]) == (2, 2, pool.revision)
    assert before["conditions"]["Frozen"]["status"] == "True"

    place.edit({"spec": {"warm": 5, "pod": {"spec": {"containers": [{"name": "work", "image": ""}]}}}})
    for _ in range(2):
        await pass_()
        now = place.status()
        figures = ("free", "warm", "desired", "revision", "selector")
        assert {each: now[each] for each in figures} == {each: before[each] for each in figures}
        assert now["conditions"]["Ready"]["status"] == "True", "it serves as before"
        assert now["conditions"]["Frozen"]["message"] == "looking into it"
        degraded = now["conditions"]["Degraded"]
        assert (degraded["status"], degraded["reason"]) == ("True", "Refused")
        assert "pod.spec.containers[0].image" in degraded["message"]
        # A client that waits for this generation gets its own result, not that of the last generation.
        assert now["observedGeneration"] == degraded["observedGeneration"] == 2
    stored = await store.pools.get("linux")
    assert stored is not None
    assert (stored.spec.warm, stored.revision) == (2, pool.revision)

    place.edit({"spec": job(warm=3)})
    await pass_()
    await pass_()
    now = place.status()
    assert now["desired"] == 3
    assert now["conditions"]["Degraded"]["status"] == "False"


# Events


def a_status(ready: tuple[bool, str, str], degraded: tuple[bool, str, str]) -> DeclaredStatus:
    return DeclaredStatus(generation=1, conditions=(Condition("Ready", *ready), Condition("Degraded", *degraded)))


def counts(free: int) -> str:
    return f"{free} free workers of 9 wanted; {9 - free} starting"


WELL = (False, "AsExpected", "")


async def write_status(cluster: KubernetesCluster, *statuses: DeclaredStatus) -> None:
    objects = cluster.declarations
    assert objects is not None
    for status in statuses:
        (declared,) = await objects.list() or []
        await objects.update_status(declared, status)


async def test_counts_alone_are_no_event(place: Place, store: PostgresStore, cluster: KubernetesCluster, pass_: Pass) -> None:
    place.declare()
    await write_status(cluster, *(a_status((False, "Starting", counts(free)), WELL) for free in range(9)))
    assert place.status()["conditions"]["Ready"]["message"] == counts(8), "the condition itself is up to date"
    assert place.events() == ["Starting"]
    await write_status(cluster, a_status((True, "WarmTargetMet", counts(9)), WELL))
    assert place.events() == ["Starting", "WarmTargetMet"]


async def test_a_pool_that_is_ready_on_and_off_posts_an_event_once_in_a_while(
    place: Place, store: PostgresStore, cluster: KubernetesCluster, pass_: Pass, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.declare()
    flapping = [a_status((False, "Starting", counts(3)), WELL), a_status((True, "WarmTargetMet", counts(9)), WELL)] * 5
    await write_status(cluster, *flapping)
    assert place.events() == ["Starting", "WarmTargetMet"]
    monkeypatch.setattr(adapter, "AGAIN", 0.0)
    await write_status(cluster, flapping[0])
    assert place.events() == ["Starting", "WarmTargetMet", "Starting"]


async def test_another_trouble_is_an_event_and_the_same_on_other_workers_is_not(
    place: Place, store: PostgresStore, cluster: KubernetesCluster, pass_: Pass
) -> None:
    troubles = [
        "unschedulable: 0/3 nodes are available: 3 Insufficient cpu.",
        "unschedulable: 0/4 nodes are available: 4 Insufficient cpu.",
        'quota: pods "w-linux-abcde" is forbidden: exceeded quota: small, used: pods=5, limited: pods=5',
        'quota: pods "w-linux-fghij" is forbidden: exceeded quota: small, used: pods=6, limited: pods=6',
    ]

    place.declare()
    starting = (True, "WarmTargetMet", "")
    await write_status(cluster, *(a_status(starting, (True, "SpawnsFail", trouble)) for trouble in troubles))
    assert place.status()["conditions"]["Degraded"]["message"] == troubles[-1]
    assert place.events() == ["SpawnsFail", "SpawnsFail"]
    await write_status(cluster, a_status(starting, WELL))
    assert place.events() == ["SpawnsFail", "SpawnsFail", "AsExpected"]
    edits = [f"pod.spec.containers[0].{field}: Required value" for field in ("image", "name")]
    await write_status(cluster, *(a_status(starting, (True, "Refused", edit)) for edit in edits))
    assert place.events()[3:] == ["Refused", "Refused"]


# Deletion


async def test_an_object_that_became_another_installations_is_gone_for_us(
    place: Place, store: PostgresStore, cluster: KubernetesCluster, pass_: Pass
) -> None:
    place.declare()
    await pass_()
    pool = await store.pools.get("linux")
    assert pool is not None
    objects = cluster.declarations
    assert objects is not None
    uid = pool.id.removeprefix("p-")
    assert not await objects.absent("linux", uid)
    place.edit({"metadata": {"labels": {"holdfast.dev/install": "two"}}})
    assert await objects.absent("linux", uid)
    await pass_()
    assert await store.pools.get("linux") is None, "its name is free"
    assert [each.state for each in await store.pools.all()] == ["draining"]
    await pass_()
    assert await store.pools.all() == []
    place.edit({"metadata": {"labels": {"holdfast.dev/install": "one"}}})
    await pass_()
    back = await store.pools.get("linux")
    assert back is not None, "it is ours again"
    assert back.id == pool.id
