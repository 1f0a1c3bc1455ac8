"""Simulate the operator, who creates pools, tenants and tokens at the start, and then rolls out, freezes and uses force."""

import asyncio
import contextlib
import random
from typing import Any

from ..api.auth import hash_token
from .gate import Gate
from .network import Network
from .process import SimResponse, Unreachable

ADMIN = "hf_the-operator"
TENANTS: dict[str, dict[str, Any]] = {"ann": {"maxClaims": 5}, "bob": {"maxClaims": 3, "weight": 2}, "cyd": {}}
DRAIN = {"grace": "60s"}
POOLS: dict[str, dict[str, Any]] = {
    "job": {"mode": "job", "warm": 3, "max": 8, "startTimeout": "60s", "drain": DRAIN, "claim": {"maxDuration": "5m"}},
    "box": {
        "mode": "session",
        "warm": 2,
        "max": 7,
        "startTimeout": "60s",
        "drain": DRAIN,
        "worker": {"serve": ["serve"], "reset": ["reset"]},
        "claim": {"lease": "30s", "maxDuration": "4m"},
        "park": {"ttl": "40s", "maxTTL": "5m"},
    },
    "bare": {
        "mode": "job",
        "warm": 1,
        "max": 3,
        "startTimeout": "60s",
        "drain": DRAIN,
        "worker": {"run": ["work"], "agent": False},
        "claim": {"maxDuration": "3m"},
    },
}
HAND_OUT = "INSERT INTO holdfast.token (id, hash, name, role, tenant, created_at) VALUES ($1, $2, $3, $4, $5, holdfast.now())"


def token_of(tenant: str) -> str:
    return f"hf_tenant-{tenant}"


class Operator:
    def __init__(self, network: Network, source: random.Random) -> None:
        self._network = network
        self._source = source
        self.specs = {name: dict(spec) for name, spec in POOLS.items()}

    def hand_out_tokens(self, gate: Gate) -> None:
        gate.postgres.ask(gate.clock(), HAND_OUT, "t-0", hash_token(ADMIN), "operator", "admin", None)
        for number, tenant in enumerate(TENANTS, 1):
            gate.postgres.ask(gate.clock(), HAND_OUT, f"t-{number}", hash_token(token_of(tenant)), tenant, "tenant", tenant)

    async def prepare(self) -> None:
        for tenant, spec in TENANTS.items():
            await self._insist("PUT", f"/v1/tenants/{tenant}", spec)
        for name in self.specs:
            await self._insist("PUT", f"/v1/pools/{name}", self.specs[name])

    async def roll_out(self, name: str) -> None:
        """Change a pool's template. Free workers are then replaced, and busy workers finish."""
        worker = dict(self.specs[name].get("worker", {}))
        worker["activate"] = [f"v{self._source.randint(1, 10**6)}"]
        self.specs[name] = {**self.specs[name], "worker": worker}
        await self._insist("PUT", f"/v1/pools/{name}", self.specs[name])

    async def resize(self, name: str, more: int) -> None:
        """Let a pool keep this many warm workers more than at the start. Going back leaves a surplus, which must shrink."""
        self.specs[name] = {**self.specs[name], "warm": POOLS[name]["warm"] + more}
        await self._insist("PUT", f"/v1/pools/{name}", self.specs[name])

    async def freeze(self, name: str, on: bool) -> None:
        await self._insist("POST", f"/v1/pools/{name}/{'freeze' if on else 'thaw'}", {"reason": "simulated"} if on else {})

    async def delete_pool(self, name: str) -> None:
        """Delete a pool and create a new pool with the same name soon after."""
        await self._insist("DELETE", f"/v1/pools/{name}")
        await asyncio.sleep(self._source.uniform(0, 10))
        await self._insist("PUT", f"/v1/pools/{name}", self.specs[name])

    async def force_release(self, pick: float, claim: str | None) -> None:
        with contextlib.suppress(Unreachable):
            chosen = claim or await self._one("/v1/claims", "state=active", pick)
            if chosen is not None:
                await self._call("POST", f"/v1/claims/{chosen}/release", {"force": True, "reason": "simulated"})

    async def retire(self, pick: float, worker: str | None) -> None:
        with contextlib.suppress(Unreachable):
            chosen = worker or await self._one("/v1/workers", "", pick)
            if chosen is not None:
                await self._call("POST", f"/v1/workers/{chosen}/retire", {"reason": "simulated"})

    async def settle(self) -> None:
        """Do what only a person may do after everything healed: thaw the pools and release the brake."""
        for name in self.specs:
            await self._insist("PUT", f"/v1/pools/{name}", self.specs[name])
            await self._insist("POST", f"/v1/pools/{name}/thaw", {})
        await self.release_brake()

    async def give_up(self) -> None:
        """Give up the workers that are unconfirmed after lost commits and have no agent. An agent decides by its report."""
        answer = await self._call("GET", "/v1/recovery")
        for left in answer.body["items"] if answer.status == 200 else []:
            if left["pool"] == "bare" and left["claim_state"] != "active":
                await self._call("POST", f"/v1/recovery/{left['worker']}", {"decision": "give-up", "reason": "simulated"})

    async def release_brake(self, tenant: str | None = None) -> None:
        whose = {} if tenant is None else {"tenant": tenant}
        await self._insist("POST", "/v1/brake/release", {"reason": "simulated: looked at it"} | whose)

    async def _one(self, path: str, query: str, pick: float) -> str | None:
        answer = await self._call("GET", path, query=query)
        ids: list[str] = [item["id"] for item in answer.body["items"]] if answer.status == 200 else []
        return ids[int(pick * len(ids))] if ids else None

    async def _insist(self, method: str, path: str, body: Any = None) -> None:
        while True:
            with contextlib.suppress(Unreachable):
                answer = await self._call(method, path, body)
                if answer.status < 500:
                    assert answer.status < 300 or answer.status in (404, 409), answer
                    return
            await asyncio.sleep(1)

    async def _call(self, method: str, path: str, body: Any = None, query: str = "") -> SimResponse:
        return await self._network.call(method, path, ADMIN, body, query=query)
