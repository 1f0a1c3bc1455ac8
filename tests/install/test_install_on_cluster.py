"""The installation on a real API server: every object is accepted, upgrades keep data, and the rights are exactly sufficient."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.install import Secrets, Values, objects
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
from holdfast_testcluster.access import MERGE, Access
from holdfast_testcluster.control_plane import ControlPlane
from install.helm import CHART, helm, text, want_helm
from waiting import eventually

Json = dict[str, Any]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workerpools.holdfast.dev"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
# The names of the CRDs that the Prometheus operator installs.
MONITORING = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}


def apply(access: Access, found: list[Json] | str) -> str:
    text = found if isinstance(found, str) else yaml.safe_dump_all(found)
    return access.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)


def keys(access: Access, namespace: str, name: str = "holdfast-keys") -> Json:
    return dict(access.ask("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"])


def pods_of(access: Access, namespace: str, label: str) -> int:
    answer = access.ask("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/name%3D{label}")
    return len(answer["items"])


@pytest.fixture
def operator(control_plane: Access) -> None:
    """Installs CRDs with the names of the Prometheus operator's CRDs, which accept any content."""
    for plural, kind in MONITORING.items():
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }
        apply(control_plane, [crd])
    for plural in MONITORING:
        path = f"/apis/monitoring.coreos.com/v1/{plural}"
        eventually(lambda path=path: control_plane.request("GET", path).status == 200, 20, f"{path} is served")


# Objects


@pytest.mark.usefixtures("operator")
def test_every_object_is_accepted_and_its_pods_may_run_where_pods_are_restricted(control_plane: Access, namespace: str) -> None:
    control_plane.kubectl("label", "namespace", namespace, RESTRICTED)
    values = Values(namespace=namespace, try_postgres="postgres:17", metrics=True, secrets=Secrets.fresh())
    shown = apply(control_plane, objects(values))
    assert shown.count("serverside-applied") == len(objects(values))
    assert "Warning" not in shown
    eventually(lambda: pods_of(control_plane, namespace, "holdfast") == 2, 20, "the replicas' pods are made")
    eventually(lambda: pods_of(control_plane, namespace, "holdfast-postgres") == 1, 20, "Postgres' pod is made")


@pytest.mark.usefixtures("operator")
def test_what_the_chart_renders_can_be_applied(control_plane: Access, namespace: str) -> None:
    want_helm()
    control_plane.kubectl("label", "namespace", namespace, RESTRICTED)
    shown = apply(control_plane, text("holdfast", namespace, "postgres.throwAway.enabled=true", "metrics.enabled=true"))
    assert shown.count("serverside-applied") > 15
    eventually(lambda: pods_of(control_plane, namespace, "holdfast") == 2, 20, "the replicas' pods are made")


def test_applied_again_the_keys_are_refused_and_stay(control_plane: Access, namespace: str) -> None:
    def printed() -> list[Json]:
        return objects(Values(namespace=namespace, try_postgres="x", secrets=Secrets.fresh()))

    apply(control_plane, printed())
    before = keys(control_plane, namespace), keys(control_plane, namespace, "holdfast-postgres")
    shown = control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(printed()), check=False)
    assert "field is immutable" in shown
    assert (keys(control_plane, namespace), keys(control_plane, namespace, "holdfast-postgres")) == before


