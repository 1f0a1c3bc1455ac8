"""Protect a worker's pod before the holder or the agent learns of the assignment (P3), or find out why the worker cannot be
used."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from ..metrics import Metrics
from ..model.effect import Done, Effect, Stale
from ..model.pod import Pod, Stamp
from ..model.pool import ProtectionSpec
from ..ports.cluster import Cluster, ClusterUnavailable
from ..ports.store import Pair, Store

TRIES = 3
PAUSE = 0.1  # seconds between two tries
TRY_SECONDS = 1.0
# Protections in progress at the same time. More would only queue in the API server while their TRY_SECONDS run: in a burst of
# hundreds, many tries would time out in that queue, and all of them would be sent again.
TURNS = 32


class Unusable(NamedTuple):
    """The worker cannot be given out, for this reason. Its claim goes back to the queue."""

    reason: str


class Usable(NamedTuple):
    """The worker can be given out. `protected` is reported to its holder."""

    protected: bool


class Protection:
    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._turns = asyncio.Semaphore(TURNS)

    async def ensure(self, pair: Pair, spec: ProtectionSpec) -> Usable | Unusable:
        """Brings the pod to what the pool's protection mode requires. If the cluster does not accept the protection or cannot be
        read, the worker is usable without protection."""
        if spec.mode == "claim":
            return _judge(await self._protect(pair))
        pod = await self._read(pair)
        if spec.mode == "always" and isinstance(pod, Pod) and not pod.protected:
            # A pod of this mode is created protected, unless it is older than the mode or the protection was removed.
            return _judge(await self._protect(pair))
        return pod if isinstance(pod, Unusable) else Usable(spec.mode == "always" and pod is not None)

    async def _protect(self, pair: Pair) -> Pod | Unusable | None:
        """Writes stamp and protection, and returns the pod after the write, or None when the cluster did not accept it."""
        if pair.uid is None:
            return Unusable("its worker has no pod yet")
        stamp = Stamp(pair.tenant, pair.claim, pair.fence)
        # All tries must be over before `deadlines` hands the claim over again, so a try that waited for its turn is not repeated
        # after this time.
        loop = asyncio.get_running_loop()
        end = loop.time() + TRIES * TRY_SECONDS
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(PAUSE)
            if loop.time() >= end:
                break
            try:
                async with self._turn(end):
                    pod = await asyncio.wait_for(self._cluster.protect(pair.worker, pair.uid, stamp), TRY_SECONDS)
                return _usable(pod)
            except _NoTurn:
                break
            except (ClusterUnavailable, TimeoutError):
                self._metrics.protect_errors.inc()
        return None

    @contextlib.asynccontextmanager
    async def _turn(self, end: float) -> AsyncIterator[None]:
        """Waits for one of the turns until `end`. Raises _NoTurn if none is free by then, because the cluster does not answer the
        protections in progress."""
        try:
            async with asyncio.timeout_at(end) if self._turns.locked() else contextlib.nullcontext():
                await self._turns.acquire()
        except TimeoutError:
            self._metrics.protect_errors.inc()
            raise _NoTurn from None
        try:
            yield
        finally:
            self._turns.release()

    async def _read(self, pair: Pair) -> Pod | Unusable | None:
        """Returns the pod as the cluster last showed it, for modes that write nothing, or None if it could not be read."""
        try:
            pods = await asyncio.wait_for(self._cluster.read_cached([pair.worker]), TRY_SECONDS)
        except (ClusterUnavailable, TimeoutError):
            return None
        return _usable(pods.get(pair.worker))

    async def remove(self, store: Store, pair: Pair) -> None:
        """Removes this claim's stamp and protection, if the worker is free again and its pod still has this stamp. If this fails,
        the duty `converge` does it later."""
        with contextlib.suppress(ClusterUnavailable, TimeoutError):
            row = await store.workers.get(pair.worker)
            if row is None or row.state not in ("warm", "parked"):
                return
            pod = await asyncio.wait_for(self._cluster.read(pair.worker), TRY_SECONDS)
            if pod is not None and pod.uid == pair.uid and pod.stamp is not None and pod.stamp.fence == pair.fence:
                await clear(store, self._cluster, row.id, row.version, pod.uid, pod.version)


async def clear(store: Store, cluster: Cluster, worker: str, version: int, uid: str, pod_version: str) -> Effect:
    """Removes stamp and protection from a free worker: first in its row, if the row is unchanged, then on its pod, if the pod is
    unchanged. In the other order, a clear that was planned from an old view could remove the protection of a new claim."""
    effect = await store.workers.unprotect(worker, version)
    if not isinstance(effect, Done):
        return effect
    return Done() if await cluster.clear(worker, uid, pod_version) else Stale()


class _NoTurn(Exception):
    """No turn became free in time."""


def _judge(pod: Pod | Unusable | None) -> Usable | Unusable:
    # After a write, `protected` is what the cluster answered, not what was sent, because a webhook may remove the protection.
    return pod if isinstance(pod, Unusable) else Usable(pod is not None and pod.protected)


def _usable(pod: Pod | None) -> Pod | Unusable:
    if pod is None or pod.phase == "ended":
        return Unusable("its worker's pod was gone at hand-over")
    if pod.terminating:
        return Unusable("its worker's pod was terminating at hand-over")
    return pod if pod.schedulable else Unusable("its worker's node was cordoned at hand-over")
