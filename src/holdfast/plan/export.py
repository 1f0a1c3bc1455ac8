"""Make a trace from the claims of a running fleet, as its API lists them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from .trace import Arrival, Trace

if TYPE_CHECKING:
    from ..client import Client
    from ..client.answers import Claim

PAGE = 1000


class Exported(msgspec.Struct, frozen=True):
    """A trace, and how many claims it could not describe completely."""

    trace: Trace | None
    never_held: int  # cancelled or refused before they had a worker, so their hold time is unknown; not in the trace
    still_held: int  # still active, so their hold time is that until now


async def export(client: "Client", *, pool: str | None, since: float | None, now: float) -> Exported:
    """Reads the claims that were made after `since` (Unix time). The API lists the newest first."""
    claims: list[Claim] = []
    cursor: str | int | None = None
    while True:
        page = await client.list_claims(pool=pool, limit=PAGE, cursor=cursor)
        young = [claim for claim in page.items if since is None or _made(claim) >= since]
        claims += young
        cursor = page.next
        if cursor is None or len(young) < len(page.items) or not page.items:
            return collected(claims, now)


def collected(claims: "Iterable[Claim]", now: float) -> Exported:
    arrivals, never, still = [], 0, 0
    for claim in claims:
        if claim.active_at is None:
            never += 1
            continue
        still += claim.ended_at is None
        end = claim.ended_at.timestamp() if claim.ended_at is not None else now
        held = round(max(0.0, end - claim.active_at.timestamp()), 3)
        arrivals.append(Arrival(_made(claim), held, claim.tenant, claim.pool, claim.priority))
    if not arrivals:
        return Exported(None, never, still)
    first = min(each.at for each in arrivals)
    moved = sorted(msgspec.structs.replace(each, at=round(each.at - first, 3)) for each in arrivals)
    return Exported(Trace(tuple(moved), first), never, still)


def _made(claim: "Claim") -> float:
    assert claim.created_at is not None  # the server always sends it
    return round(claim.created_at.timestamp(), 3)  # the precision of a trace file
