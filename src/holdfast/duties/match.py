"""Pair waiting claims with free workers. This is the fallback for pairs that the claim path did not make itself."""

from .actions import Action, Match
from .duty import Ports


class MatchDuty:
    name = "match"
    period = 1.0

    async def observe(self, ports: Ports) -> list[str]:
        return await ports.store.pools.demand()

    def plan(self, observed: list[str]) -> list[Action]:
        return [Match(pool_id) for pool_id in observed]
