"""The installation on a real API server: every object is accepted, upgrades keep data, and replicas serve a declared pool."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.install import Secrets, Values, objects
from holdfast_testcluster.access import MERGE, Access
from holdfast_testcluster.control_plane import ControlPlane
from install.applied import CRD, apply, pool_object, spec_of
from install.helm import CHART, helm, text, want_helm
from waiting import eventually

Json = dict[str, Any]
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
BASELINE = {"pod-security.kubernetes.io/enforce": "baseline"}
# The names of the CRDs that the Prometheus operator installs.
MONITORING = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}


def keys(access: Access, namespace: str, name: str = "holdfast-keys") -> Json:
    return dict(access.ask("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"])


def pods_of(access: Access, namespace: str, label: str) -> int:
    answer = access.ask("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/name%3D{label}")
    return len(answer["items"])


@pytest.fixture
def workers(control_plane: Access, namespace: str) -> Iterator[str]:
    """Returns the namespace that an installation creates for its workers, and deletes it after the test."""
    yield f"{namespace}-workers"
    control_plane.request("DELETE", f"/api/v1/namespaces/{namespace}-workers")


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
def test_every_object_is_accepted_and_its_pods_may_run_where_pods_are_restricted(
    control_plane: Access, namespace: str, workers: str
) -> None:
    control_plane.kubectl("label", "namespace", namespace, RESTRICTED)
    values = Values(namespace=namespace, try_postgres="postgres:17", metrics=True, secrets=Secrets.fresh())
    assert values.workers == workers
    shown = apply(control_plane, objects(values))
    assert shown.count("serverside-applied") == len(objects(values))
    assert control_plane.ask("GET", f"/api/v1/namespaces/{workers}")["metadata"]["labels"].items() >= BASELINE.items()
    assert "Warning" not in shown
    eventually(lambda: pods_of(control_plane, namespace, "holdfast") == 2, 20, "the replicas' pods are made")
    eventually(lambda: pods_of(control_plane, namespace, "holdfast-postgres") == 1, 20, "Postgres' pod is made")


@pytest.mark.usefixtures("operator", "workers")
def test_what_the_chart_renders_can_be_applied(control_plane: Access, namespace: str) -> None:
    want_helm()
    control_plane.kubectl("label", "namespace", namespace, RESTRICTED)
    shown = apply(control_plane, text("holdfast", namespace, "postgres.throwAway.enabled=true", "metrics.enabled=true"))
    assert shown.count("serverside-applied") > 15
    eventually(lambda: pods_of(control_plane, namespace, "holdfast") == 2, 20, "the replicas' pods are made")


@pytest.mark.usefixtures("workers")
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
        return "silence" in spec_of(access.ask("GET", CRD))["properties"]

    to_try = ("--set", "postgres.throwAway.enabled=true")
    run("install", str(_older_chart(tmp_path)), "--create-namespace", *to_try)
    assert not knows_silence()
    before = both_keys()
    access.kubectl("apply", "-n", "fleet-workers", "-f", "-", input=json.dumps(pool_object()))
    moved = helm("upgrade", "holdfast", str(CHART), *to_try, "--set", "workers.namespace=fleet", "--namespace", "fleet", env=env)
    assert moved.returncode != 0
    assert 'the workers of this installation run in "fleet-workers"' in moved.stderr, "they would look deleted"
    run("upgrade", str(CHART), *to_try, "--set", "replicas=3")
    assert both_keys() == before
    assert knows_silence(), "the CRD is upgraded with the chart"
    run("uninstall")
    assert keys(access, "fleet") == before[0]
    assert access.kubectl("get", "-n", "fleet-workers", "wp", "-o", "name").split() == ["workerpool.holdfast.dev/linux"]
    run("install", str(CHART), *to_try)
    assert keys(access, "fleet") == before[0], "an installation that comes back has its keys"


def _older_chart(folder: Path) -> Path:
    """Returns the chart of an older version that did not have a field yet."""
    older = Path(shutil.copytree(CHART, folder / "older"))
    crd = yaml.safe_load((older / "files" / "crd.yaml").read_text())
    del spec_of(crd)["properties"]["silence"]
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
    control_plane: Access,
    namespace: str,
    make_namespace: Callable[..., str],
    make_nodes: Callable[..., Any],
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers_namespace = make_namespace(control_plane)
    values = Values(
        namespace=namespace,
        workers_namespace=workers_namespace,
        make_namespace=False,
        install="i-test",
        dsn_secret="db",
        secrets=Secrets.fresh(),
    )
    programs = {values.image: [sys.executable, "-m", "holdfast"]}
    # so that containers run this `python`, as in the image
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for each in (namespace, workers_namespace):
        make_nodes(control_plane, each, nodes=1, images=programs, options=("--service-env",))
    secret = {"metadata": {"name": "db"}, "stringData": {"dsn": dsn}}
    control_plane.ask("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    apply(control_plane, [fitted(each) if each["kind"] == "Deployment" else each for each in objects(values)])
    status = f"/apis/apps/v1/namespaces/{namespace}/deployments/i-test"
    eventually(lambda: control_plane.ask("GET", status)["status"].get("readyReplicas") == 2, 60, "both replicas are ready")

    container = {"name": "work", "image": "any:test"}
    pool = pool_object() | {"spec": {"warm": 1, "pod": {"spec": {"containers": [container]}}}}
    pool["metadata"] = {"name": "linux", "labels": {"holdfast.dev/install": "i-test"}}
    pools = f"/apis/holdfast.dev/v1alpha1/namespaces/{workers_namespace}/workerpools"
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
    workers = f"/api/v1/namespaces/{workers_namespace}/pods?labelSelector=holdfast.dev/install%3Di-test"

    def ended() -> bool:  # an ended pod stays for a while, so that its output can be read
        found = control_plane.ask("GET", workers)["items"]
        return {each["status"]["phase"] for each in found} <= {"Succeeded", "Failed"}

    eventually(ended, 60, "no worker of it runs")
    for each in control_plane.ask("GET", workers)["items"]:  # no replica will be left to record their ends
        path = f"/api/v1/namespaces/{workers_namespace}/pods/{each['metadata']['name']}"
        control_plane.request("PATCH", path, {"metadata": {"finalizers": None}}, kind=MERGE)
