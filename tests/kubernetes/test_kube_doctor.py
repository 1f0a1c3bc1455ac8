"""`doctor` on Kubernetes names what is missing and what bounds a claim; headroom and policies stand beside the pods."""

from typing import Any

from kube_fleet import KubeFleet, job

from waiting import eventually

KARPENTER = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodepools.karpenter.sh"},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"kind": "NodePool", "plural": "nodepools", "singular": "nodepool"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"


def checks(fleet: KubeFleet) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in fleet.api("GET", "/v1/doctor").json["checks"]}


def put_node_pool(fleet: KubeFleet, name: str, grace: str | None) -> None:
    spec = {"terminationGracePeriod": grace} if grace else {}
    body = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": {"template": {"spec": spec}}}
    fleet.access.ask("POST", NODE_POOLS, body)


def test_seed_004_doctor_finds_node_pools_that_never_end_a_claim_or_too_soon(own_fleet: KubeFleet) -> None:
    fleet, name = own_fleet, "Karpenter bounds a protected claim, and not before its time"
    assert checks(fleet)[name]["ok"], "there is no Karpenter"
    assert fleet.api("PUT", "/v1/pools/linux", job(claim={"maxDuration": "6h"})).status == 201
    fleet.access.ask("POST", CRDS, KARPENTER)
    eventually(lambda: fleet.access.request("GET", NODE_POOLS).status == 200, 30, "the CRD is served")
    put_node_pool(fleet, "good", "24h")
    assert checks(fleet)[name]["ok"]
    put_node_pool(fleet, "endless", None)
    put_node_pool(fleet, "hasty", "1h")
    found = checks(fleet)[name]
    assert not found["ok"]
    assert "endless has no terminationGracePeriod" in found["detail"]
    assert "hasty ends its nodes after 1h, and claims of pool linux may last 6 h" in found["detail"]
    assert "good" not in found["detail"]
    assert "terminationGracePeriod" in found["advice"]


def test_doctor_names_each_right_that_is_missing(own_fleet: KubeFleet) -> None:
    """As an account that may read pods and nothing else."""
    fleet, name = own_fleet, "we may do in the cluster what we must"
    assert checks(fleet)[name]["ok"], "the admin may do everything"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    role = {"metadata": {"name": "poor"}, "rules": rules}
    where = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{fleet.namespace}"
    fleet.access.ask("POST", f"/api/v1/namespaces/{fleet.namespace}/serviceaccounts", {"metadata": {"name": "poor"}})
    fleet.access.ask("POST", f"{where}/roles", role)
    subject = {"kind": "ServiceAccount", "name": "poor", "namespace": fleet.namespace}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "poor"}
    fleet.access.ask("POST", f"{where}/rolebindings", {"metadata": {"name": "poor"}, "subjects": [subject], "roleRef": ref})
    fleet.kubeconfig = fleet.access.service_account_kubeconfig(fleet.namespace, "poor")
    fleet.kill(0)
    fleet.start(0)
    eventually(lambda: fleet.api("GET", "/healthz").status == 200, 30, "it listens")
    # Without nodes it cannot list pods with confidence: doctor says that the cluster cannot be asked, or names the rights.
    found = eventually(lambda: [c for c in fleet.api("GET", "/v1/doctor").json["checks"] if not c["ok"]], 30, "doctor complains")
    said = " ".join(each["detail"] for each in found)
    assert "create pods" in said or "refused" in said, said
