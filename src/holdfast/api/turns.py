"""Let each tenant have a bounded number of requests in progress at a replica, so that a flood of one tenant does not delay others."""

import asyncio
from collections import deque
from collections.abc import Callable

from .auth import Caller
from .problems import Problem

SHARED = 2  # requests of one tenant in progress while others use the replica too
ALONE = 16  # of a tenant that has the replica for itself, so that its claims still share statements
PRESENT = 5.0  # seconds for which a tenant counts as using the replica after a request
LONGEST_REST = 0.2  # seconds; a request that took longer waited for something else than the replica
LINE = 500  # requests of one tenant that wait for their turn


class Turn:
    """One request's turn. It is given back when the request ends, or earlier, when the request only waits for its claim."""

    def __init__(self, turns: "Turns", tenant: str, since: float) -> None:
        self._turns, self._tenant, self._since, self._given_back = turns, tenant, since, False

    def give_back(self) -> None:
        if not self._given_back:
            self._given_back = True
            self._turns.given_back(self._tenant, self._since)


class Turns:
    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._taken: dict[str, int] = {}
        self._line: dict[str, deque[asyncio.Future[None]]] = {}
        # The two callers that differ and came last, with the times of their last requests. They show who else is present.
        self._last: tuple[str, float] = ("", float("-inf"))
        self._before: tuple[str, float] = ("", float("-inf"))

    async def take(self, caller: Caller) -> Turn | None:
        """Returns the caller's turn, in the order of arrival per tenant. Admins and operators need none."""
        tenant = caller.tenant if not caller.trusted else None
        self._seen(tenant or "")
        if tenant is None:
            return None
        line = self._line.get(tenant)
        if not line and self._taken.get(tenant, 0) < self._most(tenant):
            self._taken[tenant] = self._taken.get(tenant, 0) + 1
            return Turn(self, tenant, self._clock())
        line = self._line.setdefault(tenant, deque())
        if len(line) >= LINE:
            detail = f"tenant {tenant!r} has {LINE} requests waiting here; send fewer at the same time"
            raise Problem(429, "too-many", detail, headers={"Retry-After": "1"})
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._pass_on(tenant)  # the turn was given to this request, which ends without using it
            raise
        return Turn(self, tenant, self._clock())

    def given_back(self, tenant: str, since: float) -> None:
        """Passes a turn on that was taken at `since`. If more requests of this tenant wait while others use the replica, the turn
        rests first for as long as it was used. So a flood uses at most half of the time of its turns, and others find the
        replica idle in the other half."""
        if tenant in self._line and self._most(tenant) == SHARED:
            rest = min(self._clock() - since, LONGEST_REST)
            asyncio.get_running_loop().call_later(rest, self._pass_on, tenant)
        else:
            self._pass_on(tenant)

    def _pass_on(self, tenant: str) -> None:
        """Gives the free turns to the tenant's next requests that still wait."""
        taken, line, most = self._taken[tenant] - 1, self._line.get(tenant, deque()), self._most(tenant)
        while line and taken < most:
            following = line.popleft()
            if not following.done():
                following.set_result(None)
                taken += 1
        if not line:
            self._line.pop(tenant, None)
        self._taken[tenant] = taken
        if not taken:
            del self._taken[tenant]

    def _seen(self, caller: str) -> None:
        if caller != self._last[0]:
            self._before = self._last
        self._last = caller, self._clock()

    def _most(self, tenant: str) -> int:
        present = self._clock() - PRESENT
        shared = any(name != tenant and at > present for name, at in (self._last, self._before))
        return SHARED if shared else ALONE
