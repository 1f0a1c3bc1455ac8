"""Manage the objects other than pods: anchors, accounts, the disruption budget, network policies, and the high-water mark."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from ..model.pool import FieldProblem, Pool
from ..ports.cluster import ClusterUnavailable, Refused
from ..ports.recovery import Remembered
from . import names, policies, refusals, template
from .api import Api, ApiRefused
from .headroom import Headroom
from .shapes import Metadata

TRIES = 20  # attempts to raise the mark while other replicas raise it at the same time
TRUSTED = 30.0  # seconds for which we assume that an anchor which we read still exists
AGAIN = 60.0  # seconds after which everything is checked again although no pool changed
OLD = 600.0  # seconds; a younger object may belong to a pool that this replica does not know yet
STRICT = {"fieldValidation": "Strict"}  # otherwise a mistyped field is dropped, and a rule without it may allow everything
LOUD = 5  # refusals that are quoted in the error text


class Named(msgspec.Struct, frozen=True):
    metadata: Metadata


class NamedList(msgspec.Struct, frozen=True):
    items: list[Named] = []


class ConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


class Objects:
    def __init__(self, api: Api, namespace: str, setup: template.Setup) -> None:
        self._api, self._setup = api, setup
        self._core = f"/api/v1/namespaces/{namespace}"
        self._anchors_path = f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions"
        self._budgets_path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        self._policies_path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
        self._anchors: dict[str, tuple[str, float]] = {}  # by pool id: the anchor's UID and when we read it; only a cache
        self._ours = {names.INSTALL: setup.install}
        self._select = {"labelSelector": f"{names.INSTALL}={setup.install}"}
        self._headroom = Headroom(api, namespace, setup)
        self._ensured: tuple[bytes, float] = (b"", 0.0)

    # Anchors and accounts

    async def anchor(self, pool: Pool) -> str | Refused:
        """Returns the UID of the object that controls this pool's pods. Creates it and the pods' service account if needed."""
        uid, seen = self._anchors.get(pool.id, ("", 0.0))
        if uid and time.monotonic() - seen < TRUSTED:
            return uid
        if "serviceAccountName" not in (pool.spec.pod.get("spec") or {}):
            refused = await self._account(pool)
            if refused is not None:
                return refused
        made = await self._make(self._anchors_path, template.anchor(pool, self._setup))
        if isinstance(made, Refused):
            return made
        self._anchors[pool.id] = (made.uid, time.monotonic())
        return made.uid

    def forget_anchor(self, pool: Pool) -> None:
        self._anchors.pop(pool.id, None)

    async def _account(self, pool: Pool) -> Refused | None:
        """Create the pool's service account. It has no rights and exists only so that the pods get tokens."""
        body = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {
                "name": names.account_name(self._setup.install, pool.name),
                "labels": self._ours | {names.POOL: pool.name},
            },
            "automountServiceAccountToken": False,
        }
        made = await self._make(f"{self._core}/serviceaccounts", body)
        return made if isinstance(made, Refused) else None

    # Everything

    async def ensure(self, pools: Sequence[Pool]) -> None:
        """Create, change and delete objects so that they fit these pools: immediately when a pool changed, otherwise once per
        minute. Refusals are collected and raised at the end, so that one pool does not block the others."""
        wanted = [policies.base(self._setup), policies.control(self._setup)]
        wanted += [policy for pool in pools for policy in policies.of_pool(pool, self._setup)]
        known = sorted((pool.id, pool.name) for pool in pools)
        rooms = [(pool.id, pool.state, pool.revision, pool.spec.headroom) for pool in pools]
        key = msgspec.json.encode([known, wanted, rooms])
        if self._ensured[0] == key and time.monotonic() - self._ensured[1] < AGAIN:
            return
        accounts = {names.account_name(self._setup.install, pool.name) for pool in pools}
        results = [await self._put(self._budgets_path, self._budget())]
        results += [await self._put(self._policies_path, policy) for policy in wanted]
        results += await self._sweep(self._policies_path, {policy["metadata"]["name"] for policy in wanted}, pools)
        results += await self._sweep(f"{self._core}/serviceaccounts", accounts)
        results += await self._sweep_anchors({names.anchor_name(self._setup.install, pool.id) for pool in pools})
        results += await self._headroom.ensure(pools)
        if refused := [each for each in results if each is not None]:
            raise ClusterUnavailable(f"{len(refused)} refused changes: {'; '.join(refused[:LOUD])}")
        self._ensured = key, time.monotonic()

    def _budget(self) -> dict[str, Any]:
        """Returns the budget that makes the Eviction API refuse busy pods, and only those, as soon as they are stamped."""
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"holdfast-{self._setup.install}-busy", "labels": self._ours},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": self._ours | {names.BUSY: "true"}}},
        }

    async def _sweep(self, path: str, keep: set[str], pools: Sequence[Pool] = ()) -> list[str | None]:
        """Delete objects of pools that no longer exist. A policy that its pool no longer wants is deleted immediately, because it
        may allow egress. A policy that another replica made for a newer spec than we know stays."""
        ours = [meta for meta in await self._list(path) if meta.name.startswith("holdfast-") and meta.labels.get(names.POOL)]
        gone = [meta for meta in ours if meta.name not in keep and (meta.age > OLD or policies.outlived(meta, pools))]
        return [await self._delete(f"{path}/{meta.name}", meta) for meta in gone]

    async def _sweep_anchors(self, keep: set[str]) -> list[str | None]:
        """Delete anchors of pools that have no pod left. Otherwise the garbage collector would delete the pods of the anchor."""
        gone = [meta for meta in await self._list(self._anchors_path) if meta.name not in keep and meta.age > OLD]
        if not gone:
            return []
        used = {meta.labels.get(names.POOL_ID) for meta in await self._list(f"{self._core}/pods")}
        unused = [meta for meta in gone if meta.labels.get(names.POOL_ID) not in used]
        return [await self._delete(f"{self._anchors_path}/{meta.name}", meta) for meta in unused]

    # Calls

    async def _list(self, path: str) -> list[Metadata]:
        try:
            content = await self._api.get(path, self._select, timeout=30.0)
        except ApiRefused as refused:
            raise ClusterUnavailable(f"the API server refused a list: {refused.status.reason}") from refused
        return [item.metadata for item in msgspec.json.decode(content, type=NamedList).items]

    async def _delete(self, path: str, meta: Metadata) -> str | None:
        """Delete one object, if it is unchanged. Returns None, or the text of the refusal."""
        options = {"preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version}}
        try:
            await self._api.delete(path, options)
        except ApiRefused as refused:
            if refused.code not in (404, 409):
                return f"pool {meta.labels.get(names.POOL)!r}: the deletion of {meta.name}: {refusals.of_create(refused).reason}"
        return None

    async def _make(self, path: str, body: dict[str, Any]) -> Metadata | Refused:
        """Create the object, or return the existing object of that name."""
        try:
            return _meta(await self._api.post(path, body, STRICT))
        except ApiRefused as refused:
            if refused.code != 409:
                return refusals.of_create(refused)
        try:
            return _meta(await self._api.get(f"{path}/{body['metadata']['name']}"))
        except ApiRefused as refused:
            raise ClusterUnavailable(f"an object was deleted while we created it: {refused.status.reason}") from refused

    async def _put(self, path: str, body: dict[str, Any]) -> str | None:
        """Create or update the object. Returns None, or the text of the refusal. Another installation's object is not changed."""
        wanted = body["metadata"]
        whose = f"pool {wanted['labels'][names.POOL]!r}: " if names.POOL in wanted["labels"] else ""
        what = f"{whose}{body['kind']} {wanted['name']}"
        made = await self._make(path, body)
        if isinstance(made, Refused):
            return f"{what}: {made.reason}"
        if made.labels.get(names.INSTALL) != self._setup.install:
            return f"{what} is not this installation's"
        meta = {"uid": made.uid, "annotations": wanted.get("annotations", {})}
        try:
            await self._api.patch(f"{path}/{made.name}", {"metadata": meta, "spec": body["spec"]})
        except ApiRefused as refused:
            return f"{what}: {refusals.of_create(refused).reason}"
        return None

    # Dry runs

    async def check_pod(self, pod: dict[str, Any]) -> list[FieldProblem]:
        """Returns what the API server and its admission would refuse in this pod."""
        return await self._dry_run(f"{self._core}/pods", pod, lambda field: f"pod.{field}" if field else "pod")

    async def check_policies(self, pool: Pool) -> list[FieldProblem]:
        """Returns the same for the pool's network policies. It uses other names, because the real policies may exist already."""
        found: list[FieldProblem] = []
        for policy in policies.of_pool(msgspec.structs.replace(pool, id=f"{pool.id}-check"), self._setup):
            found += await self._dry_run(self._policies_path, policy, partial(policies.place, policy))
        return found

    async def _dry_run(self, path: str, body: dict[str, Any], place: Callable[[str], str]) -> list[FieldProblem]:
        try:
            await self._api.ask(path, body, {"dryRun": "All"} | STRICT)
        except ApiRefused as refused:
            return refusals.of_check(refused, place)
        return []

    # The mark

    async def remember(self, mark: Remembered) -> None:
        """Raise the stored mark to this one. It never decreases, even if other replicas write at the same time."""
        name = f"holdfast-{self._setup.install}-mark"
        for _ in range(TRIES):
            found = await self._mark()
            kept = _remembered(found) if found is not None else None
            higher = mark if kept is None else kept.raised_to(mark)
            if kept == higher:
                return
            data = {"install": higher.install, "mark": str(higher.mark), "epoch": str(higher.epoch)}
            meta: dict[str, Any] = {"name": name, "labels": self._ours}
            try:
                if found is None:
                    await self._api.post(f"{self._core}/configmaps", {"metadata": meta, "data": data})
                else:
                    meta["resourceVersion"] = found.metadata.resource_version
                    await self._api.put(f"{self._core}/configmaps/{name}", {"metadata": meta, "data": data})
                return
            except ApiRefused as refused:
                if refused.code not in (404, 409):
                    raise ClusterUnavailable(f"the mark was refused: {refused.status.reason}") from refused
            await asyncio.sleep(0)
        raise ClusterUnavailable(f"the mark was not stored: other replicas changed it {TRIES} times meanwhile")

    async def remembered(self) -> Remembered | None:
        found = await self._mark()
        return _remembered(found) if found is not None else None

    async def _mark(self) -> ConfigMap | None:
        try:
            content = await self._api.get(f"{self._core}/configmaps/holdfast-{self._setup.install}-mark")
        except ApiRefused as refused:
            if refused.code == 404:
                return None
            raise ClusterUnavailable(f"the mark cannot be read: {refused.status.reason}") from refused
        return msgspec.json.decode(content, type=ConfigMap)


def _meta(content: bytes) -> Metadata:
    return msgspec.json.decode(content, type=Named).metadata


def _remembered(found: ConfigMap) -> Remembered:
    try:
        return Remembered(found.data["install"], int(found.data["mark"]), int(found.data["epoch"]))
    except (KeyError, ValueError):
        # The ConfigMap was edited by hand. We must stop, because without the mark we cannot detect lost commits.
        raise ClusterUnavailable(f"the ConfigMap {found.metadata.name} does not hold a mark") from None
