"""Placeholders: pods of low priority that keep room for a pool's next workers, and give it up the moment one needs it.

A constant number, which the pool says. Sizing it by demand would count parked workers and amplify every leak.
"""

import msgspec

from ..model.pool import Pool
from ..ports.cluster import ClusterUnavailable
from . import names
from .api import Api, ApiRefused
from .shapes import Metadata, PodStatus
from .template import RESTRICTED, Json, Setup

COPIED = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "runtimeClassName", "schedulerName")


class Placeholder(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: PodStatus = PodStatus()

    @property
    def useless(self) -> bool:
        """Preempted, evicted, or on its way out: it keeps no room."""
        return self.status.phase in ("Succeeded", "Failed")


class Placeholders(msgspec.Struct, frozen=True):
    items: list[Placeholder] = []


class Headroom:
    def __init__(self, api: Api, namespace: str, setup: Setup) -> None:
        self._api, self._setup = api, setup
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    async def ensure(self, pools: list[Pool]) -> None:
        """As many as each live pool says, of its present template; all others go."""
        wanted = {}
        for pool in pools:
            if pool.state == "live" and pool.spec.headroom.mode == "constant":
                for number in range(pool.spec.headroom.slots):
                    body = placeholder(pool, number, self._setup)
                    wanted[body["metadata"]["name"]] = body
        there = set()
        for found in await self._list():
            if found.metadata.name in wanted and not found.useless:
                there.add(found.metadata.name)
            elif found.metadata.deletion_timestamp is None:
                await self._delete(found.metadata)
        for name, body in wanted.items():
            if name not in there:
                await self._create(body)

    async def _list(self) -> list[Placeholder]:
        try:
            content = await self._api.get(self._pods, {"labelSelector": f"{names.HEADROOM}={self._setup.install}"})
        except ApiRefused as refused:
            raise ClusterUnavailable(f"the API server refused a list: {refused.status.reason}") from refused
        return msgspec.json.decode(content, type=Placeholders).items

    async def _create(self, body: Json) -> None:
        try:
            await self._api.post(self._pods, body)
        except ApiRefused as refused:
            if refused.code != 409:  # one of that name is still on its way out
                raise ClusterUnavailable(f"a placeholder was refused: {refused.status.message[:300]}") from refused

    async def _delete(self, meta: Metadata) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta.uid}}
        try:
            await self._api.delete(f"{self._pods}/{meta.name}", options)
        except ApiRefused as refused:
            if refused.code not in (404, 409):
                raise ClusterUnavailable(f"the API server refused a deletion: {refused.status.reason}") from refused


def placeholder(pool: Pool, number: int, setup: Setup) -> Json:
    """It asks for what a worker asks for, goes where a worker could go, and is gone at once when it must."""
    template = pool.spec.pod.get("spec") or {}
    containers = [
        {
            "name": f"room-{n}",
            "image": setup.agent_image,
            "command": ["sleep", "infinity"],
            "resources": {"requests": (each.get("resources") or {}).get("requests") or {}},
            "securityContext": RESTRICTED,
        }
        for n, each in enumerate(template.get("containers") or [])
    ]
    stem = names.digest(setup.install, pool.id, pool.revision)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"holdfast-headroom-{stem}-{number}",
            # Not the label of workers: a placeholder is none, and nothing that looks at workers may see it.
            "labels": {names.HEADROOM: setup.install, names.POOL: pool.name},
            "annotations": {names.SAFE_TO_EVICT: "true"},
        },
        "spec": {
            **{key: template[key] for key in COPIED if key in template},
            "priorityClassName": setup.headroom_class,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Always",
            "containers": containers,
        },
    }
