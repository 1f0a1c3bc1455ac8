"""One replica: it beats, runs the duties whose terms it holds, and takes over duties that make no progress."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

import structlog

from ..claimpath.signals import Signals
from ..duties.actions import Spawn
from ..duties.converge import Converge
from ..duties.deadlines import Deadlines
from ..duties.duty import Duty, Ports
from ..duties.match import MatchDuty
from ..duties.pools import Pools
from ..duties.prune import Prune
from ..duties.scale import Scale
from ..metrics import Metrics
from ..ports.cluster import ClusterUnavailable
from ..ports.store import Beat, StoreUnavailable
from ..recovery.marks import Marks
from ..tasks import end_all
from .apply import Apply
from .heartbeats import Heartbeats
from .looks import Looks
from .passes import Passes
from .terms import BEAT, TERM, Terms, stale_after

log = structlog.get_logger()

UNAVAILABLE = (StoreUnavailable, ClusterUnavailable)
SHORTEST_PAUSE = 0.05  # seconds between two passes of a duty, because signals may come faster


class ReplicaInfo(NamedTuple):
    """What a replica writes into its row when it joins."""

    pid: int
    host: str
    url: str
    version: str


class Replica:
    def __init__(self, id_: str, ports: Ports, apply: Apply, signals: Signals, metrics: Metrics, info: ReplicaInfo) -> None:
        self.id = id_
        self.ports = ports
        self.apply = apply
        self.converge = Converge()
        self.duties: dict[str, Duty] = {
            duty.name: duty for duty in (MatchDuty(), Deadlines(), self.converge, Scale(), Pools(), Prune())
        }
        self.terms = Terms(id_)
        self.beat_at: float | None = None  # when a beat was last stored, by this replica's clock
        self.waits_for: str | None = "it has just started"  # why the last beat was not stored
        self._signals = signals
        self._metrics = metrics
        self._info = info
        self._passes = Passes(ports, apply, self.terms, metrics, signals)
        self._looks = Looks(ports, self.converge, self.terms, self._passes, signals)
        self._marks = Marks(ports.store, ports.cluster, metrics.cluster_errors.inc)
        self.heartbeats = Heartbeats(ports.store, lambda: self._marks.epoch)
        self._pass_now = {name: asyncio.Event() for name in self.duties}  # set when the next pass must not wait for its period
        signals.pools.subscribe(self._pools_changed)
        self._tasks: list[asyncio.Task[None]] = []
        self._takeover: asyncio.Task[None] | None = None
        self._last_beat: float | None = None
        self._joined = False

    # Start and stop

    def start(self) -> None:
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._beats,
            self.heartbeats.run,
            self._notices,
            self._looks.at_pod_changes,
            self._looks.at_changed,
            self._looks.at_due,
        ]
        for loop in loops:
            self._tasks.append(asyncio.create_task(self._forever(loop), name=loop.__name__))
        for duty in self.duties.values():
            self._tasks.append(asyncio.create_task(self._forever(partial(self._duty, duty)), name=duty.name))

    async def stop(self) -> None:
        """Gives this replica's terms back, so that others can take them at once. Workers and claims are not touched."""
        await end_all([*self._tasks, *([self._takeover] if self._takeover else [])])
        await self._marks.close()
        with contextlib.suppress(*UNAVAILABLE):
            await self.heartbeats.flush()
            await self.ports.store.fleet.leave(self.id)

    async def _forever(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts a loop again after every error, because a duty that no replica runs is worse than a repeated one (P6)."""
        while True:
            try:
                await loop()
            except UNAVAILABLE:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("a loop failed and starts again", replica=self.id)
                await asyncio.sleep(1)

    # Beats and terms

    async def _beats(self) -> None:
        while True:
            started = _now()
            try:
                await self.beat()
            except UNAVAILABLE as error:
                counter = self._metrics.store_errors if isinstance(error, StoreUnavailable) else self._metrics.cluster_errors
                counter.inc()
                log.warning("beat not stored", replica=self.id, error=str(error))
            await asyncio.sleep(max(0.05, BEAT - (_now() - started)))

    async def beat(self) -> None:
        """Sends a beat to the store: it renews terms, moves heard time on, and notices lost commits."""
        try:
            await self._beat()
        except UNAVAILABLE as error:
            self.waits_for = str(error)
            self._marks.interrupted()
            self._joined = False
            raise
        self.waits_for = None

    async def _beat(self) -> None:
        fleet, marks = self.ports.store.fleet, self._marks
        await marks.look()
        if not self._joined:
            await fleet.join(self.id, *self._info)
            self._joined = True
        sent = _now()
        elapsed = None if self._last_beat is None else sent - self._last_beat
        beat = await fleet.beat(self.id, elapsed, TERM, self.terms.reports(), marks.seen)
        self._last_beat = sent
        self.beat_at = _now()
        self.terms.stored(beat, sent)
        marks.stored(beat)
        await self._take_terms(beat, stale=False)
        if self._takeover is None or self._takeover.done():
            # In the background, because a duty's trial read could take so long that this replica looks dead.
            self._takeover = asyncio.create_task(self._take_stale(beat))
        if beat.recovering:
            self._joined = False  # the restored database may be older than the join of this replica
            self._pass_now["converge"].set()

    async def _take_stale(self, beat: Beat) -> None:
        with contextlib.suppress(*UNAVAILABLE):
            await self._take_terms(beat, stale=True)

    async def _take_terms(self, beat: Beat, *, stale: bool) -> None:
        """Takes terms that ran out or, with `stale`, terms whose holder makes no progress."""
        periods = {duty.name: duty.period for duty in self.duties.values()}
        for term, is_stale in list(self.terms.to_take(beat, periods)):
            if is_stale != stale:
                continue
            if stale and not await self._reads_work(term.duty):
                continue  # while the cluster is down, every duty is stale on every replica, and a take-over does not help
            sent = _now()
            number = await self.ports.store.fleet.take_term(term.duty, self.id, TERM, stale_after(periods[term.duty]))
            if number is not None:
                log.info("term taken", duty=term.duty, number=number, replica=self.id, before=term.holder, stale=stale)
                self.terms.took(term.duty, number, sent)
                self._pass_now[term.duty].set()

    async def _reads_work(self, duty: str) -> bool:
        try:
            await asyncio.wait_for(self.duties[duty].observe(self.ports), 10)
        except (TimeoutError, *UNAVAILABLE):
            return False
        return True

    # Duties

    async def _duty(self, duty: Duty) -> None:
        pass_now = self._pass_now[duty.name]
        while True:
            started = _now()
            if self.terms.trusted(duty.name, started):
                done = await self._passes.run_once(duty)
                if any(isinstance(action, Spawn) for action in done):
                    pass_now.set()  # one pass creates only a few pods, so the next pass follows at once
            await asyncio.sleep(SHORTEST_PAUSE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pass_now.wait(), max(SHORTEST_PAUSE, duty.period - (_now() - started)))
            pass_now.clear()

    def _pools_changed(self, _ids: set[str]) -> None:
        self._pass_now["match"].set()
        self._pass_now["scale"].set()

    # Notices of other replicas

    async def _notices(self) -> None:
        notices = await self.ports.store.listen()
        try:
            async for kind, ids in notices:
                self._signals.notice(kind, ids)
        finally:
            await notices.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
