"""Network policies of workers: a constant base for all, the control channel apart, and what a pool asks for itself.

The base never changes with a claim, a deploy or a pool, so that nothing that we do disturbs the connections of a busy worker. The
channel is closed by a label that is written only after the acknowledgement, when the worker needs it no more.
"""

from collections.abc import Sequence
from typing import Any

from ..model.pool import Pool
from . import names
from .shapes import Metadata
from .template import Setup

Json = dict[str, Any]
# Where workers may not go unless their pool says so: other pods, other hosts, and the cloud's metadata address.
PRIVATE = ["10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
PRIVATE_6 = ["fc00::/7", "fe80::/10"]
DNS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
# A nameserver may be anywhere: another pod, a node, the cloud's own resolver. Never at the metadata address, though.
RESOLVERS = [
    {"namespaceSelector": {}},
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fd00:ec2::254/128"]}},
]
API_PORT = 7070
GENERATION = f"{names.DOMAIN}/generation"  # of the pool's spec that a policy was made for


def base(setup: Setup) -> Json:
    """For every worker: nobody comes in; out to DNS and to the public internet."""
    egress = [
        {"to": RESOLVERS, "ports": DNS},
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
    found: list[Json] = []
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
    for policy in found:
        policy["metadata"]["annotations"] = {GENERATION: str(pool.generation)}
    return found


def place(policy: Json, field: str) -> str:
    """Where the pool says what a field of its policy holds."""
    ingress = "ingress" in policy["spec"]
    theirs, ours = ("spec.ingress[0].from", "network.ingress") if ingress else ("spec.egress", "network.egress")
    return ours + field.removeprefix(theirs) if field.startswith(theirs) else ours


def outlived(meta: Metadata, pools: Sequence[Pool]) -> bool:
    """Whether the pool that it was made for is known in that spec or a later one: then not to be wanted is to be taken back."""
    said = meta.annotations.get(GENERATION, "0")
    generation = int(said) if said.isdecimal() else 0
    return any(pool.id == meta.labels.get(names.POOL_ID) and generation <= pool.generation for pool in pools)


def _workers(setup: Setup) -> Json:
    return {"matchLabels": {names.INSTALL: setup.install}}


def _policy(name: str, setup: Setup, labels: dict[str, str], spec: Json) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {names.INSTALL: setup.install} | labels},
        "spec": spec,
    }
