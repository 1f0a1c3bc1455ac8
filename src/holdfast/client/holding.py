"""Holds a worker for the length of a block: waits for it, renews its lease or watches for its end, releases it.

Only the server decides when a lease has ended, because its heard time stops while it cannot receive renewals (P7).
Therefore renewals are repeated during an outage, and only an answer of a replica ends the block. Then the task that
runs the block is cancelled, and the `async with` raises LeaseLost instead of CancelledError. A cancellation from
outside remains a CancelledError. A job that ends by itself does not cancel the block, because the block may still read
the job's output. Then only `worker.ended` is set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Unpack

from .answers import Claim
from .client import Client
from .context import resolve
from .errors import (
    ClaimEnded,
    Conflict,
    HoldfastError,
    LeaseLost,
    NotFound,
    Unavailable,
    Unreachable,
)
from .requests import ClaimOptions

log = logging.getLogger("holdfast.client")

NEWS_POLL = "2s"  # the shortest pause between two tries of a claim, so that `news` sees each of them
FIRST_WAIT = "2s"  # short, because a caller that gives up needs the claim's id to cancel it
GIVE_UP = 5.0  # seconds for cancelling a claim whose caller stopped waiting; otherwise its deadline ends it
RELEASE_WITHIN = 10.0  # seconds; leaving a block must not hang during an outage, because the lease ends the claim anyway
RENEW_AT = 3  # renew after a third of the lease, so that two more tries fit into it
SHORTEST_RENEWAL = 0.2  # seconds
WATCH_AGAIN = 1.0  # seconds until the claim is read again after its state could not be read
READ_END_WITHIN = 2.0  # seconds; a holder must hear of its loss soon, also if the outcome cannot be read
# The outcomes of a claim that was taken from its holder. All other outcomes are caused by the holder.
TAKEN = ("expired", "lost", "cancelled", "refused")
FINISHED = ("completed", "failed")  # the outcomes of a job that ended by itself


class Held:
    """The fields that `HeldWorker` and the worker of the sync client share."""

    def __init__(self, claim: Claim) -> None:
        assert claim.worker is not None
        assert claim.fence is not None
        self.claim_id = claim.id
        self.id = claim.worker
        self.fence = claim.fence
        self.endpoint = claim.endpoint
        self.credential = claim.credential
        self.protected = bool(claim.protected)
        self.tenant = claim.tenant
        self.pool = claim.pool
        self.lease_until = claim.lease_until  # moves with each renewal
        self.max_until = claim.max_until
        self.outcome: str | None = None  # how the claim ended, if it has ended and that is known
        self.unreleased: str | None = None  # after the block: why it is not known that the release was stored

    @property
    def headers(self) -> dict[str, str]:
        """Returns the headers that every request to `endpoint` must have."""
        return {"Authorization": f"Bearer {self.credential}"} if self.credential else {}

    def note_end(self, outcome: str | None) -> None:
        """Called when it is known that the claim has ended."""
        self.outcome = outcome

    def __repr__(self) -> str:  # without the credential
        return f"{type(self).__name__}(id={self.id!r}, claim_id={self.claim_id!r}, endpoint={self.endpoint!r})"


class HeldWorker(Held):
    """The worker of an active claim, as its holder sees it. `ended` is set when it is known that the claim has ended."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim)
        self.ended = asyncio.Event()

    def note_end(self, outcome: str | None) -> None:
        super().note_end(outcome)
        self.ended.set()


