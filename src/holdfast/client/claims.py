"""The endpoints for claims: create, wait, renew, release, cancel, send input, read the output."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from datetime import datetime
from typing import Literal, Unpack

from holdfast.model.duration import seconds

from .answers import Claim, Page
from .endpoints import Endpoints, LabelFilter, at, label_filter, moment
from .inputs import InputState, send_input
from .output import OutputPiece, ignore_truncation, read_bytes, read_pieces
from .requests import ClaimOptions, ClaimRequest

LONG_POLL = "30s"
SHORTEST_POLL = 0.2  # seconds between two polls, also if a server answers at once although nothing changed


def _id(claim: str | Claim) -> str:
    return claim if isinstance(claim, str) else claim.id


def _fence(claim: str | Claim, fence: int | None) -> int | None:
    return fence if fence is not None or isinstance(claim, str) else claim.fence


class ClaimEndpoints(Endpoints):
    """`claim` is always an id, or a claim that another call returned."""

    async def claim(self, pool: str, *, wait: str = "10s", **options: Unpack[ClaimOptions]) -> Claim:
        """Claims a worker. Without a key a random one is used, so that the request can be repeated after a lost answer."""
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
        outcome: str | None = None,
        key: str | None = None,
        worker: str | None = None,
        since: str | datetime | None = None,
        labels: LabelFilter = None,
        limit: int | None = None,
        cursor: str | int | None = None,
    ) -> Page[Claim]:
        """Returns a page of claims, newest first. `since` is a duration such as `10m` (so long ago) or a time. `labels` are those
        that a claim must have; the value None stands for any value."""
        params: dict[str, str | int | None] = {"pool": pool, "tenant": tenant, "state": state, "outcome": outcome}
        params |= {"key": key, "worker": worker, "since": moment(since), "label": label_filter(labels), "limit": limit}
        params["cursor"] = cursor
        return await self.page(Page[Claim], at("claims"), params)

    async def get_claim(
        self, claim: str | Claim, *, wait: str | None = None, until: Literal["active", "ended"] | None = None
    ) -> Claim:
        """Returns one claim. With `wait` the server answers when the claim is active or ended (`until="ended"`: only when it has
        ended), or when that time is over."""
        held = seconds(wait) if wait is not None else 0.0
        return await self.ask(Claim, "GET", at("claims", _id(claim)), params={"wait": wait, "until": until}, wait=held)

    async def until(
        self,
        claim: Claim,
        state: Literal["active", "ended"],
        *,
        poll: str = LONG_POLL,
        news: Callable[[Claim], object] = lambda _: None,
    ) -> Claim:
        """Waits without a time limit until the claim is in this state or has ended. Calls `news` with every answer."""
        while not (claim.ended or claim.state == state):
            asked_at = self.transport.clock()
            claim = await self.get_claim(claim.id, wait=poll, until=state)
            news(claim)
            early = SHORTEST_POLL - (self.transport.clock() - asked_at)
            if early > 0 and not (claim.ended or claim.state == state):
                await self.transport.sleep(early)
        return claim

    async def renew(self, claim: str | Claim, fence: int | None = None) -> Claim:
        """Renews the lease and returns the claim with its new `lease_until`. The fence is required, unless `claim` has one.
        Raises Conflict if the claim has ended or the fence is old."""
        fence = _fence(claim, fence)
        if fence is None:
            raise ValueError(f"to renew claim {_id(claim)}, pass its fence, or the claim as it was when it was active")
        return await self.ask(Claim, "POST", at("claims", _id(claim), "renew"), body={"fence": fence}, safe=True)

    async def release(self, claim: str | Claim, *, fence: int | None = None, force: bool = False, reason: str = "") -> Claim:
        """Ends the claim. The fence of `claim` is sent if none is given. The request is repeated after a lost answer. That is
        safe, because an ended claim stays ended."""
        fence = _fence(claim, fence)
        body = {"force": force, "reason": reason} | ({} if fence is None else {"fence": fence})
        return await self.ask(Claim, "POST", at("claims", _id(claim), "release"), body=body, safe=True)

    async def cancel(self, claim: str | Claim, *, reason: str = "") -> Claim:
        """Ends the claim in any state. The request is safe to repeat, like `release`."""
        return await self.ask(Claim, "POST", at("claims", _id(claim), "cancel"), body={"reason": reason}, safe=True)

    def output(
        self,
        claim: str | Claim,
        *,
        offset: int = 0,
        follow: bool = True,
        truncated: Callable[[int], object] = lambda _: None,
    ) -> AsyncGenerator[bytes, None]:
        """Yields what the job printed to stdout and stderr, in order of arrival, from `offset`. With `follow` it continues,
        across broken connections, until the claim has ended. If not all of the output is kept, `truncated` is called once with
        the number of bytes that are. A line in the output says where bytes are missing."""
        return read_bytes(read_pieces(self, _id(claim), offset, follow, lambda kept, _: truncated(kept)))

    def output_pieces(
        self,
        claim: str | Claim,
        *,
        offset: int = 0,
        follow: bool = True,
        truncated: Callable[[int, int], object] = ignore_truncation,
    ) -> AsyncGenerator[OutputPiece, None]:
        """Yields the output like `output`, but in pieces that name their stream. A piece with `missing` stands for bytes that are
        not kept. `truncated` also receives how many are missing in the middle; if it is 0, the end is missing."""
        return read_pieces(self, _id(claim), offset, follow, truncated)

    async def send_input(self, claim: str | Claim, source: bytes | AsyncIterable[bytes]) -> InputState:
        """Sends standard input to the command of a claim that was made with `stdin=True`, and closes it. Waits while the command
        reads more slowly than this sends. Returns early if the command closes its stdin or ends."""
        return await send_input(self, _id(claim), source)

    async def get_input(self, claim: str | Claim) -> InputState:
        """Returns how much of its standard input the command has received."""
        return await self.ask(InputState, "GET", at("claims", _id(claim), "input"))
