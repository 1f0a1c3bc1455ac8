"""The simulated holders: each row of the trace claims a worker at its time, waits for it, holds it, and releases it."""

import asyncio
from typing import Any

from ..model.pool import PoolSpec
from ..sim.network import Network
from ..sim.operator import ADMIN
from ..sim.process import SimResponse
from .agenda import Agenda
from .agent import Defect
from .meter import Meter
from .trace import Arrival

LONG_POLL = "60s"
DEADLINE = "1h"  # the server's default


class Holders:
    def __init__(self, pool: str, spec: PoolSpec, network: Network, agenda: Agenda, meter: Meter) -> None:
        self._pool = pool
        self._spec = spec
        self._network = network
        self._agenda = agenda
        self._meter = meter
        self.waiting = 0  # claims without a worker

    async def follow(self, arrival: Arrival) -> None:
        """Runs one claim from its arrival to its end."""
        requested = self._agenda.now()
        self.waiting += 1
        claim = await self._ask(arrival)
        self.waiting -= 1
        self._meter.waits.append(self._agenda.now() - requested)
        if claim["state"] == "ended" and claim["outcome"] == "refused":
            self._meter.refused += 1
            return
        since = self._agenda.now()
        if self._spec.mode == "job" and self._spec.worker.agent:
            await self._agenda.after(arrival.seconds)  # the agent ends the claim
        else:
            await self._hold(claim, arrival.seconds)
        self._meter.held(since)

    async def _ask(self, arrival: Arrival) -> dict[str, Any]:
        body: dict[str, Any] = {"pool": self._pool, "tenant": arrival.tenant, "priority": arrival.priority}
        body |= {"payload": {"seconds": arrival.seconds}, "wait": LONG_POLL, "deadline": DEADLINE}
        if self._spec.mode == "job" and self._spec.worker.agent and not self._spec.worker.run:
            body["command"] = ["work"]
        claim = (await self._call("POST", "/v1/claims", body)).body
        while claim["state"] not in ("active", "ended"):
            claim = (await self._call("GET", f"/v1/claims/{claim['id']}", query=f"wait={LONG_POLL}")).body
        found: dict[str, Any] = claim
        return found

    async def _hold(self, claim: dict[str, Any], seconds: float) -> None:
        done, lease = self._agenda.after(seconds), self._spec.lease
        while not done.done():
            await asyncio.wait([done], timeout=lease / 3 if lease is not None else None)  # the SDK renews at the same rate
            if not done.done():
                await self._call("POST", f"/v1/claims/{claim['id']}/renew", {"fence": claim["fence"]})
        await self._call("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]})

    async def _call(self, method: str, path: str, body: Any = None, query: str = "") -> SimResponse:
        answer = await self._network.call(method, path, ADMIN, body, query=query)
        if answer.status >= 300:
            raise Defect(f"{method} {path} was answered {answer.status}: {answer.body}")
        return answer
