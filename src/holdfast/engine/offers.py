"""Offers of one moment share a commit: a batch leaves as soon as the one before has returned."""

import asyncio

from ..model.claim import Claim
from ..ports.store import Pair, Store


class Offers:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[Pair, bool, asyncio.Future[Claim | None]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def make(self, pair: Pair, protected: bool) -> Claim | None:
        """The claim as it is then; None: it is no longer this pair's. A failure is everybody's who shared the batch."""
        future: asyncio.Future[Claim | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((pair, protected, future))
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())
        return await future

    async def _send(self) -> None:
        try:
            while self._waiting:
                sent, self._waiting = self._waiting, []
                await self._batch(sent)
        finally:
            self._sending = None

    async def _batch(self, sent: list[tuple[Pair, bool, asyncio.Future[Claim | None]]]) -> None:
        failed: Exception | None = None
        taken: dict[tuple[str, int | None], Claim] = {}
        try:
            claims = await self._store.claims.offer([(pair.claim, pair.fence, protected) for pair, protected, _ in sent])
            taken = {(claim.id, claim.fence): claim for claim in claims}
        except Exception as error:
            failed = error
        for pair, _, future in sent:
            if future.done():  # whoever asked has gone
                continue
            if failed is not None:
                future.set_exception(failed)
            else:
                future.set_result(taken.get((pair.claim, pair.fence)))