def test_helm_installs_upgrades_and_uninstalls_and_the_keys_and_pools_stay(
    own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    want_helm()
    access = own_control_plane
    env = {"KUBECONFIG": str(access.kubeconfig), "HOME": str(access.folder)}

    def run(verb: str, *args: str) -> None:
        done = helm(verb, "holdfast", *args, "--namespace", "fleet", env=env)
        assert done.returncode == 0, done.stderr

    def both_keys() -> tuple[Json, Json]:
        return keys(access, "fleet"), keys(access, "fleet", "holdfast-postgres")

    def knows_silence() -> bool:
        return "silence" in _spec_of(access.ask("GET", CRD))["properties"]

    to_try = ("--set", "postgres.throwAway.enabled=true")
    run("install", str(_older_chart(tmp_path)), "--create-namespace", *to_try)
    assert not knows_silence()
    before = both_keys()
    access.kubectl("apply", "-n", "fleet", "-f", "-", input=json.dumps(_pool_object()))
    run("upgrade", str(CHART), *to_try, "--set", "replicas=3")
    assert both_keys() == before
    assert knows_silence(), "the CRD is upgraded with the chart"
    run("uninstall")
    assert keys(access, "fleet") == before[0]
    assert access.kubectl("get", "-n", "fleet", "wp", "-o", "name").split() == ["workerpool.holdfast.dev/linux"]
    run("install", str(CHART), *to_try)
    assert keys(access, "fleet") == before[0], "an installation that comes back has its keys"


def _pool_object() -> Json:
    return {"apiVersion": "holdfast.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": "linux"}}


def _spec_of(crd: Json) -> Json:
    schema: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def _older_chart(folder: Path) -> Path:
    """Returns the chart of an older version that did not have a field yet."""
    older = Path(shutil.copytree(CHART, folder / "older"))
    crd = yaml.safe_load((older / "files" / "crd.yaml").read_text())
    del _spec_of(crd)["properties"]["silence"]
    (older / "files" / "crd.yaml").write_text(yaml.safe_dump(crd))
    return older


# Running


def fitted(deployment: Json) -> Json:
    """Adapts a Deployment to the test kubelet, whose containers share this machine's root and network, and have no DNS."""
    text = json.dumps(deployment).replace("/etc/holdfast", "/run/keys").replace("/var/lib/holdfast", "/run/data")
    found: Json = json.loads(text.replace("--host=0.0.0.0", "--host=$(HOLDFAST_ADVERTISE)"))
    (container,) = found["spec"]["template"]["spec"]["containers"]
    # because the socket of Postgres is in /tmp
    container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "tmp"]
    container["env"] = [each for each in container["env"] if each["name"] != "HOLDFAST_AGENT_URL"]
    return found


