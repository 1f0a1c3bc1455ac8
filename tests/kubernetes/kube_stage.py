"""A stage for pods of a real API server, which the test kubelet runs."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.cluster import FOREVER
from holdfast.kubernetes import KubernetesCluster
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.template import Setup
from holdfast.model.pod import Pod
from holdfast.model.pool import Pool, PoolSpec, WorkerSpec, revision_of
from holdfast.ports.cluster import Order
from holdfast_testcluster.access import Access
from holdfast_testcluster.kubelet_process import KubeletProcess

IMAGE = "work:test"  # any name works for an image whose pod has a command, because containers run this machine's programs
AGENT_IMAGE = "holdfast:test"
# A container runs the same "python" as this process, as in the image of Holdfast.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def pool(spec: PoolSpec, name: str = "linux", id_: str = "p-1") -> Pool:
    return Pool(id=id_, name=name, spec=spec, revision=revision_of(spec), state="live", source="api", created_at=0.0)


def template(argv: list[str] | None, **more: object) -> dict[str, object]:
    container: dict[str, object] = {"name": "work", "image": IMAGE, **more}
    if argv is not None:
        container["command"] = argv
    return {"spec": {"containers": [container]}}


class FollowingCluster(KubernetesCluster):
    """A cluster that answers from its watches, as in a replica. Reads wait until the watches of pods and nodes work."""

    async def pods(self) -> list[Pod]:
        await self.follows()
        return await super().pods()

    async def read_cached(self, names: Sequence[str]) -> dict[str, Pod]:
        await self.follows()
        return await super().read_cached(names)

    async def follows(self) -> None:
        self.watch()
        async with asyncio.timeout(60):
            while not (self._informer.fresh and self._nodes._informer.fresh):
                await asyncio.sleep(0.01)


class KubeStage:
    kind = KubernetesCluster

    def __init__(self, access: Access, namespace: str, kubelet: KubeletProcess, servers: tuple[str, ...] = ()) -> None:
        self.access, self.namespace, self.kubelet = access, namespace, kubelet
        self.kubeconfig = access.kubeconfig
        self._servers = servers or ("http://127.0.0.1:9",)  # no server listens there, so agents wait

    def open(self, install: str = "one") -> KubernetesCluster:
        setup = Setup(install, AGENT_IMAGE, self._servers)
        return self.kind(Api(find_access(self.kubeconfig)), self.namespace, setup, keep_output=0.0)

    def order(self, worker: str, argv: list[str] = FOREVER) -> Order:
        spec = PoolSpec(worker=WorkerSpec(agent=False), pod=template(argv) if argv else {})
        return Order(worker=worker, pool=pool(spec), epoch=3)

    def order_with_agent(self, worker: str) -> Order:
        return Order(worker=worker, pool=pool(PoolSpec(pod=template(FOREVER))), epoch=3)

    def token(self, pod: Pod) -> str:
        """Returns a token that is bound to this pod, as its kubelet requests it."""
        account = self.access.ask("GET", f"/api/v1/namespaces/{self.namespace}/pods/{pod.name}")["spec"]["serviceAccountName"]
        return self.bound_token(account, pod.name, pod.uid)

    def bound_token(self, account: str, name: str, uid: str, audience: str = "holdfast") -> str:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [audience],
                "expirationSeconds": 600,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid},
            },
        }
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        token: str = self.access.ask("POST", path, body)["status"]["token"]
        return token

    def put_output(self, claim: str, data: bytes, *, truncated: bool = False) -> None:
        raise NotImplementedError("an output is its container's log here")


class FollowingStage(KubeStage):
    kind = FollowingCluster

    @classmethod
    def through(cls, kubeconfig: Path, stage: KubeStage) -> "FollowingStage":
        """Returns the same stage, reached through another kubeconfig."""
        made = cls(stage.access, stage.namespace, stage.kubelet)
        made.kubeconfig = kubeconfig
        return made

    def open(self, install: str = "one") -> FollowingCluster:
        opened = super().open(install)
        assert isinstance(opened, FollowingCluster)
        opened.watch()
        return opened
