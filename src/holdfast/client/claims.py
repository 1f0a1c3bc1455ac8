"""The doors to claims: ask, wait, renew, release, cancel, read the output."""

import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Literal, Unpack

from holdfast.model.duration import seconds

from .answers import Claim, Page
from .endpoints import Endpoints, at
from .output import read_output, unheard
from .requests import ClaimOptions, ClaimRequest

LONG_POLL = "30s"
SHORTEST_POLL = 0.2  # seconds between two polls, should a server answer at once without news


class ClaimDoors(Endpoints):
    async def claim(self, pool: str, *, wait: str = "10s", **options: Unpack[ClaimOptions]) -> Claim:
        """Ask for a worker. Without a key one is made, so that a lost answer can be asked for again."""
        key = options.get("key") or f"made-{uuid.uuid4().hex}"
        given = {name: value for name, value in options.items() if name != "key"}
        request = ClaimRequest(pool=pool, wait=wait, key=key, **given)  # type: ignore[arg-type]
        return await self.ask(Claim, "POST", at("claims"), body=request, safe=True, wait=seconds(wait))

    async def list_claims(
        self,
        *,
        pool: str | None = None,
        tenant: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | int | None = None,
    ) -> Page[Claim]:
        """Newest first."""
        params = {"pool": pool, "tenant": tenant, "state": state, "limit": limit, "cursor": cursor}
        return await self.ask(Page[Claim], "GET", at("claims"), params=params)

    async def get_claim(self, claim: str, *, wait: str | None = None, until: Literal["active", "ended"] | None = None) -> Claim:
        """One claim; with `wait` the answer comes when it is active or ended, or only when it ended."""
        held = seconds(wait) if wait is not None else 0.0
        return await self.ask(Claim, "GET", at("claims", claim), params={"wait": wait, "until": until}, wait=held)

    async def until(
        self,
        claim: Claim,
        state: Literal["active", "ended"],
        *,
        poll: str = LONG_POLL,
        news: Callable[[Claim], object] = lambda _: None,
    ) -> Claim:
        """Wait, however long it takes, until the claim is there or has ended; `news` hears every answer."""
        while not (claim.ended or claim.state == state):
            asked_at = self.transport.clock()
            claim = await self.get_claim(claim.id, wait=poll, until=state)
            news(claim)
            early = SHORTEST_POLL - (self.transport.clock() - asked_at)
            if early > 0 and not (claim.ended or claim.state == state):
                await self.transport.sleep(early)
        return claim

    async def renew(self, claim: str, fence: int) -> Claim:
        """A new `lease_until`; Conflict when the claim ended or the fence is old."""
        return await self.ask(Claim, "POST", at("claims", claim, "renew"), body={"fence": fence}, safe=True)

    async def release(self, claim: str, *, fence: int | None = None, force: bool = False, reason: str = "") -> Claim:
        """End it. Asked again after a lost answer: an ended claim is ended for good, so that harms nobody."""
        body = {"force": force, "reason": reason} | ({} if fence is None else {"fence": fence})
        return await self.ask(Claim, "POST", at("claims", claim, "release"), body=body, safe=True)

    async def cancel(self, claim: str, *, reason: str = "") -> Claim:
        """End it wherever it is. Safe to ask again, like `release`."""
        return await self.ask(Claim, "POST", at("claims", claim, "cancel"), body={"reason": reason}, safe=True)

    def output(
        self, claim: str, *, offset: int = 0, follow: bool = True, truncated: Callable[[int], object] = unheard
    ) -> AsyncGenerator[bytes, None]:
        """What the job wrote, from `offset`; with `follow` until the claim has ended, whatever breaks. Where it wrote more than
        is kept, `truncated` is called once with the number of bytes that are."""
        return read_output(self, claim, offset, follow, truncated)
