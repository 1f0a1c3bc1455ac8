"""A pod whose end is recorded is kept for a while for its output, and blocks nothing."""

from kube_stage import AGENT_IMAGE, KubeStage

from cluster_pods import Pods
from contracts.cluster import reaches
from holdfast.kubernetes import KubernetesCluster, names
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.template import Setup
from holdfast.model.pod import Pod
from holdfast_testcluster.access import Access


async def test_a_pod_that_is_kept_for_its_output_holds_up_no_drain(
    control_plane: Access, namespace: str, stage: KubeStage
) -> None:
    pods = Pods(control_plane, namespace)
    setup = Setup("one", AGENT_IMAGE, ("http://127.0.0.1:9",))
    cluster = KubernetesCluster(Api(find_access(control_plane.kubeconfig)), namespace, setup)
    try:
        made = await cluster.create(stage.order("w-1", ["echo", "hello"]))
        assert isinstance(made, Pod)
        await reaches(cluster, "w-1", "ended")
        before = pods.get("w-1")
        assert before is not None
        assert names.FINALIZER in before["metadata"]["finalizers"], "its end is not recorded yet"
        for _ in range(2):
            await cluster.forget("w-1", made.uid)
            kept = pods.get("w-1")
            assert kept is not None
            assert "finalizers" not in kept["metadata"]
        assert (await cluster.output("c-1", "w-1", 0, 99)).data == b"hello\n"
        pods.delete("w-1")
        pods.until_gone("w-1", within=20)
    finally:
        await cluster.close()
