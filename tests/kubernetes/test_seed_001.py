"""Seed 001: neither a deploy of the control plane nor anything that happens to a pool's object touches a running worker."""

import json
from importlib.resources import files
from typing import Any

import pytest
from kube_fleet import KubeFleet, Made, job

from waiting import eventually

GROUP = "/apis/holdfast.dev/v1alpha1"
LONG = ["sh", "-c", "while test ! -e $STOP; do sleep 0.1; done; exit 7"]


@pytest.fixture
def fleet(fleet_of: Made) -> KubeFleet:
    made = fleet_of()
    made.access.kubectl("apply", "--server-side", "-f", str(files("holdfast.install") / "crd.yaml"))
    made.access.kubectl("wait", "--for=condition=Established", "crd/workerpools.holdfast.dev", "--timeout=30s")
    return made


def declare(fleet: KubeFleet, name: str, spec: dict[str, Any]) -> None:
    body = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": name, "namespace": fleet.namespace, "labels": {"holdfast.dev/install": fleet.install}},
        "spec": spec,
    }
    fleet.access.kubectl("apply", "-f", "-", input=json.dumps(body))


def declared(fleet: KubeFleet, name: str) -> dict[str, Any] | None:
    answer = fleet.access.request("GET", f"{GROUP}/namespaces/{fleet.namespace}/workerpools/{name}")
    return dict(answer.body) if answer.status == 200 else None


def ready(fleet: KubeFleet, name: str) -> dict[str, Any]:
    def look() -> Any:
        found = declared(fleet, name) or {}
        conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", [])}
        return found if conditions.get("Ready", {}).get("reason") == "WarmTargetMet" else None

    return dict(eventually(look, 90, f"{name} is ready"))


def busy(fleet: KubeFleet, pool: str) -> dict[str, Any]:
    held = fleet.claim(pool, command=LONG, env={"STOP": str(fleet.home / "stop")}, wait="60s")
    assert held["state"] == "active", fleet.said()
    return held


def uid(fleet: KubeFleet, worker: str) -> str:
    pod = fleet.pod(worker)
    assert pod is not None
    return str(pod["metadata"]["uid"])


def finishes(fleet: KubeFleet, held: dict[str, Any], pod_uid: str) -> None:
    """On the very pod that it was given, with its own exit code."""
    pod = fleet.pod(held["worker"])
    assert pod is not None
    assert pod["metadata"]["uid"] == pod_uid
    assert "deletionTimestamp" not in pod["metadata"], "nobody has asked it to end"
    (fleet.home / "stop").touch()
    ended = fleet.see(held["id"], wait="60s")
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 7), fleet.said()


def test_seed_001_a_deploy_of_all_replicas_leaves_running_workers_alone(fleet: KubeFleet) -> None:
    declare(fleet, "linux", job(warm=2))
    ready(fleet, "linux")
    held = busy(fleet, "linux")
    pod = uid(fleet, held["worker"])
    for n in range(2):
        fleet.kill(n)
    for n in range(2):
        fleet.start(n)
    for n in range(2):
        eventually(lambda n=n: fleet.api("GET", "/readyz", replica=n).status == 200, 60, f"replica {n} is back")
    assert fleet.see(held["id"])["state"] == "active"
    finishes(fleet, held, pod)


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_seed_001_a_pool_deleted_in_any_cascade_mode_lets_the_busy_finish(fleet: KubeFleet, cascade: str) -> None:
    declare(fleet, "linux", job(warm=2))
    ready(fleet, "linux")
    held = busy(fleet, "linux")
    pod, old = uid(fleet, held["worker"]), declared(fleet, "linux")
    fleet.access.kubectl("-n", fleet.namespace, "delete", "wp", "linux", f"--cascade={cascade}", "--wait=true", "--timeout=60s")
    eventually(lambda: len(fleet.workers()) == 1, 60, "the free workers go")
    # The name is another pool's at once, while the old one still has a busy worker.
    declare(fleet, "linux", job(warm=1))
    new = ready(fleet, "linux")
    assert old is not None
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    finishes(fleet, held, pod)
    eventually(lambda: held["worker"] not in [w["id"] for w in fleet.workers()], 60, "the old pool's last worker goes")
    pools = {each["id"]: each["state"] for each in fleet.api("GET", "/v1/pools").json["items"]}
    assert pools[f"p-{new['metadata']['uid']}"] == "live"


