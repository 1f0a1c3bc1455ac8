"""Placeholders: pods of low priority that keep room for a pool's next workers, and give it up the moment one needs it.

A constant number, which the pool says. Sizing it by demand would count parked workers and amplify every leak.
A placeholder has the containers of a worker with their resources, and nothing in them: so Kubernetes itself counts its room as it
counts a worker's, with what it defaults, sidecars, init containers and all.
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
        """Preempted, evicted, or on its way out: it keeps no room."""
        return self.leaving or self.status.phase in ("Succeeded", "Failed")


class Placeholders(msgspec.Struct, frozen=True):
    items: list[Placeholder] = []


class Headroom:
    def __init__(self, api: Api, namespace: str, setup: Setup) -> None:
        self._api, self._setup = api, setup
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    async def ensure(self, pools: Sequence[Pool]) -> list[str]:
        """As many as each live pool says, of its present template; all others go. What was refused, a word for each pool."""
        found = {each.metadata.name: each for each in await self._list()}
        wanted = [pool for pool in pools if pool.state == "live" and pool.spec.headroom.mode == "constant"]
        stems, kept = {pool.id: stem(pool, self._setup) for pool in wanted}, dict[str, list[str]]()
        for pool in wanted:
            useful = sorted(name for name, each in found.items() if name.startswith(stems[pool.id]) and not each.useless)
            kept[pool.id] = useful[: pool.spec.headroom.slots]
        keep = {name for each in kept.values() for name in each}
        going = [each.metadata for name, each in found.items() if name not in keep and not each.leaving]
        said = [why for meta in going if (why := await self._delete(meta)) is not None]
        for pool in wanted:
            free = (name for n in itertools.count() if (name := f"{stems[pool.id]}{n}") not in found)
            for _ in range(pool.spec.headroom.slots - len(kept[pool.id])):
                if why := await self._create(placeholder(pool, next(free), self._setup)):
                    said.append(f"pool {pool.name!r}: a placeholder: {why}")
                    break  # the others would be too
        return said

    async def _list(self) -> list[Placeholder]:
        try:
            content = await self._api.get(self._pods, {"labelSelector": f"{names.HEADROOM}={self._setup.install}"})
        except ApiRefused as refused:
            raise ClusterUnavailable(f"the API server refused a list: {refused.status.reason}") from refused
        return msgspec.json.decode(content, type=Placeholders).items

    async def _create(self, body: Json) -> str | None:
        """None, or why not."""
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
    """How the names of its placeholders begin: another for every other shape."""
    shape = msgspec.json.encode(_shape(pool, setup), order="sorted").decode()
    return f"holdfast-headroom-{names.digest(setup.install, pool.id, shape)}-"


def placeholder(pool: Pool, name: str, setup: Setup) -> Json:
    """It asks for what a worker asks for, goes where a worker could go, and is gone at once when it must."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            # Not the label of workers: a placeholder is none, and nothing that looks at workers may see it.
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
    """As large as this container, in its order: a sidecar stays, and what a worker runs before it starts passes."""
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
