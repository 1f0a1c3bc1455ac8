"""The environment of the demo: a control plane, nodes, an installation and its replicas, all in one temporary folder."""

import contextlib
import os
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from kube_fleet import KubeFleet

from holdfast.demo import machine
from holdfast.demo.stage import Stage, end_postgres
from holdfast.install import Values, objects
from holdfast.install.manifests import WORKERS
from holdfast_testcluster.control_plane import ControlPlane
from holdfast_testcluster.kubelet_process import KubeletProcess

from .pools import INSTALL

NAMESPACE = "holdfast"
NODES, REPLICAS = 3, 2
OVER = ("Succeeded", "Failed")  # a pod that has ended is kept for a while, so that its output can be read
# The kinds of objects that the demo installs. The objects of the replicas are left out, because the demo runs replicas as
# processes, to kill them.
INSTALLED = (
    *("CustomResourceDefinition", "PriorityClass", "ServiceAccount"),
    *("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
)


class ClusterStage(Stage):
    """All methods block."""

    def __init__(self) -> None:
        super().__init__()
        tempfile.tempdir = str(self.home)  # a fleet makes its own folder, which must be inside this one
        # A container runs the same "python" as this process, as in the image of Holdfast.
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.plane = ControlPlane(self.home / "control-plane")
        self.kubelet = KubeletProcess(self.plane, self.home / "nodes", nodes=NODES)
        self.fleet: KubeFleet | None = None

    def start_cluster(self) -> None:
        self.plane.start()
        self.kubelet.start()
        self.plane.kubectl("create", "namespace", NAMESPACE)

    def install(self) -> list[str]:
        """Applies what `holdfast manifests` prints, and returns one line per object."""
        values = Values(namespace=NAMESPACE, workers_namespace=NAMESPACE, install=INSTALL, dsn_secret="unused")
        found = [each for each in objects(values) if each["kind"] in INSTALLED]
        printed = self.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(found))
        return printed.splitlines()

    def start_fleet(self) -> KubeFleet:
        """Starts replicas that have exactly the rights of the installation's ServiceAccount."""
        account = self.plane.service_account_kubeconfig(NAMESPACE, INSTALL)
        env = {"HOLDFAST_PRIORITY_CLASS": WORKERS}
        self.fleet = KubeFleet(self.plane, NAMESPACE, self.kubelet, REPLICAS, env=env, install=INSTALL, kubeconfig=account)
        self.fleet.log = self.log
        self.fleet.__enter__()
        return self.fleet

    def stop(self) -> None:
        """Stops everything that was started. What cannot be stopped here is ended when the folder is cleared away."""
        if self.fleet is not None:
            with contextlib.suppress(Exception):
                self.fleet.__exit__()
        if self.kubelet.process is not None:
            self.kubelet.kill()  # killed, because its nodes are not used again
        self.plane.stop()

    def clean_up(self) -> None:
        if self.fleet is not None:
            end_postgres(self.fleet.layout.postgres)
        super().clean_up()

    # Reads

    def kubectl(self, *args: str, input: str | None = None) -> str:
        """Runs kubectl as an admin in the demo's namespace."""
        return self.plane.kubectl(*args, input=input, kubeconfig=self.kubeconfig)

    @cached_property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig_for(self.plane.token, "person", NAMESPACE)

    def workers(self) -> set[str]:
        """Returns the workers that have a living pod or a process on this machine. It does not use the database of Holdfast."""
        running = machine.by_folder(self.kubelet.folder / "pods")
        pods = self.pods()
        names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
        living = {pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") not in OVER}
        return living | {names.get(uid, uid) for uid in running}

    def pods(self) -> list[dict[str, Any]]:
        assert self.fleet is not None
        return self.fleet.pods()

    def on(self, node: str) -> set[str]:
        """Returns the names of the pods on this node that have not ended."""
        return {
            pod["metadata"]["name"]
            for pod in self.pods()
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in OVER
        }

    def process_of(self, worker: str) -> int | None:
        """Returns the PID of the first process in the worker's own container."""
        assert self.fleet is not None
        pod = self.fleet.pod(worker)
        return None if pod is None else self.kubelet.pid(pod["metadata"]["uid"], "work")

    def free(self, pool: str) -> int:
        """Returns the number of free workers from the status of the WorkerPool."""
        path = f"/apis/holdfast.dev/v1alpha1/namespaces/{NAMESPACE}/workerpools/{pool}"
        return int(self.plane.ask("GET", path).get("status", {}).get("free", 0))
