"""The network policies of workers: a constant base, and a control channel that a seal closes (seed 001)."""

from ipaddress import ip_address, ip_network
from typing import Any

from kube_fleet import KubeFleet, job
from pool_objects import busy, declare, finishes, ready, uid

from waiting import eventually

# The NAT64 forms of the metadata address, of Azure's host, and of a pod.
TRANSLATED = ("64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110", "64:ff9b::10.1.2.3")


def test_workers_have_a_constant_base_policy_and_a_control_channel_that_a_seal_closes(fleet: KubeFleet) -> None:
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
        "constant: no claim changes which pods it selects"
    )
    assert (base["policyTypes"], base.get("ingress", [])) == (["Ingress", "Egress"], []), "no ingress"
    dns, public = base["egress"]
    assert dns["ports"] == [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    anywhere, four, six = dns["to"]
    assert anywhere == {"namespaceSelector": {}}
    assert (four["ipBlock"]["except"], six["ipBlock"]["except"]) == (
        ["169.254.169.254/32"],
        ["64:ff9b::a9fe:a9fe/128", "fd00:ec2::254/128"],
    )
    four, six = (to["ipBlock"] for to in public["to"])
    # Not to other pods and hosts of a cluster (some clouds use 100.64/10 for them), nor to the metadata address (169.254/16).
    private = ["10.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
    assert (four["cidr"], sorted(four["except"])) == ("0.0.0.0/0", private)
    assert six["cidr"] == "::/0"
    assert {"fc00::/7", "fe80::/10"} <= set(six["except"])
    assert all(any(ip_address(form) in ip_network(each) for each in six["except"]) for form in TRANSLATED), "through NAT64"
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
