"""The rights of an installation on a real API server: the backend uses each of them, and needs no other."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.install import Values, objects
from holdfast.install.manifests import custom_resource
from holdfast.kubernetes import KubernetesCluster, rights
from holdfast.kubernetes import objects as beside
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api, ApiRefused
from holdfast.kubernetes.template import Setup
from holdfast.model.pod import Stamp
from holdfast.model.pool import HeadroomSpec, NetworkSpec, Pool, PoolSpec, WorkerSpec, revision_of
from holdfast.ports.cluster import Order
from holdfast.ports.declared import Condition, DeclaredStatus
from holdfast.ports.recovery import Remembered
from holdfast_testcluster.access import Access
from install.applied import CRD, Json, apply, pool_object, spec_of
from waiting import eventually


class Recorded(Api):
    """Records the right that each call needs, and each call that was forbidden."""

    used: set[tuple[str, str, str]]
    forbidden: list[str]

    async def _call(self, method: str, path: str, *args: Any, **more: Any) -> bytes:
        self.used.add(right_of(method, path))
        try:
            return await super()._call(method, path, *args, **more)
        except ApiRefused as refused:
            if refused.code == 403:
                self.forbidden.append(f"{method} {path}: {refused}")
            raise

    @contextlib.asynccontextmanager
    async def stream(self, path: str, params: dict[str, str], idle: float) -> AsyncIterator[AsyncIterator[bytes]]:
        group, resource, _ = right_of("GET", path)
        self.used.add((group, resource, "watch"))
        async with super().stream(path, params, idle) as lines:
            yield lines


PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/[^/]+)?/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?"
)


def right_of(method: str, path: str) -> tuple[str, str, str]:
    parts = PATH.fullmatch(path)
    assert parts, path
    resource = f"{parts['resource']}/{parts['sub']}" if parts["sub"] else parts["resource"]
    read = "get" if parts["name"] else "list"
    verb = {"GET": read, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
    return parts["group"] or "", resource, verb


@pytest.fixture(params=["together", "apart"])
def workers(request: pytest.FixtureRequest, control_plane: Access, namespace: str, make_namespace: Callable[..., str]) -> str:
    """Returns the workers' namespace: the replicas' own, or another."""
    return namespace if request.param == "together" else make_namespace(control_plane)


@pytest.fixture
def replica(control_plane: Access, namespace: str, workers: str) -> Callable[[], KubernetesCluster]:
    """Returns the cluster adapter as a replica has it: with the installation's ServiceAccount, for the workers' namespace."""
    values = Values(namespace=namespace, workers_namespace=workers, make_namespace=False, dsn_secret="db")
    apply(control_plane, [each for each in objects(values) if each["kind"] != "Deployment"])
    path = "/apis/holdfast.dev/v1alpha1/workerpools"
    eventually(lambda: control_plane.request("GET", path).status == 200, 20, "the CRD is served")
    config = control_plane.service_account_kubeconfig(namespace, "holdfast")
    Recorded.used, Recorded.forbidden = set(), []
    api = find_access(config)
    setup = Setup("holdfast", "holdfast:test", ("http://x",), replicas_namespace=namespace if workers != namespace else None)
    return lambda: KubernetesCluster(Recorded(api), workers, setup, keep_output=0.0)


SPEC = PoolSpec(
    worker=WorkerSpec(agent=False),
    pod={"spec": {"containers": [{"name": "work", "image": "x", "command": ["sleep", "9"]}]}},
    headroom=HeadroomSpec(mode="constant", slots=1),
    network=NetworkSpec(egress=[{}]),
)
POOL = Pool(id="p-1", name="linux", spec=SPEC, revision=revision_of(SPEC), state="live", source="api", created_at=0.0)


async def test_the_backend_uses_every_right_that_it_has_and_needs_no_other(
    control_plane: Access, workers: str, replica: Callable[[], KubernetesCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "OLD", -1.0)  # so that anchors of deleted pools are swept at once
    control_plane.ask("POST", f"/apis/holdfast.dev/v1alpha1/namespaces/{workers}/workerpools", pool_object())
    token = control_plane.service_account_token(workers, "default", audiences=("holdfast",))

    cluster, other = replica(), replica()
    try:
        cluster.watch()
        await live_a_life(cluster, other, token)
        await _until(lambda: {("", "pods", "watch"), ("", "nodes", "watch")} <= Recorded.used)
    finally:
        await cluster.close()
        await other.close()
    assert Recorded.forbidden == []
    granted = {(right.group, right.resource, verb) for right in (*rights.NAMESPACED, *rights.CLUSTER) for verb in right.verbs}
    of_every_account = {("authorization.k8s.io", "selfsubjectaccessreviews", "create")}
    assert Recorded.used - of_every_account == granted


async def live_a_life(cluster: KubernetesCluster, other: KubernetesCluster, token: str) -> None:
    """Makes every call of the adapter at least once, and twice what two replicas do at the same time."""
    for number, each in enumerate((cluster, other)):
        await each.ensure([POOL])
        assert await each.check(POOL) == []
        made = await each.create(Order(worker=f"w-linux-{number}", pool=POOL, epoch=1))
        assert not hasattr(made, "reason"), made
    pod = (await other.pods())[0]
    await cluster.protect(pod.name, pod.uid, Stamp("acme", "c-1", 1, 0.0))
    await cluster.seal(pod.name, pod.uid)
    seen = await cluster.read(pod.name)
    assert seen is not None
    await cluster.clear(pod.name, pod.uid, seen.version)
    await cluster.output("c-1", pod.name, 0, 100)
    await cluster.verify(token)
    for mark in (1, 2):
        await cluster.remember(Remembered("holdfast", mark, 1))
    assert await cluster.remembered() == Remembered("holdfast", 2, 1)
    await cluster.diagnose([POOL])
    assert cluster.declarations is not None
    for declared in await cluster.declarations.list() or []:
        await cluster.declarations.guard(declared)
        condition = Condition("Degraded", True, "Test", "a warning")
        await cluster.declarations.update_status(declared, DeclaredStatus(generation=1, conditions=(condition,)))
        await cluster.declarations.absent(declared.name, "another")
    for each in await cluster.pods():
        await cluster.delete(each.name, each.uid, 1.0)
        await cluster.forget(each.name, each.uid)
    await cluster.ensure([])  # sweeps what the pool left behind


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, Recorded.used
        await asyncio.sleep(0.05)


def test_the_account_has_the_rights_of_the_table_and_no_others(
    control_plane: Access, namespace: str, workers: str, replica: Callable[[], KubernetesCluster]
) -> None:
    token, bare = (control_plane.service_account_token(namespace, name) for name in ("holdfast", "default"))
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

    def rules(of: str, where: str) -> list[Json]:
        answer = control_plane.request("POST", path, {"spec": {"namespace": where}}, token=of)
        return list(answer.body["status"]["resourceRules"])

    def flat(found: list[Json]) -> set[tuple[str, str, str, str]]:
        return {
            (group, resource, verb, name)
            for rule in found
            for group in rule.get("apiGroups", [])
            for resource in rule.get("resources", [])
            for verb in rule["verbs"]
            for name in rule.get("resourceNames") or [""]
        }

    table = [*rights.rules(rights.NAMESPACED, "holdfast"), *rights.rules(rights.CLUSTER, "holdfast")]
    assert flat(rules(token, workers)) - flat(rules(bare, workers)) == flat(table)
    if workers != namespace:
        cluster = flat(rights.rules(rights.CLUSTER, "holdfast"))
        assert flat(rules(token, namespace)) - flat(rules(bare, namespace)) == cluster, "none where the replicas run"
    for where in (namespace, workers):
        assert control_plane.request("GET", f"/api/v1/namespaces/{where}/secrets", token=token).status == 403
    assert control_plane.request("GET", "/api/v1/namespaces/default/pods", token=token).status == 403


def test_the_crd_here_is_the_one_that_is_shipped(control_plane: Access, replica: Callable[[], KubernetesCluster]) -> None:
    """So tests with pools as objects use the CRD that users get."""
    assert spec_of(control_plane.ask("GET", CRD)) == spec_of(custom_resource())
