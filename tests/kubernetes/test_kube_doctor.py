"""`doctor` on Kubernetes names what is missing and what limits a claim. Headroom and policies exist beside the pods."""

import asyncio
from typing import Any

import pytest
from kube_fleet import KubeFleet, job

from holdfast.kubernetes.diagnose import BOUNDS, RIGHTS, diagnose
from holdfast.ports.cluster import ClusterUnavailable
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


def test_doctor_finds_node_pools_that_never_end_a_claim_or_too_soon(own_fleet: KubeFleet) -> None:
    fleet, name = own_fleet, BOUNDS
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
    """Runs with an account that can only read pods. It cannot read nodes, without which pods cannot be listed reliably."""
    fleet, name = own_fleet, RIGHTS
    assert checks(fleet)[name]["ok"], "an installation's own account has all of them"
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
    # Without nodes it cannot list pods reliably. `doctor` still names exactly the rights that are missing for that.
    found = eventually(lambda: may_read_pods(checks(fleet)), 30, "doctor complains")
    missing = [each.partition(" (")[0] for each in found[name]["detail"].removeprefix("not allowed: ").split("; ")]
    assert {"list nodes", "watch nodes", "create pods", "delete pods", "create tokenreviews.authentication.k8s.io"} <= set(
        missing
    )
    assert "Role" in found[name]["advice"]
    assert "refused a list" in found["the cluster can be asked"]["detail"]
    assert "NodePools cannot be looked at" in found[BOUNDS]["detail"]


def may_read_pods(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """Waits, because the API server knows the role a moment after its creation."""
    detail = found[RIGHTS]["detail"]
    return found if not any(f"{verb} pods (" in detail for verb in ("get", "list", "watch")) else None


class Deaf:
    """An API server that does not answer about one of the two."""

    def __init__(self, about: str) -> None:
        self.about = about

    async def get(self, path: str, params: dict[str, str] | None = None) -> bytes:
        if params is not None:
            return b'{"items": []}'  # no replica runs among the workers
        return self._answer(BOUNDS, b'{"items": [{"metadata": {"name": "endless"}}]}')

    async def ask(self, path: str, body: Any) -> bytes:
        return self._answer(RIGHTS, b'{"status": {"allowed": false}}')

    def _answer(self, about: str, content: bytes) -> bytes:
        if about == self.about:
            raise ClusterUnavailable("the API server answered 503 Unavailable")
        return content


@pytest.mark.parametrize(("about", "other", "expected"), [(RIGHTS, BOUNDS, "endless"), (BOUNDS, RIGHTS, "create pods")])
def test_what_cannot_be_read_is_reported_and_hides_nothing_else(about: str, other: str, expected: str) -> None:
    found = {each.name: each for each in asyncio.run(diagnose(Deaf(about), "space", "one", []))}
    assert not found[about].ok
    assert "503" in found[about].detail
    assert expected in found[other].detail
