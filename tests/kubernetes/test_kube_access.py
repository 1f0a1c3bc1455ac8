"""Credentials for the API server: exec plugins are called as kubectl calls them, and one that fails never ends a watch."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast.kubernetes import informer
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api, ApiRefused, Status
from holdfast.kubernetes.informer import Informer
from holdfast.kubernetes.nodes import NodeObject
from holdfast.ports.cluster import ClusterUnavailable, NoCluster
from holdfast_testcluster.access import Access
from waiting import sooner

SECRET = "a-token-that-must-stay-secret"
V1 = "client.authentication.k8s.io/v1"
Config = Callable[..., Path]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Config:
    """`kubeconfig(program)` makes a user whose token is printed by a Python program."""

    def write(program: str, version: str = V1, access: Access | None = None) -> Path:
        plugin = tmp_path / "plugin"
        plugin.write_text(f"#!{sys.executable}\n{program}")
        plugin.chmod(0o700)
        env = [{"name": "SECRET", "value": SECRET}, {"name": "HERE", "value": str(tmp_path)}]
        ways = {"apiVersion": version, "command": str(plugin), "args": [SECRET], "env": env, "interactiveMode": "Never"}
        cluster = {"server": access.url, "certificate-authority": str(access.ca)} if access else {"server": "https://127.0.0.1:9"}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"exec": ways}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
            "current-context": "x",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


PRINTS = """
import json, os
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps({"apiVersion": asked["apiVersion"], "kind": "ExecCredential",
                  "status": {"token": f"{os.environ['SECRET']} {asked['kind']} {asked['spec']['interactive']}"}}))
"""


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_a_plugin_of_every_version_is_asked(kubeconfig: Config, version: str) -> None:
    access = find_access(kubeconfig(PRINTS, f"client.authentication.k8s.io/{version}"))
    assert asyncio.run(access.headers()) == {"Authorization": f"Bearer {SECRET} ExecCredential False"}


def test_an_unknown_version_is_refused_at_the_start(kubeconfig: Config) -> None:
    with pytest.raises(NoCluster, match=r"client\.authentication\.k8s\.io/v7"):
        find_access(kubeconfig(PRINTS, "client.authentication.k8s.io/v7"))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import os, sys; print(os.environ['SECRET']); sys.exit('no: ' + os.environ['SECRET'])", "ended with exit code 1"),
        ("import os; print(os.environ['SECRET'])", "no credential"),
        ("import os, json; print(json.dumps({'status': {'said': os.environ['SECRET']}}))", "no credential"),
        ("print('[]')", "no credential"),
        (None, "cannot be started: FileNotFoundError"),
    ],
)
async def test_a_plugin_that_fails_makes_the_cluster_unavailable_and_its_secrets_stay_with_it(
    kubeconfig: Config, program: str | None, expected: str
) -> None:
    path = kubeconfig(program or "")
    if program is None:
        path.with_name("plugin").unlink()
    api = Api(find_access(path))

    for call in (lambda: api.get("/version"), lambda: _first_line(api)):
        with pytest.raises(ClusterUnavailable, match=expected) as caught:
            await call()
        assert "plugin" in str(caught.value)
        assert SECRET not in str(caught.value)
    await api.close()


async def _first_line(api: Api) -> None:
    async with api.stream("/api/v1/nodes", {"watch": "1"}, 5.0):
        pass


async def test_a_plugin_that_hangs_is_ended(kubeconfig: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kubeconfig("import os, time\nopen(f\"{os.environ['HERE']}/pid\", 'w').write(str(os.getpid()))\ntime.sleep(600)")
    access = find_access(path)
    pid = path.with_name("pid")

    asked = asyncio.create_task(access.headers())
    assert await sooner(lambda: pid.exists() and pid.read_text()), "it was started"
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    monkeypatch.setattr("holdfast.kubernetes.access.PLUGIN_SECONDS", 0.0)
    with pytest.raises(ClusterUnavailable, match="did not answer within"):
        await access.headers()


# Watching goes on


class Stubborn:
    """An API server whose first answers are errors of any kind."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.lists = list(failures), 0

    async def get(self, path: str, params: dict[str, str] | None = None, timeout: float = 0) -> bytes:
        if self.failures:
            raise self.failures.pop(0)
        self.lists += 1
        return json.dumps(
            {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "n", "resourceVersion": "7"}}]}
        ).encode()

    def stream(self, *_: Any) -> Any:
        raise ClusterUnavailable("not today")


FAILURES = [
    ClusterUnavailable("away"),
    ApiRefused(Status(403, "Forbidden")),
    msgspec.ValidationError("odd"),
    RuntimeError("a defect"),
    ValueError("another"),
]


async def test_no_failure_ends_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "PAUSES", (0.0, 0.0))

    changed: set[str] = set()
    server = Stubborn(*FAILURES)
    watching = asyncio.create_task(Informer(server, "/api/v1/nodes", None, NodeObject, changed.update).run())
    assert await sooner(lambda: server.lists or watching.done())
    assert not watching.done(), "it goes on"
    assert changed == {"n"}
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_watch_begins_once_its_plugin_works(
    control_plane: Access, kubeconfig: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs on a real API server. The plugin fails until a person has logged in."""
    monkeypatch.setattr(informer, "PAUSES", (0.01, 0.05))
    credential = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": control_plane.token}}
    path = kubeconfig("import os; print(open(f\"{os.environ['HERE']}/login\").read())", access=control_plane)

    api = Api(find_access(path))
    nodes = Informer(api, "/api/v1/nodes", None, NodeObject, lambda _: None)
    watching = asyncio.create_task(nodes.run())
    with pytest.raises(ClusterUnavailable, match="ended with exit code 1"):
        await nodes.list()
    path.with_name("login").write_text(json.dumps(credential))
    began = time.monotonic()
    assert await sooner(lambda: nodes.fresh or watching.done(), 20)
    assert nodes.fresh, f"not after {time.monotonic() - began:.0f} s"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await api.close()
