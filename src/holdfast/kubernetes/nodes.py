"""Know which nodes take no new work, because they are cordoned or Karpenter or cluster-autoscaler is about to remove them."""

import time
from collections.abc import Callable

import msgspec

from . import names
from .api import Api
from .informer import Informer
from .shapes import Metadata

OLD = 10.0  # seconds for which a list of nodes is used while there is no watch


class Taint(msgspec.Struct, frozen=True):
    key: str = ""
    effect: str = ""


class NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False
    taints: list[Taint] = []


class NodeObject(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()

    @property
    def leaving(self) -> bool:
        return self.spec.unschedulable or any(taint.key in names.DISRUPTION_TAINTS for taint in self.spec.taints)


class Nodes:
    def __init__(self, api: Api, changed: Callable[[set[str]], None]) -> None:
        self._changed = changed
        self._informer = Informer(api, "/api/v1/nodes", None, NodeObject, self._look)
        self._before: frozenset[str] = frozenset()
        self._listed: tuple[float, frozenset[str]] | None = None

    async def run(self) -> None:
        await self._informer.run()

    async def cordoned(self) -> frozenset[str]:
        if self._informer.fresh:
            return self._before  # kept up to date by _look, because every claim calls this and must not scan all nodes
        if self._listed is None or time.monotonic() - self._listed[0] > OLD:
            found, _ = await self._informer.list()
            self._listed = time.monotonic(), frozenset(name for name, node in found.items() if node.leaving)
        return self._listed[1]

    def _look(self, names: set[str]) -> None:
        known = self._informer.known()
        leaving = frozenset(name for name in names if name in known and known[name].leaving)
        if changed := leaving ^ (self._before & names):
            self._before ^= changed
            self._changed(set(changed))
