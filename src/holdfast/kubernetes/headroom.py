"""Manage placeholders: pods of low priority that reserve room for a pool's next workers and are preempted when a worker needs it.

Their number is constant and set in the pool. Sizing it by demand would count parked workers and amplify every leak.
A placeholder has a worker's containers with the same resources, but they do nothing. Kubernetes therefore computes the same room
for it as for a worker, including defaults, sidecars and init containers.
"""

import itertools
from collections.abc import Sequence

import msgspec

from ..model.pool import Pool
from ..ports.cluster import ClusterUnavailable, Order
from . import names, refusals
from .api import Api, ApiRefused
from .shapes import Metadata, PodStatus
from .template import RESTRICTED, Json, Setup, manifest

COPIED = (
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "runtimeClassName", "schedulerName"),
    "resources",  # of the pod as a whole
)
STAYS, PASSES = ["sleep", "infinity"], ["true"]


class Placeholder(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: PodStatus = PodStatus()

    @property
    def leaving(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def useless(self) -> bool:
        """Returns whether it reserves no room, because it was preempted or evicted or is being deleted."""
        return self.leaving or self.status.phase in ("Succeeded", "Failed")


class Placeholders(msgspec.Struct, frozen=True):
    items: list[Placeholder] = []


class Headroom:
    def __init__(self, api: Api, namespace: str, setup: Setup) -> None:
        self._api, self._setup = api, setup
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    async def ensure(self, pools: Sequence[Pool]) -> list[str]:
        """Keep as many placeholders as each live pool wants, made from its current template, and delete all others. Returns the
        texts of the refusals. After a pool's first refused creation, no more are tried for this pool."""
        found = {each.metadata.name: each for each in await self._list()}
        wanted = [pool for pool in pools if pool.state == "live" and pool.spec.headroom.mode == "constant"]
        stems, kept = {pool.id: stem(pool, self._setup) for pool in wanted}, dict[str, list[str]]()
        for pool in wanted:
            useful = sorted(name for name, each in found.items() if name.startswith(stems[pool.id]) and not each.useless)
            kept[pool.id] = useful[: pool.spec.headroom.slots]
        keep = {name for each in kept.values() for name in each}
        going = [each.metadata for name, each in found.items() if name not in keep and not each.leaving]
        refused = [why for meta in going if (why := await self._delete(meta)) is not None]
        for pool in wanted:
            free = (name for n in itertools.count() if (name := f"{stems[pool.id]}{n}") not in found)
            for _ in range(pool.spec.headroom.slots - len(kept[pool.id])):
                if why := await self._create(placeholder(pool, next(free), self._setup)):
                    refused.append(f"pool {pool.name!r}: a placeholder: {why}")
                    break  # the others would be refused too
        return refused

    async def _list(self) -> list[Placeholder]:
        try:
            content = await self._api.get(self._pods, {"labelSelector": f"{names.HEADROOM}={self._setup.install}"})
        except ApiRefused as refused:
            raise ClusterUnavailable(f"the API server refused a list: {refused.status.reason}") from refused
        return msgspec.json.decode(content, type=Placeholders).items

    async def _create(self, body: Json) -> str | None:
        """Returns None, or the reason of the refusal."""
        try:
            await self._api.post(self._pods, body)
        except ApiRefused as refused:
            return refusals.of_create(refused).reason if refused.code != 409 else None  # 409: another replica was faster
        return None

    async def _delete(self, meta: Metadata) -> str | None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta.uid}}
        try:
            await self._api.delete(f"{self._pods}/{meta.name}", options)
        except ApiRefused as refused:
            if refused.code not in (404, 409):
                return f"pool {meta.labels.get(names.POOL)!r}: the deletion of {meta.name}: {refusals.of_create(refused).reason}"
        return None


def stem(pool: Pool, setup: Setup) -> str:
    """Returns the name prefix of the pool's placeholders. It contains a hash of their spec, so it changes with the spec."""
    shape = msgspec.json.encode(_shape(pool, setup), order="sorted").decode()
    return f"holdfast-headroom-{names.digest(setup.install, pool.id, shape)}-"


def placeholder(pool: Pool, name: str, setup: Setup) -> Json:
    """Returns a placeholder that requests a worker's resources, fits on the same nodes, and ends without grace."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            # It must not have the workers' label, so that no code takes it for a worker.
            "labels": {names.HEADROOM: setup.install, names.POOL: pool.name},
            "annotations": {names.SAFE_TO_EVICT: "true"},
        },
        "spec": _shape(pool, setup),
    }


def _shape(pool: Pool, setup: Setup) -> Json:
    worker = manifest(Order(worker="", pool=pool, epoch=0), setup, "")["spec"]
    return {
        **{key: worker[key] for key in COPIED if key in worker},
        "priorityClassName": setup.headroom_class,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "initContainers": [_empty(f"init-{n}", each, setup) for n, each in enumerate(worker.get("initContainers") or [])],
        "containers": [_empty(f"room-{n}", each, setup, STAYS) for n, each in enumerate(worker["containers"])],
    }


def _empty(name: str, container: Json, setup: Setup, command: list[str] | None = None) -> Json:
    """Returns an idle container with these resources. A sidecar keeps running, and an init container exits immediately."""
    sidecar = {"restartPolicy": "Always"} if container.get("restartPolicy") == "Always" else {}
    resources = container.get("resources") or {}
    return {
        "name": name,
        "image": setup.agent_image,
        "command": command or (STAYS if sidecar else PASSES),
        "resources": {key: resources[key] for key in ("requests", "limits") if key in resources},
        "securityContext": RESTRICTED,
        **sidecar,
    }
