"""End the claims whose requests still wait with a token that was revoked, so that such a request gets no worker."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterator

from ..claimpath.path import ClaimPath
from ..ports.store import Store, StoreUnavailable

REASON = "its token was revoked, or expired, while its request waited"
LIVING = ("waiting", "assigned", "active")
AGAIN = 0.2  # seconds; a request that was just being stored when its token was revoked is found by the next try


class Revocation:
    def __init__(self, store: Store, claim_path: ClaimPath) -> None:
        self._store = store
        self._claim_path = claim_path
        self._open: dict[str, dict[str, None]] = defaultdict(dict)  # by token, the claims of its open requests
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def watching(self, token: str, claim: str) -> Iterator[None]:
        """Marks the claim's request as open."""
        self._open[token][claim] = None
        try:
            yield
        finally:
            del self._open[token][claim]
            if not self._open[token]:
                del self._open[token]

    def revoked(self, tokens: Collection[str]) -> None:
        """Ends the claims of all open requests of these tokens. Returns at once."""
        for token in tokens:
            if token in self._open:
                task = asyncio.get_running_loop().create_task(self._end_all(token))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _end_all(self, token: str) -> None:
        while claims := list(self._open.get(token, ())):
            for claim in claims:
                await self.end(claim)
            await asyncio.sleep(AGAIN)

    async def end(self, claim: str) -> None:
        with contextlib.suppress(StoreUnavailable):
            ended = await self._store.claims.end(claim, outcome="cancelled", how="force", reason=REASON, states=LIVING)
            self._claim_path.ended(ended, "force")
