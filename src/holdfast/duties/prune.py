"""Forget what nobody needs any more: old history, dead replicas, outputs."""

from .actions import Action, PruneHistory, PruneOutputs
from .duty import Ports

OUTPUT_SECONDS = 24 * 3600.0  # how long an output is kept after its claim's end
KEEP_DAYS = 7  # pinned by a test to be longer than a claim may be held and its key remembered


class Prune:
    name = "prune"
    period = 600.0

    async def observe(self, ports: Ports) -> set[str] | None:
        """Which outputs are to be kept; None: a database that lost commits does not know."""
        state = await ports.store.recovery.state()
        if state.recovering or (state.recovered_ago is not None and state.recovered_ago < OUTPUT_SECONDS):
            return None
        return await ports.store.history.live_outputs()

    def plan(self, observed: set[str] | None) -> list[Action]:
        return [PruneHistory(KEEP_DAYS)] if observed is None else [PruneHistory(KEEP_DAYS), PruneOutputs(frozenset(observed))]
