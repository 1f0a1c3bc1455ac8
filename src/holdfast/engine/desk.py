"""The claim path: for each pool one batch at a time, so that a lone request pays one round trip and a burst shares commits."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from ..model.claim import Claim
from ..model.outcome import Stale
from ..model.pool import Pool
from ..ports.store import Batch, NewClaim, Pair, Store, StoreUnavailable
from .crash import crash_point
from .handover import HandOvers
from .metrics import Metrics
from .wakes import Waiter, Wakes

BATCH = 128  # beyond this a batch's own length hurts its first request more than sharing helps the last
UNKNOWN_TRIES = 3  # an unknown commit is settled by sending the batch again with the same ids
LOOK_AGAIN = 3.0  # a waiter looks by itself this often: notices are hints


class Unstorable(Exception):
    """This one request makes the store fail; the others of its batch were served without it."""


class Answer:
    """What became of a request: the claim's id, and whether it is new."""

    __slots__ = ("active", "claim", "what")

    def __init__(self, claim: str, what: str, active: Pair | None) -> None:
        self.claim = claim
        self.what = what
        self.active = active


class Desk:
    def __init__(self, store: Store, handovers: HandOvers, wakes: Wakes, metrics: Metrics) -> None:
        self._store = store
        self._handovers = handovers
        self._wakes = wakes
        self._metrics = metrics
        self._queues: dict[str, list[tuple[NewClaim, asyncio.Future[Answer]]]] = defaultdict(list)
        self._busy: set[str] = set()
        self._poked: set[str] = set()
        self._pools: dict[str, Pool] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, pool: Pool, new: NewClaim) -> Answer:
        """Put a request into its pool's next batch."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queues[pool.id].append((new, future))
        self._start(pool)
        return await future

    def poke(self, pool: Pool) -> None:
        """Something became free: pair what waits."""
        self._poked.add(pool.id)
        self._start(pool)

    async def match(self, pool: Pool) -> int:
        """One batch without new requests; how many pairs it made."""
        batch = await self._store.claims.match(pool.id, (), BATCH, direct=self._handovers.direct)
        self._after(pool, batch.pairs)
        return len(batch.pairs)

    async def calm(self) -> None:
        """Until no hand-over is under way here, or a moment."""
        await self._handovers.calm()

    def _start(self, pool: Pool) -> None:
        self._pools[pool.id] = pool
        if pool.id not in self._busy:
            self._busy.add(pool.id)
            self._spawn(self._run(pool.id))

    async def _run(self, pool_id: str) -> None:
        # A batch leaves as soon as the previous one returned.
        try:
            while self._queues[pool_id] or pool_id in self._poked:
                queue = self._queues[pool_id]
                taken, self._queues[pool_id] = queue[:BATCH], queue[BATCH:]
                self._poked.discard(pool_id)
                await self._batch(self._pools[pool_id], taken)
        finally:
            self._busy.discard(pool_id)
            if not self._queues[pool_id]:
                del self._queues[pool_id]

    async def _batch(self, pool: Pool, taken: list[tuple[NewClaim, asyncio.Future[Answer]]]) -> None:
        started = time.perf_counter()
        try:
            batch, again = await self._send(pool, [new for new, _ in taken])
        except StoreUnavailable as error:
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
            return
        except Exception as error:  # a poisonous request: alone it fails alone
            if len(taken) == 1:
                taken[0][1].set_exception(Unstorable(type(error).__name__))
            for one in taken if len(taken) > 1 else ():
                await self._batch(pool, [one])
            return
        crash_point("claim.stored")
        self._metrics.match.observe(time.perf_counter() - started)
        self._metrics.batch.observe(len(taken))
        active = {pair.claim: pair for pair in batch.pairs if pair.active}
        for new, future in taken:
            what, claim = batch.answers.get(new.id, ("closed", new.id))
            if not future.done():
                future.set_result(Answer(claim, what, active.get(claim)))
        if again:  # what the first try had done is not among the pairs: whoever waits has to look
            for new, _ in taken:
                self._wakes.wake_claim(new.id)
        self._after(pool, batch.pairs)
        if len(batch.pairs) >= BATCH:
            self._poked.add(pool.id)

    async def _send(self, pool: Pool, new: list[NewClaim]) -> tuple[Batch, bool]:
        """What came of it, and whether it was sent more than once."""
        for attempt in range(UNKNOWN_TRIES):
            try:
                return await self._store.claims.match(pool.id, new, BATCH, direct=self._handovers.direct), attempt > 0
            except StoreUnavailable:
                if attempt + 1 == UNKNOWN_TRIES:
                    raise
                await asyncio.sleep(0.2)
        raise AssertionError("unreachable")

    def _after(self, pool: Pool, pairs: list[Pair]) -> None:
        for pair in pairs:
            if pair.active:
                self._wakes.wake_claim(pair.claim)
            else:
                self._spawn(self._hand_over(pool, pair))

    async def hand_over_again(self, pool: Pool, pair: Pair) -> None:
        await self._hand_over(pool, pair)

    async def _hand_over(self, pool: Pool, pair: Pair) -> None:
        given = None
        self._wakes.telling.add(pair.claim)
        try:
            given = await self._handovers.hand_over(pool, pair)
            if isinstance(given, Stale):
                self.poke(pool)
            self._wakes.wake_worker(pair.worker)
        except StoreUnavailable:
            return  # assigned without progress: the duty `deadlines` takes it up within 5 s
        finally:
            self._wakes.telling.discard(pair.claim)
            self._wakes.wake_claim(pair.claim, given if isinstance(given, Claim) else None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def serve(self, pool: Pool, new: NewClaim, until: tuple[str, ...], seconds: float) -> tuple[Answer, Claim | None]:
        """Ask, and wait for what becomes of it; without a claim where the answer says everything.

        Who waits for a new claim is known before it is stored, so nothing is missed and nobody needs to look first."""
        with self._wakes.claim(new.id) as woken:
            answer = await self.ask(pool, new)
            if answer.what in ("closed", "other") or answer.active is not None:
                return answer, None
            if answer.claim == new.id and seconds > 0:
                return answer, await self._until(woken, new.id, until, seconds, look=False)
        return answer, await self.wait(answer.claim, until, seconds)

    async def wait(self, claim_id: str, until: tuple[str, ...], seconds: float) -> Claim | None:
        """The claim, once its state is one of `until` or the time is up. None: there is no such claim."""
        with self._wakes.claim(claim_id) as woken:
            return await self._until(woken, claim_id, until, seconds)

    async def _until(
        self, woken: Waiter, claim_id: str, until: tuple[str, ...], seconds: float, *, look: bool = True
    ) -> Claim | None:
        loop, resets = asyncio.get_running_loop(), self._wakes.resets
        end = loop.time() + seconds
        while True:
            left, told = end - loop.time(), woken.is_set() and self._wakes.resets == resets
            woken.clear()
            resets = self._wakes.resets
            if woken.told is not None and woken.told.state in until:
                return woken.told
            woken.told = None
            # Who was woken is likely to be done; whoever only looks asks for the state alone, which costs next to nothing.
            if told or left <= 0 or self._wakes.closing or (look and await self._store.claims.state(claim_id) in (*until, None)):
                found = await self._store.claims.get([claim_id])
                if not found or found[0].state in until or left <= 0 or self._wakes.closing:
                    return found[0] if found else None
            look = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), min(max(left, 0), LOOK_AGAIN))
