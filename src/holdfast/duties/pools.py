"""Keep what pools need as a whole: objects beside their pods; and drained pools are gone."""

from ..ports.store import PoolLoad
from .actions import Action, Ensure, FinishPool
from .duty import Ports


class Pools:
    name = "pools"
    period = 5.0

    async def observe(self, ports: Ports) -> list[PoolLoad]:
        return await ports.store.pools.loads()

    def plan(self, seen: list[PoolLoad]) -> list[Action]:
        finished: list[Action] = [
            FinishPool(load.pool.id)
            for load in seen
            if load.pool.state == "draining"
            and load.spawning + load.warm + load.unusable + load.held + load.parked + load.retiring + load.waiting == 0
        ]
        return [Ensure(tuple(load.pool for load in seen)), *finished]
