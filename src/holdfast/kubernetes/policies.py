"""Build the network policies of workers: a constant base for all, the control channel, and what a pool adds for itself.

The base never changes with a claim, a deploy or a pool, so that nothing that we do disturbs the connections of a busy worker. A
label on the pod closes the control channel. It is written only after the acknowledgement, when the worker no longer needs it.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from typing import Any

from ..model.pool import Pool
from . import names
from .shapes import Metadata
from .template import Setup

Json = dict[str, Any]
# Addresses at which clouds serve credentials or their host agent to every machine. The last is the NAT64 form of the first.
METADATA, AZURE_HOST = "169.254.169.254/32", "168.63.129.16/32"
METADATA_6, METADATA_NAT64 = "fd00:ec2::254/128", "64:ff9b::a9fe:a9fe/128"
# Workers may not reach these unless their pool allows it: other pods, other hosts, and the addresses above. The NAT64 forms of
# all private IPv4 ranges are excepted too, because the gateway would translate them.
PRIVATE = ["10.0.0.0/8", "100.64.0.0/10", AZURE_HOST, "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
NAT64 = int(IPv6Address("64:ff9b::"))
TRANSLATED = [str(IPv6Network((NAT64 + int(each.network_address), 96 + each.prefixlen))) for each in map(IPv4Network, PRIVATE)]
PRIVATE_6 = [*TRANSLATED, "fc00::/7", "fe80::/10"]
DNS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
# A nameserver can be another pod, a node or the cloud's resolver. Azure's resolver is its host address, which is allowed on the
# DNS port only. It is never the metadata address.
RESOLVERS = [
    {"namespaceSelector": {}},
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": [METADATA]}},
    {"ipBlock": {"cidr": "::/0", "except": [METADATA_NAT64, METADATA_6]}},
]
API_PORT = 7070
GENERATION = f"{names.DOMAIN}/generation"  # the generation of the pool's spec for which a policy was made


def base(setup: Setup) -> Json:
    """Returns the policy of every worker: no ingress, and egress only to DNS and the public internet."""
    egress = [
        {"to": RESOLVERS, "ports": DNS},
        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": PRIVATE}}, {"ipBlock": {"cidr": "::/0", "except": PRIVATE_6}}]},
    ]
    spec = {"podSelector": _workers(setup), "policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": egress}
    return _policy(f"holdfast-{setup.install}-base", setup, {}, spec)


def control(setup: Setup) -> Json:
    """Returns the policy that lets workers reach our replicas until they are sealed."""
    selector = _workers(setup) | {"matchExpressions": [{"key": names.SEALED, "operator": "DoesNotExist"}]}
    replicas: Json = {
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": setup.install}},
        **_namespace(setup),
    }
    egress = [{"to": [replicas], "ports": [{"protocol": "TCP", "port": API_PORT}]}]
    return _policy(
        f"holdfast-{setup.install}-control", setup, {}, {"podSelector": selector, "policyTypes": ["Egress"], "egress": egress}
    )


def of_pool(pool: Pool, setup: Setup) -> list[Json]:
    """Returns the pool's own policies: ingress to a session's agent, from the workers' and the replicas' namespaces or from the
    peers that the pool names, and the egress that the pool adds."""
    found: list[Json] = []
    network, labels = pool.spec.network, {names.POOL: pool.name, names.POOL_ID: pool.id}
    selector = {"matchLabels": {names.INSTALL: setup.install, names.POOL_ID: pool.id}}
    stem = f"holdfast-{names.digest(setup.install, pool.id)}"
    if pool.spec.mode == "session":
        around: list[Json] = [{"podSelector": {}}]
        # With a namespace for workers alone, holders run beside the replicas.
        around += [{"podSelector": {}, **_namespace(setup)}] if setup.replicas_namespace else []
        peers = network.ingress or around
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
    """Returns the pool's field from which this field of its policy was made."""
    ingress = "ingress" in policy["spec"]
    theirs, ours = ("spec.ingress[0].from", "network.ingress") if ingress else ("spec.egress", "network.egress")
    return ours + field.removeprefix(theirs) if field.startswith(theirs) else ours


def outlived(meta: Metadata, pools: Sequence[Pool]) -> bool:
    """Returns whether we know the policy's pool in the generation for which the policy was made, or a later one. Then an unwanted
    policy was removed from the pool, and is not a policy of a newer spec that we have not read yet."""
    text = meta.annotations.get(GENERATION, "0")
    generation = int(text) if text.isdecimal() else 0
    return any(pool.id == meta.labels.get(names.POOL_ID) and generation <= pool.generation for pool in pools)


def _namespace(setup: Setup) -> Json:
    """Returns the part of a peer that selects the replicas' namespace, or nothing if it is the policy's own."""
    if setup.replicas_namespace is None:
        return {}
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": setup.replicas_namespace}}}


def _workers(setup: Setup) -> Json:
    return {"matchLabels": {names.INSTALL: setup.install}}


def _policy(name: str, setup: Setup, labels: dict[str, str], spec: Json) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {names.INSTALL: setup.install} | labels},
        "spec": spec,
    }
