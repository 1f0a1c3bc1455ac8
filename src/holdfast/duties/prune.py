"""Remove what is no longer needed: old history, dead replicas, outputs."""

from .actions import Action, PruneHistory, PruneOutputs
from .duty import Ports

OUTPUT_SECONDS = 24 * 3600.0  # an output is kept for this long after its claim's end
KEEP_DAYS = 7  # a test checks that this is longer than the longest claim plus the time for which its key is kept


class Prune:
    name = "prune"
    period = 600.0

    async def observe(self, ports: Ports) -> set[str] | None:
        """Returns the claims whose outputs are kept, or None when the database lost commits and may not know all of them."""
        state = await ports.store.recovery.state()
        # Both times must be over, because a jump of the database's clock must not remove the outputs of unknown claims.
        if state.recovering or (state.recovered_ago is not None and min(state.recovered_ago, state.age) < OUTPUT_SECONDS):
            return None
        sizes = await ports.cluster.output_sizes()
        too_much = await ports.store.history.excess_outputs(sizes) if sizes else set()
        return await ports.store.history.live_outputs() - too_much

    def plan(self, observed: set[str] | None) -> list[Action]:
        return [PruneHistory(KEEP_DAYS)] if observed is None else [PruneHistory(KEEP_DAYS), PruneOutputs(frozenset(observed))]
