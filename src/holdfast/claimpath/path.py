"""The claim path, from top to bottom: submit, match, protect, offer, acknowledge, answer."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from ..crash_points import crash_point
from ..metrics import Metrics
from ..model.claim import BATCH as BATCH
from ..model.claim import Claim
from ..model.effect import Done, Effect
from ..model.pool import Pool
from ..ports.cluster import Cluster
from ..ports.store import AcknowledgedClaim, Batch, EndedClaim, NewClaim, Pair, Store, StoreUnavailable, SubmittedAs
from .batcher import Batcher
from .protection import Protection, Unusable
from .signals import Signals, Waiter

log = structlog.get_logger()

OFFERS = 10_000  # offers in one statement; more hand-overs are never in progress, because each pool makes BATCH pairs at a time
UNKNOWN_TRIES = 3  # when it is unknown whether a batch was stored, the same batch is sent again, with the same ids
LOOK_AGAIN = 3.0  # seconds after which a waiter reads without a signal, because signals may be lost
YIELD_SECONDS = 0.5  # how long other work waits for hand-overs in progress


class Submitted(NamedTuple):
    """The result of a request. `claim` is the id of the claim that stands for it."""

    claim: str
    what: SubmittedAs


class Offer(NamedTuple):
    pair: Pair
    protected: bool


class ClaimPath:
    def __init__(self, store: Store, cluster: Cluster, signals: Signals, metrics: Metrics) -> None:
        self._store = store
        self._signals = signals
        self._metrics = metrics
        self._protection = Protection(cluster, metrics)
        self._requests: dict[str, Batcher[NewClaim, Submitted]] = {}  # by the pool's id
        self._offers: Batcher[Offer, Claim | None] = Batcher(self._send_offers, OFFERS)
        self._pools: dict[str, Pool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._handing_over, self._none_in_progress = 0, asyncio.Event()

    # Submit: a request joins its pool's next batch.

    async def submit(
        self, pool: Pool, new: NewClaim, until: tuple[str, ...], seconds: float, on_stored: Callable[[], None] = lambda: None
    ) -> tuple[Submitted, Claim | None]:
        """Stores a request, calls `on_stored`, and waits until its claim reaches one of the states `until`, at most so many
        seconds. Returns None for the claim if `what` is 'closed', 'full' or 'other', or if the database lost it meanwhile."""
        # The watch starts before the claim is stored, so that no signal is missed and no first read is needed.
        with self._signals.claims.watch(new.id) as waiter:
            submitted = await self._batcher(pool).add(new)
            on_stored()
            if submitted.what in ("closed", "full", "other"):
                return submitted, None
            if submitted.claim == new.id:
                return submitted, await self._until(waiter, new.id, until, seconds, look=False)
        return submitted, await self.wait(submitted.claim, until, seconds)

    def _batcher(self, pool: Pool) -> Batcher[NewClaim, Submitted]:
        self._pools[pool.id] = pool
        if pool.id not in self._requests:
            for id_ in [id_ for id_, batcher in self._requests.items() if batcher.idle]:  # pools come and go
                del self._requests[id_], self._pools[id_]
            self._requests[pool.id] = Batcher(partial(self._send_requests, pool.id), BATCH)
        return self._requests[pool.id]

    # Match: one statement stores the batch and pairs waiting claims with free workers.

    def match_soon(self, pool: Pool) -> None:
        """Pairs the pool's waiting claims soon, because a worker became free or a claim came back to the queue."""
        self._batcher(pool).nudge()

    def worker_freed(self, pool_id: str) -> None:
        """Pairs the pool's waiting claims without waiting for the duty `match`."""
        self._in_background(self._match_freed(pool_id))

    async def _match_freed(self, pool_id: str) -> None:
        with contextlib.suppress(StoreUnavailable):
            if (pool := await self._store.pools.by_id(pool_id)) is not None:
                self.match_soon(pool)

    async def match(self, pool: Pool) -> None:
        """Pairs the pool's waiting claims now, for the duty `match`. Raises StoreUnavailable if that is not possible."""
        batch = await self._store.claims.match(pool.id, (), BATCH)
        self._start_hand_overs(pool, batch.pairs)

    async def _send_requests(self, pool_id: str, new: Sequence[NewClaim]) -> Sequence[Submitted | Exception]:
        pool = self._pools[pool_id]
        started = time.perf_counter()
        try:
            batch = await self._store_requests(pool, new)
        except StoreUnavailable as error:
            return [error] * len(new)
        except Exception as error:
            if len(new) == 1:
                return [error]
            if not new:
                log.exception("waiting claims could not be matched", pool=pool.name)
            # One request of the batch makes the statement fail, so each is sent alone and only that one fails.
            return [answer for each in new for answer in await self._send_requests(pool_id, [each])]
        crash_point("claim.stored")
        self._metrics.match.observe(time.perf_counter() - started)
        self._metrics.batch.observe(len(new))
        self._start_hand_overs(pool, batch.pairs)
        if len(batch.pairs) >= BATCH:
            self.match_soon(pool)
        answers = [batch.answers.get(each.id, ("closed", each.id)) for each in new]
        return [Submitted(claim, what) for what, claim in answers]

    async def _store_requests(self, pool: Pool, new: Sequence[NewClaim]) -> Batch:
        for attempt in range(UNKNOWN_TRIES):
            try:
                batch = await self._store.claims.match(pool.id, new, BATCH)
            except StoreUnavailable:
                if attempt + 1 == UNKNOWN_TRIES:
                    raise
                await asyncio.sleep(0.2)
                continue
            if attempt > 0:
                # Pairs that an earlier try made are not in this result, so the waiters have to read their claims.
                self._signals.claims.changed(*(each.id for each in new))
            return batch
        raise AssertionError("unreachable")

    def _start_hand_overs(self, pool: Pool, pairs: list[Pair]) -> None:
        for pair in pairs:
            self._in_background(self.start_hand_over(pool, pair))

    # Protect and offer: the claim has a worker, but neither its holder nor the worker's agent knows it yet.

    async def start_hand_over(self, pool: Pool, pair: Pair) -> None:
        """Protects the worker's pod, then offers the claim to the worker's agent. In a pool without an agent this makes the claim
        active."""
        self._handing_over += 1
        try:
            await self._protect_and_offer(pool, pair)
        except StoreUnavailable:
            pass  # The claim stays assigned without progress, so the duty `deadlines` hands it over again after OFFER_STALL.
        finally:
            self._handing_over -= 1
            if not self._handing_over:
                self._none_in_progress.set()

    async def _protect_and_offer(self, pool: Pool, pair: Pair) -> None:
        protection = pool.spec.protection
        ready = await self._protection.ensure(pair, protection)
        if isinstance(ready, Unusable):
            # `idle`, because the work may have begun on a worker that is unconfirmed after lost commits: then `converge` decides.
            await self._store.claims.requeue(pair.claim, pair.fence, reason=ready.reason, idle=0.0)
            self.match_soon(pool)
            self._signals.workers.changed(pair.worker)
            return
        if not ready.protected and protection.mode != "off":
            if protection.required:
                await self._refuse(pair)
                return
            self._metrics.unprotected.labels(pool.name).inc()
        crash_point("handover.protected")
        claim = await self._offers.add(Offer(pair, ready.protected))
        if claim is None:  # the claim ended, was assigned to another worker, or was offered by another hand-over meanwhile
            await self._protection.remove(self._store, pair)
        else:
            if claim.state == "active":
                self._metrics.claim_active(claim)
            self._signals.claims.changed(claim.id, row=claim)
        self._signals.workers.changed(pair.worker)
        crash_point("handover.offered")

    async def _send_offers(self, offers: Sequence[Offer]) -> Sequence[Claim | None]:
        claims = await self._store.claims.offer([(o.pair.claim, o.pair.fence, o.protected) for o in offers])
        taken = {(claim.id, claim.fence): claim for claim in claims}
        return [taken.get((offer.pair.claim, offer.pair.fence)) for offer in offers]

    async def _refuse(self, pair: Pair) -> None:
        """Ends the claim as refused, because its pool requires protection. Its worker goes back unused. After lost commits the
        work may have begun on an unconfirmed worker; then the store leaves the claim as it is."""
        reason = "the cluster did not accept the protection that the pool requires"
        ended = await self._store.claims.end(
            pair.claim, outcome="refused", how="unprotected", reason=reason, states=("assigned",), fence=pair.fence
        )
        self.ended(ended, "unprotected")
        await self._protection.remove(self._store, pair)

    async def yield_to_hand_overs(self) -> None:
        """Waits until no hand-over is in progress, at most 0.5 s, so that a steady stream of them cannot starve the caller."""
        if self._handing_over:
            self._none_in_progress.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_in_progress.wait(), YIELD_SECONDS)

    # Acknowledge: the worker's agent has fetched the claim and prepared the worker for its tenant.

    async def acknowledge(self, worker: str, fence: int, endpoint: str | None, incarnation: int | None = None) -> Claim | None:
        """Makes the claim active and returns it. The agent may start the command only after this. Returns None if the claim no
        longer belongs to this worker."""
        acknowledged = await self._store.claims.acknowledge(worker, fence, endpoint, incarnation)
        crash_point("handover.acknowledged")
        if acknowledged is None:
            return None
        self.acknowledged(acknowledged)
        return acknowledged.claim

    def acknowledged(self, acknowledged: AcknowledgedClaim) -> None:
        """Counts and signals a claim that has become active."""
        if acknowledged.first:
            self._metrics.claim_active(acknowledged.claim)
        self._signals.claims.changed(acknowledged.claim.id, row=acknowledged.claim)

    async def activation_failed(
        self, claim: str, fence: int, cause: str, *, dead: bool = False, idle: float | None = None
    ) -> Effect:
        """Puts the claim back into the queue, where it waits for its backoff, or refuses it after too many failures."""
        failed = await self._store.claims.activation_failed(claim, fence, cause, dead=dead, idle=idle)
        if isinstance(failed.effect, Done) and failed.pool is not None:
            self._metrics.activations_failed.labels(failed.pool).inc()
        self.ended(EndedClaim(failed.effect, failed.claim), "activation")
        return failed.effect

    # Answer: the holder's request returns when its claim is active, or when the request's time is up.

    async def wait(self, claim_id: str, until: tuple[str, ...], seconds: float) -> Claim | None:
        """Returns the claim once its state is one of `until` or the time is up, or None if there is no such claim."""
        with self._signals.claims.watch(claim_id) as waiter:
            return await self._until(waiter, claim_id, until, seconds, look=True)

    async def _until(self, waiter: Waiter, claim_id: str, until: tuple[str, ...], seconds: float, *, look: bool) -> Claim | None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            row, must_read = waiter.row, waiter.must_read
            waiter.clear()
            if row is not None and row.state in until:
                return row
            over = end <= loop.time() or self._signals.stopping.is_set()
            # A waiter that reads without a signal reads only the state, which costs very little.
            if over or must_read or (look and await self._store.claims.state(claim_id) in (*until, None)):
                claim = next(iter(await self._store.claims.get([claim_id])), None)
                if over or claim is None or claim.state in until:
                    return claim
            await waiter.wait(min(end - loop.time(), LOOK_AGAIN))
            look = waiter.row is None

    def ended(self, ended: EndedClaim, how: str) -> None:
        """Counts and signals a claim that has ended, if it has. Call it after every attempt to end a claim in the store."""
        if ended.claim is not None:
            self._metrics.claim_ended(ended.claim, how)
            self._signals.claims.changed(ended.claim.id, row=ended.claim)
            if ended.claim.worker is not None:
                self._signals.workers.changed(ended.claim.worker)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work of the claim path failed", exc_info=error)