def test_seed_001_a_pool_whose_object_vanished_without_us_drains_all_the_same(fleet: KubeFleet) -> None:
    declare(fleet, "linux", job(warm=2))
    ready(fleet, "linux")
    held = busy(fleet, "linux")
    pod, path = uid(fleet, held["worker"]), f"{GROUP}/namespaces/{fleet.namespace}/workerpools/linux"
    for n in range(2):
        fleet.kill(n)  # nobody sees it go
    fleet.access.ask("PATCH", path, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")
    fleet.access.ask("DELETE", path)
    for n in range(2):
        fleet.start(n)
    eventually(lambda: [w["state"] for w in fleet.workers()] == ["held"], 90, "the free workers go, the busy one stays")
    finishes(fleet, held, pod)
    eventually(lambda: not fleet.workers(), 60, "and then it goes")


def test_a_pool_belongs_to_its_object_and_is_frozen_through_the_api(fleet: KubeFleet) -> None:
    declare(fleet, "linux", job(warm=1))
    ready(fleet, "linux")
    assert fleet.api("PUT", "/v1/pools/linux", job(warm=3)).status == 409
    assert fleet.api("DELETE", "/v1/pools/linux").status == 409
    assert fleet.api("POST", "/v1/pools/linux/freeze", {"reason": "looking into it"}).status == 200

    def frozen() -> Any:
        conditions = {c["type"]: c for c in (declared(fleet, "linux") or {})["status"]["conditions"]}
        return conditions["Frozen"]["status"] == "True" and conditions["Frozen"]["message"]

    assert eventually(frozen, 30, "its object says so") == "looking into it"
    assert fleet.api("POST", "/v1/pools/linux/thaw", {}).status == 200
    fleet.access.kubectl("-n", fleet.namespace, "scale", "wp", "linux", "--replicas=3")
    fleet.warm(3, within=60)
    assert eventually(lambda: (declared(fleet, "linux") or {})["status"]["free"] == 3, 30, "its status counts them")


def test_a_template_that_the_api_server_refuses_is_told_by_its_object(fleet: KubeFleet) -> None:
    bad = job(warm=1)
    bad["pod"]["spec"]["containers"][0]["image"] = ""
    declare(fleet, "linux", bad)
    # Without its field the rule would allow everything.
    declare(fleet, "leaky", job(warm=1, network={"egress": [{"too": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}]}))

    def refused(name: str) -> Any:
        conditions = {c["type"]: c for c in (declared(fleet, name) or {}).get("status", {}).get("conditions", [])}
        return conditions.get("Ready", {}).get("reason") == "Refused" and conditions["Ready"]["message"]

    assert "pod.spec.containers[0].image" in eventually(lambda: refused("linux"), 30, "its object says why")
    assert "network.egress[0].too: unknown field" in eventually(lambda: refused("leaky"), 30, "and the other's")
    assert fleet.api("GET", "/v1/pools").json["items"] == []
    events = fleet.access.kubectl("-n", fleet.namespace, "get", "events", "--field-selector=involvedObject.kind=WorkerPool")
    assert "Refused" in events
    declare(fleet, "linux", job(warm=1))
    ready(fleet, "linux")


def test_seed_001_workers_have_a_constant_base_policy_and_a_control_channel_that_a_seal_closes(fleet: KubeFleet) -> None:
    declare(fleet, "linux", job(warm=1, network={"seal": True}))
    declare(fleet, "notebooks", job(mode="session", warm=0))
    ready(fleet, "linux")
    path = f"/apis/networking.k8s.io/v1/namespaces/{fleet.namespace}/networkpolicies"

    def policies() -> dict[str, Any]:
        return {each["metadata"]["name"]: each["spec"] for each in fleet.access.ask("GET", path)["items"]}

    before = eventually(lambda: len(policies()) == 3 and policies(), 30, "the base, the control channel, the sessions' own")
    base, control = before[f"holdfast-{fleet.install}-base"], before[f"holdfast-{fleet.install}-control"]
    (session,) = (spec for name, spec in before.items() if name.endswith("-ingress"))
    assert base["podSelector"] == {"matchLabels": {"holdfast.dev/install": fleet.install}}, (
        "constant: no claim changes who it selects"
    )
    assert (base["policyTypes"], base.get("ingress", [])) == (["Ingress", "Egress"], []), "nobody comes in"
    dns, public = base["egress"]
    assert dns["ports"] == [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    anywhere, four, six = dns["to"]
    assert anywhere == {"namespaceSelector": {}}
    assert (four["ipBlock"]["except"], six["ipBlock"]["except"]) == (["169.254.169.254/32"], ["fd00:ec2::254/128"])
    four, six = (to["ipBlock"] for to in public["to"])
    # Not to other pods and hosts of a cluster (100.64/10 is some clouds' for them), nor to the metadata address (169.254/16).
    private = ["10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
    assert (four["cidr"], sorted(four["except"])) == ("0.0.0.0/0", private)
    assert (six["cidr"], sorted(six["except"])) == ("::/0", ["fc00::/7", "fe80::/10"])
    assert "ports" not in public, "all of the public internet"
    assert (control["policyTypes"], len(control["egress"])) == (["Egress"], 1)
    assert control["egress"][0]["ports"] == [{"protocol": "TCP", "port": 7070}], "to our replicas, and nothing else of theirs"
    replicas = {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": fleet.install}
    assert control["egress"][0]["to"] == [{"podSelector": {"matchLabels": replicas}}], "in this namespace"
    assert session["ingress"] == [{"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": 7071}]}], (
        "holders of the namespace reach a session's agent, and never its worker"
    )
    assert session["policyTypes"] == ["Ingress"]
    assert control["podSelector"]["matchExpressions"] == [{"key": "holdfast.dev/sealed", "operator": "DoesNotExist"}]
    free = fleet.pods()[0]
    assert "holdfast.dev/sealed" not in free["metadata"]["labels"], "never before it has acknowledged"
    held = busy(fleet, "linux")
    eventually(lambda: (fleet.pod(held["worker"]) or {})["metadata"]["labels"].get("holdfast.dev/sealed") == "true", 30, "sealed")
    assert policies() == before, "nothing that a claim does changes a policy"
    finishes(fleet, held, uid(fleet, held["worker"]))