def test_the_replicas_come_up_with_their_own_rights_and_serve_a_declared_pool(
    control_plane: Access, namespace: str, make_nodes: Callable[..., Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = Values(namespace=namespace, install="i-test", dsn_secret="db", secrets=Secrets.fresh())
    programs = {values.image: [sys.executable, "-m", "holdfast"]}
    # so that containers run this `python`, as in the image
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    make_nodes(control_plane, namespace, nodes=2, images=programs, options=("--service-env",))
    secret = {"metadata": {"name": "db"}, "stringData": {"dsn": dsn}}
    control_plane.ask("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    apply(control_plane, [fitted(each) if each["kind"] == "Deployment" else each for each in objects(values)])
    status = f"/apis/apps/v1/namespaces/{namespace}/deployments/i-test"
    eventually(lambda: control_plane.ask("GET", status)["status"].get("readyReplicas") == 2, 60, "both replicas are ready")

    container = {"name": "work", "image": "any:test"}
    pool = _pool_object() | {"spec": {"warm": 1, "pod": {"spec": {"containers": [container]}}}}
    pool["metadata"] = {"name": "linux", "labels": {"holdfast.dev/install": "i-test"}}
    pools = f"/apis/holdfast.dev/v1alpha1/namespaces/{namespace}/workerpools"
    control_plane.ask("POST", pools, pool)
    eventually(lambda: control_plane.ask("GET", f"{pools}/linux").get("status", {}).get("free") == 1, 60, "a worker is free")

    pods = control_plane.ask("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/name%3Dholdfast")
    url = f"http://{pods['items'][0]['status']['podIP']}:7070"
    assert values.secrets is not None
    shown = subprocess.run(
        [sys.executable, "-m", "holdfast", "--url", url, "run", "--pool", "linux", "--", "sh", "-c", "echo hello; exit 7"],
        env={**os.environ, "HOLDFAST_TOKEN": values.secrets.token},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (shown.returncode, shown.stdout) == (7, "hello\n"), shown.stderr
    control_plane.ask("DELETE", f"{pools}/linux")
    eventually(lambda: control_plane.request("GET", f"{pools}/linux").status == 404, 30, "the pool's object is let go")
    workers = f"/api/v1/namespaces/{namespace}/pods?labelSelector=holdfast.dev/install%3Di-test"

    def ended() -> bool:  # an ended pod stays for a while, so that its output can be read
        found = control_plane.ask("GET", workers)["items"]
        return {each["status"]["phase"] for each in found} <= {"Succeeded", "Failed"}

    eventually(ended, 60, "no worker of it runs")
    for each in control_plane.ask("GET", workers)["items"]:  # no replica will be left to record their ends
        path = f"/api/v1/namespaces/{namespace}/pods/{each['metadata']['name']}"
        control_plane.request("PATCH", path, {"metadata": {"finalizers": None}}, kind=MERGE)


# Rights


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


@pytest.fixture
def replica(control_plane: Access, namespace: str) -> Callable[[], KubernetesCluster]:
    """Returns the cluster adapter as a replica has it: with the installation's ServiceAccount, in its namespace."""
    apply(control_plane, [each for each in objects(Values(namespace=namespace, dsn_secret="db")) if each["kind"] != "Deployment"])
    path = "/apis/holdfast.dev/v1alpha1/workerpools"
    eventually(lambda: control_plane.request("GET", path).status == 200, 20, "the CRD is served")
    config = control_plane.service_account_kubeconfig(namespace, "holdfast")
    Recorded.used, Recorded.forbidden = set(), []
    api = find_access(config)
    return lambda: KubernetesCluster(Recorded(api), namespace, Setup("holdfast", "holdfast:test", ("http://x",)), keep_output=0.0)


SPEC = PoolSpec(
    worker=WorkerSpec(agent=False),
    pod={"spec": {"containers": [{"name": "work", "image": "x", "command": ["sleep", "9"]}]}},
    headroom=HeadroomSpec(mode="constant", slots=1),
    network=NetworkSpec(egress=[{}]),
)
POOL = Pool(id="p-1", name="linux", spec=SPEC, revision=revision_of(SPEC), state="live", source="api", created_at=0.0)


async def test_the_backend_uses_every_right_that_it_has_and_needs_no_other(
    control_plane: Access, namespace: str, replica: Callable[[], KubernetesCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "OLD", -1.0)  # so that anchors of deleted pools are swept at once
    control_plane.ask("POST", f"/apis/holdfast.dev/v1alpha1/namespaces/{namespace}/workerpools", _pool_object())
    token = control_plane.service_account_token(namespace, "default", audiences=("holdfast",))

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
    everybodys = {("authorization.k8s.io", "selfsubjectaccessreviews", "create")}
    assert Recorded.used - everybodys == granted


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
    control_plane: Access, namespace: str, replica: Callable[[], KubernetesCluster]
) -> None:
    token = control_plane.service_account_token(namespace, "holdfast")
    body = {"spec": {"namespace": namespace}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    shown = control_plane.request("POST", path, body, token=token).body["status"]["resourceRules"]
    bare = control_plane.service_account_token(namespace, "default")
    everybodys = control_plane.request("POST", path, body, token=bare).body["status"]["resourceRules"]

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
    assert flat(shown) - flat(everybodys) == flat(table)
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    assert control_plane.request("GET", secrets, token=token).status == 403
    assert control_plane.request("GET", "/api/v1/namespaces/default/pods", token=token).status == 403


def test_the_crd_here_is_the_one_that_is_shipped(control_plane: Access, replica: Callable[[], KubernetesCluster]) -> None:
    """So tests with pools as objects use the CRD that users get."""
    assert _spec_of(control_plane.ask("GET", CRD)) == _spec_of(custom_resource())
