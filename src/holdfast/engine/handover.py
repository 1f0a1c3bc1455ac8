"""Protect, then offer: a holder or agent hears of a worker only after its pod carries the protection (P3)."""

import asyncio
import contextlib
from collections.abc import Callable

from ..duties.actions import Clear
from ..model.claim import Claim
from ..model.outcome import Done, Outcome, Stale
from ..model.pod import Pod, Stamp
from ..model.pool import Pool
from ..ports.cluster import Cluster, ClusterUnavailable
from ..ports.store import Pair, Store
from .counting import Counting
from .crash import crash_point
from .metrics import Metrics
from .offers import Offers

TRIES = 3
PAUSE = 0.1
TRY_SECONDS = 1.0
# Protections under way at once. More would only queue in the API server, while the second of each runs there: in a burst of
# hundreds, tries would be given up that are only waiting for their turn, and all be sent again.
TURNS = 32
MOMENT = 0.5


class HandOvers:
    def __init__(self, store: Store, cluster: Cluster, metrics: Metrics) -> None:
        self._store = store
        self._cluster = cluster
        self._metrics = metrics
        self._counting = Counting(store, metrics)
        self._offers = Offers(store)
        self._turns = asyncio.Semaphore(TURNS)
        self._under_way, self._calm = 0, asyncio.Event()
        self.hint: Callable[[set[str]], None] = lambda _: None  # look soon at these workers
        self.direct = not cluster.shared  # whether a claim may be active before anybody has looked at its pod

    async def hand_over(self, pool: Pool, pair: Pair) -> Claim | Stale | None:
        """The claim as it was offered. Stale: the worker proved unusable and the claim is back in the queue: match again.
        None: there is nothing to tell."""
        self._under_way += 1
        try:
            return None if pair.active else await self._hand_over(pool, pair)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._calm.set()

    async def calm(self) -> None:
        """Whoever can wait lets hand-overs go first, for a moment: where they never stop, nobody waits for ever."""
        if self._under_way:
            self._calm.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._calm.wait(), MOMENT)

    async def _hand_over(self, pool: Pool, pair: Pair) -> Claim | Stale | None:
        mode, required = pool.spec.protection.mode, pool.spec.protection.required
        protected = mode == "always"
        pod = None if mode == "claim" else await self._read_cached(pair)
        if mode == "claim" or (mode == "always" and isinstance(pod, Pod) and not pod.protected):
            # In `always` it has been protected since its birth, unless it is older than the mode or somebody took it off.
            pod = await self._protect(pair)
            protected = isinstance(pod, Pod) and pod.protected  # as its answer shows it: a webhook may take off what we put on
        if isinstance(pod, str):
            await self._store.claims.requeue(pair.claim, pair.fence, reason=pod)
            return Stale()
        if not protected and mode != "off":
            if required:
                await self._refuse(pair)
                return None
            self._metrics.unprotected.labels(pool.name).inc()
        crash_point("handover.protected")
        claim = await self._offers.make(pair, protected)
        if claim is None:
            await self._unstamp(pair)
            self.hint({pair.worker})
        crash_point("handover.offered")
        return claim

    async def _protect(self, pair: Pair) -> Pod | str | None:
        """The protected pod; a reason why the worker is unusable; or None: the cluster would not take it."""
        if pair.uid is None:
            return "its worker has no pod yet"
        stamp = Stamp(pair.tenant, pair.claim, pair.fence)
        end = asyncio.get_running_loop().time() + TRIES * TRY_SECONDS  # and one try: less than `deadlines` waits for us
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(PAUSE)
            if not await self._turn(end):
                break
            try:
                pod = await asyncio.wait_for(self._cluster.protect(pair.worker, pair.uid, stamp), TRY_SECONDS)
                return _unusable(pod) or pod
            except (ClusterUnavailable, TimeoutError):
                self._metrics.protect_errors.inc()
            finally:
                self._turns.release()
        return None

    async def _turn(self, end: float) -> bool:
        """False: those before us wait for a cluster that does not answer."""
        try:
            async with asyncio.timeout_at(end) if self._turns.locked() else contextlib.nullcontext():
                await self._turns.acquire()
        except TimeoutError:
            self._metrics.protect_errors.inc()
            return False
        return True

    async def _read_cached(self, pair: Pair) -> Pod | str | None:
        """Where no protection is written no answer tells how the pod is: so look. What cannot be seen is given out anyway."""
        try:
            pods = await asyncio.wait_for(self._cluster.read_cached([pair.worker]), TRY_SECONDS)
        except (ClusterUnavailable, TimeoutError):
            return None
        pod = pods.get(pair.worker)
        return _unusable(pod) or pod

    async def _refuse(self, pair: Pair) -> None:
        # The pool would rather have no holder than an unprotected one. Nothing was delivered, so the worker goes back.
        await self._store.claims.end(
            pair.claim,
            outcome="refused",
            how="unprotected",
            reason="the cluster would not take the protection that the pool requires",
            states=("assigned",),
            fence=pair.fence,
        )
        await self._counting.ended(pair.claim, "unprotected")
        await self._unstamp(pair)
        self.hint({pair.worker})

    async def _unstamp(self, pair: Pair) -> None:
        """Nothing was delivered, and nothing will be: if its worker is free again, this claim's stamp goes now.
        What goes wrong here `converge` finds on the pod."""
        with contextlib.suppress(ClusterUnavailable, TimeoutError):
            row = await self._store.workers.get(pair.worker)
            if row is None or row.state not in ("warm", "parked"):
                return
            pod = await asyncio.wait_for(self._cluster.read(pair.worker), TRY_SECONDS)
            if pod is not None and pod.uid == pair.uid and pod.stamp is not None and pod.stamp.fence == pair.fence:
                await clear(self._store, self._cluster, Clear(row.id, row.version, pod.uid, pod.version))


async def clear(store: Store, cluster: Cluster, a: Clear) -> Outcome:
    """Stamp and protection off a free worker: first its row says so, if it is as seen; then its pod, if that is."""
    outcome = await store.workers.unprotect(a.worker, a.version)
    if not isinstance(outcome, Done):
        return outcome
    return Done() if await cluster.clear(a.worker, a.uid, a.pod_version) else Stale()


def _unusable(pod: Pod | None) -> str | None:
    """Why nobody should be given this worker any more."""
    if pod is None or pod.phase == "ended":
        return "its worker's pod was gone at hand-over"
    if pod.terminating:
        return "its worker's pod was terminating at hand-over"
    return None if pod.schedulable else "its worker's node was cordoned at hand-over"
