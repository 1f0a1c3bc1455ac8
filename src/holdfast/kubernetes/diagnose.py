"""Check a cluster for `doctor`: our rights, whether Karpenter limits claims, and whether workers are apart from the replicas."""

import asyncio
from collections.abc import Awaitable, Sequence

import msgspec

from ..model.duration import seconds
from ..model.pool import Pool
from ..ports.cluster import ClusterUnavailable, Finding
from .api import Api, ApiRefused
from .rights import CLUSTER, NAMESPACED, Right
from .shapes import Metadata

NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
RIGHTS = "replicas have the rights that they need in the cluster"
APART = "workers run in a namespace without replicas"
BOUNDS = "Karpenter's terminationGracePeriod is set and not shorter than the longest claim"


class NodeTemplateSpec(msgspec.Struct, frozen=True, rename="camel"):
    termination_grace_period: str | None = None


class NodeTemplate(msgspec.Struct, frozen=True):
    spec: NodeTemplateSpec = NodeTemplateSpec()


class NodePoolSpec(msgspec.Struct, frozen=True):
    template: NodeTemplate = NodeTemplate()


class NodePool(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: NodePoolSpec = NodePoolSpec()


class NodePools(msgspec.Struct, frozen=True):
    items: list[NodePool] = []


class PodName(msgspec.Struct, frozen=True):
    metadata: Metadata


class PodNames(msgspec.Struct, frozen=True):
    items: list[PodName] = []


class ReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class AccessReview(msgspec.Struct, frozen=True):
    status: ReviewStatus = ReviewStatus()


async def diagnose(api: Api, namespace: str, install: str, pools: Sequence[Pool]) -> list[Finding]:
    """Returns one finding per check. A check that fails to run is reported as a finding and does not hide the others."""
    looks = (
        _found("P5", RIGHTS, _rights(api, namespace, install)),
        _found("P4", BOUNDS, _bounds(api, pools)),
        _found("P1", APART, _apart(api, namespace, install)),
    )
    return list(await asyncio.gather(*looks))


async def _found(promise: str, name: str, look: Awaitable[Finding]) -> Finding:
    try:
        return await look
    except (ClusterUnavailable, msgspec.MsgspecError) as error:
        return Finding(promise, name, False, f"it cannot be checked: {error}", "run it again when the API server answers")


async def _rights(api: Api, namespace: str, install: str) -> Finding:
    missing = []
    for right, where in [*((r, namespace) for r in NAMESPACED), *((r, "") for r in CLUSTER)]:
        for verb in right.verbs:
            if not await _allowed(api, right, verb, where, install):
                missing.append(f"{verb} {right.resource}{'.' + right.group if right.group else ''} ({right.reason})")
    detail = f"not allowed: {'; '.join(missing)}" if missing else ""
    advice = "apply the Role and ClusterRole of this version: `holdfast manifests`, or upgrade the chart" if missing else ""
    return Finding("P5", RIGHTS, not missing, detail, advice)


async def _allowed(api: Api, right: Right, verb: str, namespace: str, install: str) -> bool:
    resource, _, sub = right.resource.partition("/")
    attributes = {"group": right.group, "resource": resource, "subresource": sub, "verb": verb, "namespace": namespace}
    if right.only:
        attributes["name"] = right.only.format(install=install)
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    try:
        content = await api.ask("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    except ApiRefused as refused:
        raise ClusterUnavailable(f"the API server refused an access review: {refused.status.reason}") from refused
    return msgspec.json.decode(content, type=AccessReview).status.allowed


async def _bounds(api: Api, pools: Sequence[Pool]) -> Finding:
    """Check P4: a protected claim keeps its node from being replaced until the claim ends or its NodePool's grace is over."""
    try:
        found = msgspec.json.decode(await api.get(NODE_POOLS), type=NodePools).items
    except ApiRefused as refused:
        if refused.code == 404:
            return Finding("P4", BOUNDS, True, "", "")  # no Karpenter here
        detail = f"NodePools cannot be looked at: {refused.status.reason}"
        return Finding("P4", BOUNDS, False, detail, "allow: list nodepools.karpenter.sh")
    longest = max(((pool.spec.max_duration, pool.name) for pool in pools if pool.state == "live"), default=None)
    wrong = []
    for each in found:
        grace = each.spec.template.spec.termination_grace_period
        if grace is None:
            wrong.append(
                f"NodePool {each.metadata.name} has no terminationGracePeriod: a roll waits for as long as any claim lasts"
            )
        elif longest is not None and _seconds(grace) < longest[0]:
            limit = f"{longest[0] / 3600:g} h"
            wrong.append(
                f"NodePool {each.metadata.name} ends its nodes after {grace}, and claims of pool {longest[1]} may last {limit}"
            )
    advice = "set spec.template.spec.terminationGracePeriod to at least the longest claim.maxDuration of the pools that run there"
    return Finding("P4", BOUNDS, not wrong, "; ".join(wrong), advice if wrong else "")


async def _apart(api: Api, namespace: str, install: str) -> Finding:
    """Warn if replicas run among the workers, where a person who can create pods can read the Secrets of the installation."""
    selector = {"labelSelector": f"app.kubernetes.io/name=holdfast,app.kubernetes.io/instance={install}", "limit": "1"}
    try:
        found = msgspec.json.decode(await api.get(f"/api/v1/namespaces/{namespace}/pods", selector), type=PodNames).items
    except ApiRefused as refused:
        raise ClusterUnavailable(f"the API server refused a list: {refused.status.reason}") from refused
    if not found:
        return Finding("P1", APART, True, "", "")
    where = f"{found[0].metadata.name} is a replica in the workers' namespace {namespace}"
    detail = f"{where}: a person who can create pods there can read our keys"
    advice = "give workers a namespace of their own: docs/kubernetes.md, One namespace or two"
    return Finding("P1", APART, True, detail, advice, warning=True)


def _seconds(duration: str) -> float:
    try:
        return seconds(duration)
    except ValueError:
        return 0.0  # an unknown format: report it rather than ignore it