class Holding:
    """One claim on the holder's side: `take` waits for it, `keep` looks after it in the background, `let_go` releases it."""

    def __init__(self, client: Client, pool: str, options: ClaimOptions, news: Callable[[Claim], object] | None = None) -> None:
        self._client = client
        self._news = news
        self._pool = pool
        self._options = options
        self._closing = False
        self._keeper: asyncio.Task[None] | None = None
        self.lost: LeaseLost | None = None

    async def take(self) -> Claim:
        """Waits until the claim is active and returns it. If the caller is cancelled, the claim is cancelled as well."""
        asking = asyncio.ensure_future(self._client.claim(self._pool, wait=FIRST_WAIT, **self._options))
        try:
            claim = await asyncio.shield(asking)
            if self._news is None:
                claim = await self._client.until(claim, "active")
            else:
                self._news(claim)
                claim = await self._client.until(claim, "active", poll=NEWS_POLL, news=self._news)
        except BaseException:
            await self._abandon(asking)
            raise
        if claim.ended:
            raise ClaimEnded(claim)
        return claim

    def keep(self, claim: Claim, worker: Held, on_lost: Callable[[LeaseLost], object]) -> None:
        """Starts to renew the lease in the background, or to wait for the end of a claim without a lease. `on_lost` is called at
        most once, and never after `let_go` began."""
        keeping = self._watch if claim.lease_until is None else self._renew
        self._keeper = asyncio.create_task(keeping(claim, worker, on_lost), name=f"keep {claim.id}")

    async def let_go(self, worker: Held) -> None:
        """Stops the background task and releases the claim, unless it has ended. If the release could not be stored,
        `worker.unreleased` gets the reason, and the lease ends the claim."""
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self.lost is not None or worker.outcome is not None:
            return
        try:
            async with asyncio.timeout(RELEASE_WITHIN):
                worker.note_end((await self._client.release(worker.claim_id, fence=worker.fence)).outcome)
        except (Conflict, NotFound) as error:
            await self._read_its_end(worker, error)
        except (HoldfastError, TimeoutError) as error:
            worker.unreleased = str(error) or f"no answer within {RELEASE_WITHIN:g} s"
            log.warning("claim %s could not be released, its lease will end it: %s", worker.claim_id, worker.unreleased)

    async def _renew(self, claim: Claim, worker: Held, on_lost: Callable[[LeaseLost], object]) -> None:
        assert claim.fence is not None
        clock, sleep = self._client.transport.clock, self._client.transport.sleep
        runs_out_at = clock() + self._left(claim)
        while True:
            left = runs_out_at - clock()
            await sleep(max(SHORTEST_RENEWAL, left / RENEW_AT))
            try:
                sent_at = clock()
                renewed = await self._client.renew(claim.id, claim.fence)
                if renewed.lease_until is not None:
                    runs_out_at = sent_at + self._left(renewed)
                    worker.lease_until = renewed.lease_until
                continue
            except (Conflict, NotFound) as error:
                end, why = await self._end_of(claim.id), str(error)
                if end is not None and end.outcome in FINISHED:  # a job with a lease
                    worker.note_end(end.outcome)
                    return
                self._lose(worker, end.outcome if end is not None else None, why, on_lost)
                return
            except (Unreachable, Unavailable) as error:
                log.warning("claim %s: renewal failed, trying again: %s", claim.id, error)
                continue
            except HoldfastError as error:  # such as a revoked token: the worker is still held until the lease ends
                if clock() < runs_out_at:
                    log.warning("claim %s: renewal refused, trying again: %s", claim.id, error)
                    continue
                why = f"its lease ran out while renewals were refused: {error}"
            self._lose(worker, None, why, on_lost)
            return

    async def _watch(self, claim: Claim, worker: Held, on_lost: Callable[[LeaseLost], object]) -> None:
        """Waits for the end of a claim without a lease. No renewal would fail, so its holder would not hear of its end."""
        while True:
            try:
                end = await self._client.until(claim, "ended")
            except NotFound as error:
                self._lose(worker, None, str(error), on_lost)
                return
            except HoldfastError as error:
                log.warning("claim %s could not be read, trying again: %s", claim.id, error)
                await self._client.transport.sleep(WATCH_AGAIN)
                continue
            if end.outcome in FINISHED:
                worker.note_end(end.outcome)
            else:
                self._lose(worker, end.outcome, f"it ended as {end.outcome}: {end.reason or 'no reason given'}", on_lost)
            return

    def _lose(self, worker: Held, outcome: str | None, why: str, on_lost: Callable[[LeaseLost], object]) -> None:
        if self._closing:
            return
        self.lost = LeaseLost(worker.claim_id, why)
        worker.note_end(outcome)
        on_lost(self.lost)

    async def _end_of(self, claim_id: str) -> Claim | None:
        """Returns the claim if it has ended, or None if that is not the case or cannot be read soon."""
        try:
            async with asyncio.timeout(READ_END_WITHIN):
                claim = await self._client.get_claim(claim_id)
        except (HoldfastError, TimeoutError):
            return None
        return claim if claim.ended else None

    def _left(self, claim: Claim) -> float:
        assert claim.lease_until is not None
        return max(0.0, self._client.seconds_until(claim.lease_until))

    async def _read_its_end(self, worker: Held, refusal: HoldfastError) -> None:
        """Reads how the claim ended, after its release was refused, and sets `lost` if it was taken from the holder."""
        try:
            claim = await self._client.get_claim(worker.claim_id)
        except HoldfastError as error:
            worker.unreleased = f"{refusal}; and its state could not be read: {error}"
            return
        if claim.ended:
            worker.note_end(claim.outcome)
        if claim.outcome in TAKEN:
            self.lost = LeaseLost(claim.id, f"it had already ended as {claim.outcome}: {claim.reason or ''}")
        elif not claim.ended:
            worker.unreleased = str(refusal)

    async def _abandon(self, asking: asyncio.Future[Claim]) -> None:
        async def cancel() -> None:
            claim = await asking
            if not claim.ended:
                await self._client.cancel(claim.id, reason="its caller gave up waiting")

        cleanup = asyncio.ensure_future(cancel())
        try:
            await asyncio.wait_for(asyncio.shield(cleanup), GIVE_UP)
        except (HoldfastError, TimeoutError) as error:
            log.debug("a claim in pool %s could not be cancelled: %s", self._pool, error)
        finally:
            cleanup.cancel()
            asking.cancel()


class claim:
    """`async with holdfast.claim("duckdb", tenant="acme") as worker:` holds a worker for the block.

    While it waits for the worker, `news` is called with the claim, whose `reason` says why it waits.
    """

    def __init__(
        self,
        pool: str,
        *,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        client: Client | None = None,
        news: Callable[[Claim], object] | None = None,
        **options: Unpack[ClaimOptions],
    ) -> None:
        self._own = client is None
        if client is None:
            where = resolve(url, token)
            client = Client(where.url, where.token)
        self._client = client
        self._holding = Holding(client, pool, options, news)

    async def __aenter__(self) -> HeldWorker:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._interrupted = False
        try:
            taken = await self._holding.take()
        except BaseException:
            await self._close()
            raise
        self._worker = HeldWorker(taken)
        self._holding.keep(taken, self._worker, self._interrupt)
        return self._worker

    def _interrupt(self, _: LeaseLost) -> None:
        assert self._task is not None
        self._interrupted = True
        self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._task is not None
        # Take back our own cancellation. If another one remains, other code wants to cancel this task as well.
        others = self._interrupted and self._task.uncancel() > self._cancelling
        try:
            await self._holding.let_go(self._worker)
        finally:
            await self._close()
        lost = self._holding.lost
        if lost is None or others:
            return
        # If the loss was only detected at the release, an error that the block raised is not replaced.
        if self._interrupted and (error is None or isinstance(error, Exception | asyncio.CancelledError)):
            raise lost from error
        if error is None:
            raise lost

    async def _close(self) -> None:
        if self._own:
            await self._client.close()
