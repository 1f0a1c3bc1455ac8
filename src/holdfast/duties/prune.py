"""Forget what nobody needs any more: old history, dead replicas, outputs."""

from .actions import Action, PruneHistory, PruneOutputs
from .duty import Ports

KEEP_DAYS = 7  # pinned by a test to be longer than a claim may be held and its key remembered


class Prune:
    name = "prune"
    period = 600.0

    async def observe(self, ports: Ports) -> set[str]:
        return await ports.store.history.live_outputs()

    def plan(self, seen: set[str]) -> list[Action]:
        return [PruneHistory(KEEP_DAYS), PruneOutputs(frozenset(seen))]
