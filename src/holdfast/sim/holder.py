"""Simulate holders: tenants' programs that request workers, renew, release, disappear, and send requests twice."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

from .book import Book, Broken
from .network import Network
from .process import SimResponse, Unreachable

PATIENCE = 600.0  # seconds after which a holder stops waiting for its claim's end


class Holder:
    """One tenant's program. It starts new stories until `stopping` is set, and then finishes the current one."""

    def __init__(
        self,
        tenant: str,
        token: str,
        network: Network,
        book: Book,
        source: random.Random,
        ended: Callable[[str], bool],
        pace: float = 12.0,
    ) -> None:
        self.tenant = tenant
        self._token = token
        self._network = network
        self._book = book
        self._source = source
        self._ended = ended  # returns whether this claim has ended in the database
        self._pace = pace
        self._count = 0
        self.stopping = False

    async def run(self) -> None:
        common = (self._job, self._job, self._session, self._session, self._twice, self._vanish, self._cancel, self._bare)
        stories = common + common + (self._keep, self._bad_payload)
        while not self.stopping:
            await asyncio.sleep(self._source.expovariate(1 / self._pace))
            if not self.stopping:
                await self._source.choice(stories)()

    # Stories

    async def _job(self) -> None:
        """Submit a job, and wait until it has ended."""
        body: dict[str, Any] = {"pool": "job", "command": ["work"], "payload": self._work(), "wait": "20s", "deadline": "300s"}
        if self._source.random() < 0.4:
            body["retry"], body["payload"]["retry"] = "lost", True
        if self._source.random() < 0.5:
            body["key"] = self._key()
        claim = await self._ask(body)
        if claim is not None:
            await self._see_it_end(claim["id"])

    async def _bad_payload(self) -> None:
        """Submit a job whose activation always fails. It must be refused, and must not hold up other claims."""
        payload = {**self._work(), "bad": True}
        claim = await self._ask({"pool": "job", "command": ["work"], "payload": payload, "wait": "20s", "deadline": "300s"})
        if claim is not None:
            await self._see_it_end(claim["id"])

    async def _bare(self) -> None:
        """Use a worker without an agent, and release it when the work is done."""
        claim = await self._ask({"pool": "bare", "wait": "30s", "deadline": "200s"})
        if claim is not None and claim["state"] == "active":
            await asyncio.sleep(self._source.uniform(1, 60))
            await self._release(claim["id"], claim["fence"])
        elif claim is not None:
            await self._give_up(claim["id"])

    async def _session(self) -> None:
        """Hold a worker, renew the claim, and release it: sometimes late, sometimes twice, sometimes with an old fence."""
        claim = await self._ask({"pool": "box", "wait": "30s", "deadline": "120s", "key": self._key()})
        if claim is None or claim["state"] != "active":
            if claim is not None:
                await self._give_up(claim["id"])
            return
        until = _now() + self._source.uniform(2, 90)
        while _now() < until:
            late = self._source.random() < 0.05
            await asyncio.sleep(self._source.uniform(20, 60) if late else self._source.uniform(3, 9))
            if not await self._renew(claim["id"], claim["fence"]):
                return
        if self._source.random() < 0.3:
            await self._release_with_an_old_fence(claim["id"], claim["fence"])
        for _ in range(self._source.choice((1, 1, 2))):
            await self._release(claim["id"], claim["fence"])

    async def _keep(self) -> None:
        """Renew a claim and never release it, because its longest duration must end it."""
        claim = await self._ask({"pool": "box", "wait": "30s", "deadline": "60s"})
        while claim is not None and claim["state"] == "active" and await self._renew(claim["id"], claim["fence"]):
            await asyncio.sleep(self._source.uniform(5, 9))

    async def _vanish(self) -> None:
        """Get a session and never renew or release it, because its lease must end it."""
        await self._ask({"pool": "box", "wait": "30s", "deadline": "60s"})

    async def _twice(self) -> None:
        """Send the same request with one key twice at the same time, and then a different request with that key."""
        body = {"pool": "job", "command": ["work"], "payload": self._work(), "wait": "5s", "deadline": "300s", "key": self._key()}
        await asyncio.gather(self._ask(body), self._ask(body))
        other = await self._call("POST", "/v1/claims", {**body, "command": ["other"]})
        if other is not None and other.status < 300 and (self.tenant, body["key"]) in self._book.keys:
            raise Broken("P1", f"another request by key {body['key']} of {self.tenant} was accepted")

    async def _cancel(self) -> None:
        claim = await self._ask({"pool": "job", "command": ["work"], "payload": self._work(), "wait": "1s", "deadline": "300s"})
        if claim is not None:
            await asyncio.sleep(self._source.uniform(0, 5))
            await self._give_up(claim["id"])

    # Requests

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the claim when it is active or ended or has waited long enough. Returns None if no answer named a claim."""
        answer = await self._call("POST", "/v1/claims", body, again=3 if "key" in body else 1)
        if answer is None or answer.status >= 300:
            return None
        claim: dict[str, Any] = answer.body
        self._book.answered(claim["id"], self.tenant, body.get("key"))
        for _ in range(20):
            if claim["state"] in ("active", "ended") or body["pool"] == "job":
                break
            seen = await self._call("GET", f"/v1/claims/{claim['id']}", query="wait=15s")
            if seen is not None and seen.status == 200:
                claim = seen.body
        self._learns(claim)
        return claim

    def _learns(self, claim: dict[str, Any]) -> None:
        """Check P3: whatever shows a holder its active claim also shows whether the worker is protected."""
        if claim["state"] == "active" and claim.get("protected") is None:
            raise Broken("P3", f"the holder of {claim['id']} does not learn whether its worker is protected")

    async def _see_it_end(self, claim: str) -> None:
        began = _now()
        while _now() - began < PATIENCE and not self.stopping:
            seen = await self._call("GET", f"/v1/claims/{claim}", query="wait=30s&until=ended")
            if seen is not None and seen.status == 404 and claim not in self._book.forgotten:
                raise Broken("P8", f"{claim} was accepted, but the server no longer knows it")
            if seen is not None and (seen.status == 404 or seen.body.get("state") == "ended"):
                return
            await asyncio.sleep(1)

    async def _renew(self, claim: str, fence: int) -> bool:
        over, sent = self._ended(claim), _now()
        answer = await self._call("POST", f"/v1/claims/{claim}/renew", {"fence": fence})
        if answer is not None and answer.status == 200:
            if over:
                raise Broken("P8", f"a renewal of {claim} was accepted, which had ended before")
            self._learns(answer.body)
            self._book.renewed[claim] = max(sent, self._book.renewed.get(claim, sent))
        return answer is None or answer.status in (200, 503)

    async def _release(self, claim: str, fence: int) -> None:
        self._book.released[claim] = fence
        await self._call("POST", f"/v1/claims/{claim}/release", {"fence": fence}, again=3)

    async def _release_with_an_old_fence(self, claim: str, fence: int) -> None:
        over = self._ended(claim)
        answer = await self._call("POST", f"/v1/claims/{claim}/release", {"fence": fence - 1})
        if answer is not None and answer.status == 200 and not over:
            raise Broken("P1", f"{claim} was released with fence {fence - 1}, and its fence is {fence}")

    async def _give_up(self, claim: str) -> None:
        await self._call("POST", f"/v1/claims/{claim}/cancel", {}, again=5)

    async def _call(self, method: str, path: str, body: Any = None, query: str = "", again: int = 1) -> SimResponse | None:
        for _ in range(again):
            with contextlib.suppress(Unreachable):
                answer = await self._network.call(method, path, self._token, body, query=query)
                if answer.status == 500:
                    raise Broken("P8", f"{method} {path} answered 500: {answer.body}")
                if answer.status != 503:
                    return answer
            await asyncio.sleep(self._source.uniform(0.2, 4))
        return None

    def _work(self) -> dict[str, Any]:
        seconds = self._source.choice((0.5, 2.0, 10.0, 60.0))
        return {"seconds": seconds, "exit": self._source.choice((0, 0, 0, 1))}

    def _key(self) -> str:
        self._count += 1
        return f"k-{self._count}"


def _now() -> float:
    return asyncio.get_running_loop().time()
