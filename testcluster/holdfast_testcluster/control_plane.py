"""A Kubernetes control plane of real parts on loopback: etcd, API server, controller manager, scheduler.

    with ControlPlane(folder) as plane:       # calls start() and stop(); ready in a few seconds, logs are in the folder
        plane.kubectl("get", "namespaces")    # the kubectl of the same version, as admin
        plane.request("GET", "/api/v1/pods")  # returns any status; ask() fails unless the request succeeds
        plane.kubeconfig                      # for other tools; service_account_kubeconfig(ns, name) has fewer rights
        plane.stop_apiserver()                # kills it; start_apiserver() starts it again on the same port
        plane.pause_apiserver()               # connections are accepted and not answered; resume_apiserver() ends that
        plane.expire_watches()                # from now on every older resourceVersion gets 410

The nodes come from `kubelet.py`. Tests share one control plane through the fixture `control_plane`, which returns an `Access`. A
test that stops parts uses `own_control_plane`. All processes end with the process that started them, even if that is killed.
"""

import contextlib
import http.client
import json
import secrets
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast_testcluster import binaries, keys
from holdfast_testcluster.access import Access
from holdfast_testcluster.processes import end, free_ports, spawn, tail

READY_WITHIN = 60.0  # seconds; it takes about 6 on two quiet cores
LOOK_EVERY = 0.05
# The controllers that pods, their owners and their budgets need. The node lifecycle controller is left out, so that no node is
# treated as lost because of missing heartbeats.
CONTROLLERS = (
    *("serviceaccount-controller", "serviceaccount-token-controller", "root-ca-certificate-publisher-controller"),
    *("garbage-collector-controller", "namespace-controller", "pod-garbage-collector-controller", "resourcequota-controller"),
    *("disruption-controller", "taint-eviction-controller", "clusterrole-aggregation-controller"),
    *("deployment-controller", "replicaset-controller", "statefulset-controller", "job-controller"),
    *("endpoints-controller", "endpointslice-controller"),
)
# With these plugins a namespace chooses the nodes of its pods. So each test has its own nodes.
ADMISSION = ("PodNodeSelector", "PodTolerationRestriction")
# The scheduler's default limit is 50 requests per second. A benchmark with a thousand pods would measure this limit.
SCHEDULER = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: "%s", qps: 2000, burst: 4000}
"""


class ControlPlane(Access):
    """See the top of this file. `users` adds tokens, as a dict of token -> (name, groups)."""

    def __init__(self, folder: Path, users: Mapping[str, tuple[str, tuple[str, ...]]] | None = None) -> None:
        super().__init__(folder)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._users = dict(users or {})

    # Start and stop

    def __enter__(self) -> "ControlPlane":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when pods can be created and are scheduled."""
        lacking = binaries.missing()
        assert lacking is None, lacking
        self._prepare()
        try:
            self._spawn("etcd", self._etcd())
            self.start_apiserver()
            self._spawn("kube-controller-manager", self._controller_manager())
            self._spawn("kube-scheduler", self._scheduler())
            self._until("kube-scheduler", lambda: _healthy(self._ports["scheduler"], "/readyz"))
            default = "/api/v1/namespaces/default/serviceaccounts/default"
            self._until("kube-controller-manager", lambda: self.request("GET", default).status == 200)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kills everything, because its data are not read again."""
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self.kill(name)

    def kill(self, name: str) -> None:
        """Kills one part, for example "kube-scheduler". `revive` starts it again."""
        if process := self.processes.pop(name, None):
            end(process, grace=0)

    def revive(self, name: str) -> None:
        commands: dict[str, Callable[[], list[str]]] = {
            "etcd": self._etcd,
            "kube-apiserver": self._apiserver,
            "kube-controller-manager": self._controller_manager,
            "kube-scheduler": self._scheduler,
        }
        self._spawn(name, commands[name]())

    # The API server

    def start_apiserver(self) -> None:
        """Starts it on its old port. Returns when it is ready."""
        self._spawn("kube-apiserver", self._apiserver())
        self._until("kube-apiserver", lambda: _healthy(self._ports["apiserver"], "/readyz"))

    def stop_apiserver(self, grace: float = 0) -> None:
        """Kills it, or sends SIGTERM first if there is a `grace`. It then closes its watches one by one, which is slow."""
        if process := self.processes.pop("kube-apiserver", None):
            end(process, grace)

    def restart_apiserver(self) -> None:
        self.stop_apiserver()
        self.start_apiserver()

    def pause_apiserver(self) -> None:
        self.processes["kube-apiserver"].send_signal(signal.SIGSTOP)

    def resume_apiserver(self) -> None:
        self.processes["kube-apiserver"].send_signal(signal.SIGCONT)

    # etcd

    def compact(self) -> int:
        """Compacts the history in etcd and returns the revision. The API server still has a cache: see `expire_watches`."""
        revision = int(self._etcd_call("/v3/kv/range", {"key": "AA=="})["header"]["revision"])
        self._etcd_call("/v3/kv/compaction", {"revision": revision, "physical": True})
        return revision

    def expire_watches(self) -> int:
        """Makes watches and further pages from any older resourceVersion fail with 410. It restarts the API server for this."""
        revision = self.compact()
        self.restart_apiserver()
        return revision

    def _etcd_call(self, path: str, body: dict[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports["etcd"], timeout=10)
        try:
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            raw = response.read()
            compacted_already = b"has been compacted" in raw
            assert response.status == 200 or compacted_already, f"etcd {path}: {response.status} {raw!r}"
            return json.loads(raw)
        finally:
            connection.close()

    # Commands

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        names = ("etcd", "peer", "apiserver", "manager", "scheduler")
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        keys.make_authority(self.folder)
        keys.make_server(self.folder, "apiserver")
        keys.make_signing_key(self.folder, "service-accounts")
        admin = secrets.token_hex(16)
        lines = [f'{token},{name},{name},"{",".join(groups)}"\n' for token, (name, groups) in self._users.items()]
        self._write("tokens.csv", "".join([f'{admin},admin,admin,"system:masters"\n', *lines]))
        self._write("admin.token", admin)
        self._write("scheduler.yaml", SCHEDULER % self.kubeconfig)
        self._write("url", f"https://127.0.0.1:{self._ports['apiserver']}")
        self.kubeconfig_for(admin, "admin")

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o600)

    def _etcd(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        return [
            *("--data-dir", str(self.folder / "etcd"), "--log-level=warn"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
            "--unsafe-no-fsync",  # the data of a test cluster need not survive a power cut
        ]

    def _apiserver(self) -> list[str]:
        at = str(self.folder)
        return [
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            *("--bind-address=127.0.0.1", f"--secure-port={self._ports['apiserver']}", "--advertise-address=127.0.0.1"),
            "--endpoint-reconciler-type=none",  # because a loopback address is not a valid endpoint
            *(f"--tls-cert-file={at}/apiserver.crt", f"--tls-private-key-file={at}/apiserver.key"),
            *(f"--token-auth-file={at}/tokens.csv", "--authorization-mode=RBAC"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={at}/service-accounts.key",
            f"--service-account-key-file={at}/service-accounts.pub",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--enable-admission-plugins={','.join(ADMISSION)}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _controller_manager(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(CONTROLLERS)}",
            *("--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={self._ports['manager']}"),
            f"--service-account-private-key-file={self.folder}/service-accounts.key",
            f"--root-ca-file={self.ca}",
            *("--kube-api-qps=500", "--kube-api-burst=1000"),
        ]

    def _scheduler(self) -> list[str]:
        port = self._ports["scheduler"]
        return [f"--config={self.folder}/scheduler.yaml", "--bind-address=127.0.0.1", f"--secure-port={port}"]

    def _spawn(self, name: str, args: list[str]) -> None:
        assert name not in self.processes, f"{name} runs already"
        self.processes[name] = spawn([str(binaries.path(name)), *args], self.folder / f"{name}.log", cwd=self.folder)

    def _until(self, name: str, check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if check():
                    return
            log = self.folder / f"{name}.log"
            for each, process in self.processes.items():
                assert process.poll() is None, f"{each} ended with {process.returncode}: {tail(self.folder / f'{each}.log')}"
            assert time.monotonic() < deadline, f"{name} was not ready within {READY_WITHIN} s: {tail(log)}"
            time.sleep(LOOK_EVERY)


def _healthy(port: int, path: str) -> bool:
    """Returns whether a part is healthy. Certificates are not checked, because two of the three parts sign their own."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=ssl._create_unverified_context())
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    finally:
        connection.close()
