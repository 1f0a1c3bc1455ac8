"""Network policies of workers: a constant base for all, the control channel apart, and what a pool asks for itself.

The base never changes with a claim, a deploy or a pool, so that nothing that we do disturbs the connections of a busy worker. The
channel is closed by a label that is written only after the acknowledgement, when the worker needs it no more.
"""

from typing import Any

from ..model.pool import Pool
from . import names
from .template import Setup

Json = dict[str, Any]
# Where workers may not go unless their pool says so: other pods, other hosts, and the cloud's metadata address.
PRIVATE = ["10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
PRIVATE_6 = ["fc00::/7", "fe80::/10"]
DNS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
API_PORT = 7070


def base(setup: Setup) -> Json:
    """For every worker: nobody comes in; out to DNS and to the public internet."""
    egress = [
        {"ports": DNS},
        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": PRIVATE}}, {"ipBlock": {"cidr": "::/0", "except": PRIVATE_6}}]},
    ]
    spec = {"podSelector": _workers(setup), "policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": egress}
    return _policy(f"holdfast-{setup.install}-base", setup, {}, spec)


def control(setup: Setup) -> Json:
    """To our replicas, unless sealed."""
    selector = _workers(setup) | {"matchExpressions": [{"key": names.SEALED, "operator": "DoesNotExist"}]}
    replicas = {
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": setup.install}}
    }
    egress = [{"to": [replicas], "ports": [{"protocol": "TCP", "port": API_PORT}]}]
    return _policy(
        f"holdfast-{setup.install}-control", setup, {}, {"podSelector": selector, "policyTypes": ["Egress"], "egress": egress}
    )


def of_pool(pool: Pool, setup: Setup) -> list[Json]:
    """Holders reach a session's agent from the namespace, or from the peers that the pool names; egress that the pool adds."""
    found = []
    network, labels = pool.spec.network, {names.POOL: pool.name, names.POOL_ID: pool.id}
    selector = {"matchLabels": {names.INSTALL: setup.install, names.POOL_ID: pool.id}}
    stem = f"holdfast-{names.digest(setup.install, pool.id)}"
    if pool.spec.mode == "session":
        peers = network.ingress or [{"podSelector": {}}]
        rule = {"from": peers, "ports": [{"protocol": "TCP", "port": names.AGENT_PORT}]}
        spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": [rule]}
        found.append(_policy(f"{stem}-ingress", setup, labels, spec))
    if network.egress:
        spec = {"podSelector": selector, "policyTypes": ["Egress"], "egress": network.egress}
        found.append(_policy(f"{stem}-egress", setup, labels, spec))
    return found


def _workers(setup: Setup) -> Json:
    return {"matchLabels": {names.INSTALL: setup.install}}


def _policy(name: str, setup: Setup, labels: dict[str, str], spec: Json) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {names.INSTALL: setup.install} | labels},
        "spec": spec,
    }
