"""A whole fleet on a real API server: replicas are processes, and workers are pods that the test kubelet runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet import Fleet
from holdfast.api.auth import hash_token
from holdfast.kubernetes import names
from holdfast.kubernetes.rights import CLUSTER, NAMESPACED, rules
from holdfast.wiring import Settings, connect
from holdfast_testcluster.access import Access
from holdfast_testcluster.kubelet_process import KubeletProcess

IMAGE, AGENT_IMAGE = "work:test", "holdfast:test"


def job(argv: list[str] | None = None, **spec: Any) -> dict[str, Any]:
    """Returns a pool of jobs. Without `argv`, its image must have a shell."""
    container: dict[str, Any] = {"name": "work", "image": IMAGE}
    if argv is not None:
        container["command"] = argv
    return {"mode": "job", "warm": 1, "max": 6, "pod": {"spec": {"containers": [container]}}, **spec}


def account(access: Access, namespace: str, install: str) -> Path:
    """Creates a ServiceAccount with exactly the rights of an installation, and returns its kubeconfig."""
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", f"{namespace}-{install}"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    access.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    within = f"{rbac}/namespaces/{namespace}"
    for path, kind, rights in ((within, "Role", NAMESPACED), (rbac, "ClusterRole", CLUSTER)):
        access.ask("POST", f"{path}/{kind.lower()}s", {"metadata": {"name": name}, "rules": rules(rights, install)})
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        access.ask("POST", f"{path}/{kind.lower()}bindings", {"metadata": {"name": name}, "subjects": [subject], "roleRef": ref})
    return access.service_account_kubeconfig(namespace, name)


class KubeFleet(Fleet):
    def __init__(
        self,
        access: Access,
        namespace: str,
        kubelet: KubeletProcess,
        replicas: int = 2,
        pools: dict[str, dict[str, Any]] | None = None,
        env: dict[str, str] | None = None,
        install: str = "one",
        kubeconfig: Path | None = None,
    ) -> None:
        super().__init__(replicas, pools, env)
        self.access, self.namespace, self.kubelet, self.install = access, namespace, kubelet, install
        # Every fleet runs with exactly the documented rights, so that a test fails if a right is missing.
        self.kubeconfig = kubeconfig or account(access, namespace, install)

    def arguments(self, n: int) -> list[str]:
        servers = ",".join(f"http://127.0.0.1:{port}" for port in self.ports)
        where = ["--namespace", self.namespace, "--install", self.install, "--kubeconfig", str(self.kubeconfig)]
        return [*super().arguments(n), *where, "--agent-image", AGENT_IMAGE, "--agent-url", servers]

    async def _first_token(self) -> None:
        store = await connect(Settings(dsn=self.dsn, data_dir=self.layout.root), self.install)
        await store.tokens.make("t-test", hash_token(self.token), "test", "admin", None, None)
        await store.close()

    def _end_workers(self) -> None:
        """Removes finalizers and deletes the pods, because no replica is left to record their ends. The kubelet kills them."""
        for pod in self.pods():
            path = f"{self.pods_path}/{pod['metadata']['name']}"
            self.access.request("PATCH", path, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")
            self.access.request("DELETE", path, {"gracePeriodSeconds": 0})

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def pods(self) -> list[dict[str, Any]]:
        """Returns this installation's pods from the API server."""
        return list(self.access.ask("GET", f"{self.pods_path}?labelSelector={names.INSTALL}%3D{self.install}")["items"])

    def pod(self, name: str) -> dict[str, Any] | None:
        answer = self.access.request("GET", f"{self.pods_path}/{name}")
        return dict(answer.body) if answer.status == 200 else None

    def last_log(self) -> str:
        return self.log.read_text()[-4000:]


Made = Callable[..., KubeFleet]
