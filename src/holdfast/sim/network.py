"""The network between holders, agents and replicas. A call goes to any running replica; requests and answers can be lost."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from .process import ReplicaProcess, SimResponse, Unreachable


class Network:
    def __init__(self, processes: list[ReplicaProcess], source: random.Random) -> None:
        self._processes = processes
        self._source = source
        self.lossy = 0.0  # share of requests that are lost or whose answers are lost

    async def call(
        self, method: str, path: str, token: str, body: Any = None, cut: Callable[[], bool] = lambda: False, query: str = ""
    ) -> SimResponse:
        await asyncio.sleep(self._source.uniform(0.0005, 0.005))
        lost = self._source.random() if self.lossy else 1.0
        if cut() or lost < self.lossy / 2:
            await asyncio.sleep(self._source.uniform(0.1, 5.0))
            raise Unreachable("the request was lost")
        up = [process for process in self._processes if process.up]
        if not up:
            raise Unreachable("no replica is running")
        answer = await self._source.choice(up).request(method, path, token, body, query)
        await asyncio.sleep(self._source.uniform(0.0005, 0.005))
        if cut() or lost < self.lossy:
            raise Unreachable("the answer was lost")
        return answer
