"""List every right that a replica has, and what it needs it for. The API server refuses everything that is missing here.

The list follows from the calls in `kubernetes/`. tests/install/test_rights_on_cluster.py compares both with the chart's copy.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec


class Right(msgspec.Struct, frozen=True):
    group: str  # "" is the core group
    resource: str
    verbs: tuple[str, ...]
    reason: str
    only: str = ""  # the name of the only object it applies to; {install} is the installation's name


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
    """Returns the rights in the format of a Role's rules."""
    return list(_rules(rights, install))


def _rules(rights: Sequence[Right], install: str) -> Iterator[dict[str, Any]]:
    for right in rights:
        rule: dict[str, Any] = {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)}
        if right.only:
            rule["resourceNames"] = [right.only.format(install=install)]
        yield rule
