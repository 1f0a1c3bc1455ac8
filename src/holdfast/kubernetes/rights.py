"""Every right that a replica has, with what it is for. No other: what is missing here is refused by the API server.

Derived from the calls in `kubernetes/`; tests/install/test_install_on_cluster.py compares the two, and the chart's copy as well.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec


class Right(msgspec.Struct, frozen=True):
    group: str  # "" is the core
    resource: str
    verbs: tuple[str, ...]
    reason: str
    only: str = ""  # the one object that it is about; {install} is the installation's name


NAMESPACED = (
    Right("", "pods", ("get", "list", "watch", "create", "patch", "delete"), "workers: seen, made, stamped, protected, ended"),
    Right("", "pods/log", ("get",), "a job's output"),
    Right("apps", "controllerrevisions", ("get", "list", "create", "delete"), "anchors: what controls a pool's pods"),
    Right("", "serviceaccounts", ("get", "list", "create", "delete"), "one account without rights for each pool"),
    Right("", "configmaps", ("create",), "the mark, which notices a database that lost commits"),
    Right("", "configmaps", ("get", "update"), "the same", "holdfast-{install}-mark"),
    Right("policy", "poddisruptionbudgets", ("create",), "the budget that makes evictions of busy workers fail"),
    Right("policy", "poddisruptionbudgets", ("get", "patch"), "the same", "holdfast-{install}-busy"),
    Right("networking.k8s.io", "networkpolicies", ("get", "list", "create", "patch", "delete"), "what workers may reach"),
    Right("holdfast.dev", "workerpools", ("get", "list", "patch"), "pools as people declare them, and our finalizer"),
    Right("holdfast.dev", "workerpools/status", ("patch",), "how a pool is"),
    Right("", "events", ("create",), "what people read in kubectl describe"),
)
CLUSTER = (
    Right("", "nodes", ("list", "watch"), "no claim goes to a cordoned node, and its free workers leave"),
    Right("authentication.k8s.io", "tokenreviews", ("create",), "which pod an agent's token belongs to"),
    Right("karpenter.sh", "nodepools", ("list",), "doctor: whether something bounds a protected claim"),
)


def rules(rights: Sequence[Right], install: str) -> list[dict[str, Any]]:
    """As a Role has them."""
    return list(_rules(rights, install))


def _rules(rights: Sequence[Right], install: str) -> Iterator[dict[str, Any]]:
    for right in rights:
        rule: dict[str, Any] = {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)}
        if right.only:
            rule["resourceNames"] = [right.only.format(install=install)]
        yield rule
