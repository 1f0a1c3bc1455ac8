"""End claims whose time is up, and repair hand-overs that make no progress."""

from ..ports.store import Due
from .actions import Action, EndClaim, HandOver, Requeue
from .duty import Ports

# A stalled hand-over is repaired within 15 s (failure table): first with the same worker again, then with another one.
OFFER_STALL = 4.0  # seconds; protection takes at most 3 tries of 1 s each, so after that its replica is dead
DELIVER_STALL = 6.0  # a live agent's poll checks every 3 s, so after two missed checks the agent is cut off
ACTIVATE_STALL = 12.0  # four missed progress reports of 3 s each
FIRST_STALL = min(OFFER_STALL, DELIVER_STALL, ACTIVATE_STALL)
BATCH = 500  # claims per pass, so that a pass stays short; the next pass takes the rest


class Deadlines:
    name = "deadlines"
    period = 2.0

    async def observe(self, ports: Ports) -> list[Due]:
        return await ports.store.claims.due(BATCH, FIRST_STALL)

    def plan(self, observed: list[Due]) -> list[Action]:
        return [action for due in observed if (action := decide(due)) is not None]


def decide(due: Due) -> Action | None:
    """Returns the action that is due for one claim, or None. The order of the checks is the order of precedence."""
    if due.state == "waiting":
        if not due.pool_live:
            return _end(due, "refused", "pool_deleted", "its pool was deleted before a worker was free")
        if due.past_deadline:
            return _end(due, "refused", "deadline", "no worker was free before its deadline")
        return None
    if due.state == "active":
        if due.past_lease:
            return _end(due, "expired", "lease", "its holder stopped renewing the lease")
        if due.past_max:
            return _end(due, "expired", "max_duration", "it reached its longest duration")
        return None
    assert due.fence is not None
    if not due.offered:
        return HandOver(due.claim) if due.idle >= OFFER_STALL else None
    if not due.delivered:
        if due.idle < DELIVER_STALL:
            return None
        reason = "its worker did not fetch it"
        return Requeue(due.claim, due.fence, reason, keep_worker=True, suspect=True, idle=DELIVER_STALL)
    if due.idle >= ACTIVATE_STALL:
        return Requeue(due.claim, due.fence, "it stopped making progress", idle=ACTIVATE_STALL, activation=True)
    return None


def _end(due: Due, outcome: str, how: str, reason: str) -> EndClaim:
    return EndClaim(due.claim, due.fence, (due.state,), outcome, how, reason)
