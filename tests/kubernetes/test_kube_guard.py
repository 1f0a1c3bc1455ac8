"""What belongs to the installation stays its own on a real API server. Workers of another namespace are not taken for lost."""

import pytest
from kube_stage import KubeStage, pool

from holdfast.kubernetes import KubernetesCluster
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.diagnose import APART
from holdfast.kubernetes.template import Setup
from holdfast.model.pool import PoolSpec, WorkerSpec
from holdfast.ports.cluster import Cluster, Order, Refused
from holdfast.ports.recovery import Remembered
from holdfast.ports.store import Store, WrongInstallation
from holdfast.wiring import check_namespace
from holdfast_testcluster.access import Access

KEYS = [{"name": "keys", "secret": {"secretName": "one-keys"}}]


async def test_a_pool_that_mounts_our_keys_is_refused_and_gets_no_pod(control_plane: Access, namespace: str) -> None:
    setup = Setup("one", "holdfast:test", ("http://x",), own_secrets=("one-keys",))
    cluster = KubernetesCluster(Api(find_access(control_plane.kubeconfig)), namespace, setup)
    container = {"name": "work", "image": "x", "command": ["sleep", "9"]}
    spec = PoolSpec(worker=WorkerSpec(agent=False), pod={"spec": {"containers": [container], "volumes": KEYS}})
    try:
        (problem,) = await cluster.check(pool(spec))
        assert problem.field == "pod.spec.volumes[0].secret.secretName"
        made = await cluster.create(Order(worker="w-1", pool=pool(spec), epoch=1))  # it was stored by a release that allowed it
        assert isinstance(made, Refused)
        assert "Secret 'one-keys' belongs to the installation" in made.reason
        assert await cluster.pods() == []
    finally:
        await cluster.close()


async def test_doctor_warns_when_workers_run_beside_the_replicas(
    control_plane: Access, namespace: str, stage: KubeStage, cluster: Cluster
) -> None:
    (before,) = [each for each in await cluster.diagnose([]) if each.name == APART]
    assert (before.ok, before.warning) == (True, False)
    labels = {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": "one"}
    body = {"metadata": {"name": "replica-1", "labels": labels}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
    control_plane.ask("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    (found,) = [each for each in await cluster.diagnose([]) if each.name == APART]
    assert (found.ok, found.warning) == (True, True)
    assert "replica-1 is a replica in the workers' namespace" in found.detail
    assert "namespace of their own" in found.advice


async def test_a_replica_refuses_a_namespace_in_which_all_workers_of_the_database_are_missing(
    stage: KubeStage, cluster: Cluster, store: Store
) -> None:
    await check_namespace(store, cluster, "empty")  # a new installation has no workers yet
    store.recovery.saw(0)
    await store.pools.put("p-1", "linux", PoolSpec(worker=WorkerSpec(agent=False)), "api")
    await store.workers.spawn("p-1", ("w-1",), 1, 1)
    await check_namespace(store, cluster, "empty")  # its pod was not created yet, so nothing can be lost
    await store.workers.spawned("w-1", "uid-1")
    with pytest.raises(WrongInstallation, match="the database has 1 workers, and the namespace 'empty' has neither"):
        await check_namespace(store, cluster, "empty")
    await cluster.remember(Remembered("one", 1, 1))
    await check_namespace(store, cluster, "the workers' own")
