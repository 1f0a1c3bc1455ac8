"""Finish what was decided about pools as a whole: drained ones are gone."""

from ..ports.store import PoolLoad
from .actions import Action, FinishPool
from .duty import Ports


class Pools:
    name = "pools"
    period = 5.0

    async def observe(self, ports: Ports) -> list[PoolLoad]:
        return await ports.store.pools.loads()

    def plan(self, seen: list[PoolLoad]) -> list[Action]:
        return [
            FinishPool(load.pool.id)
            for load in seen
            if load.pool.state == "draining"
            and load.spawning + load.warm + load.unusable + load.held + load.parked + load.retiring + load.waiting == 0
        ]
