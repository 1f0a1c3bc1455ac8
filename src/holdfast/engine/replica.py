"""One replica: it beats, does the duties whose terms it holds, and takes over those that stand still."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from ..duties.actions import Match, Spawn
from ..duties.converge import Converge
from ..duties.deadlines import Deadlines
from ..duties.duty import Duty, Ports
from ..duties.match import MatchDuty
from ..duties.pools import Pools
from ..duties.prune import Prune
from ..duties.scale import Scale
from ..ports.cluster import ClusterUnavailable
from ..ports.store import AgentReport, Beat, StoreUnavailable
from ..recovery.marks import Marks
from .apply import Apply
from .desk import Desk
from .hints import Hints
from .metrics import Metrics
from .passes import Passes
from .terms import BEAT, TERM, Terms, stale_after
from .wakes import Wakes

log = structlog.get_logger()

UNAVAILABLE = (StoreUnavailable, ClusterUnavailable)


class Replica:
    def __init__(
        self,
        id_: str,
        ports: Ports,
        apply: Apply,
        desk: Desk,
        wakes: Wakes,
        metrics: Metrics,
        url: str,
        pid: int,
        host: str,
        version: str,
    ) -> None:
        self.id = id_
        self.ports = ports
        self.apply = apply
        self._desk = desk
        self._wakes = wakes
        self._metrics = metrics
        self._about = (pid, host, url, version)
        self.converge = Converge()
        self.duties: dict[str, Duty] = {
            duty.name: duty for duty in (MatchDuty(), Deadlines(), self.converge, Scale(), Pools(), Prune())
        }
        self.terms = Terms(id_)
        self._pokes = {name: asyncio.Event() for name in self.duties}
        self._passes = Passes(ports, apply, self.terms, metrics, self.hint)
        self._hints = Hints(ports, self.converge, self.terms, self._passes)
        self._marks = Marks(ports.store, ports.cluster, metrics.cluster_errors.inc)
        self._words: dict[str, AgentReport] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._freeing: set[asyncio.Task[None]] = set()
        self._last_beat: float | None = None
        self._joined = False
        self._takeover: asyncio.Task[None] | None = None
        self.beat_at: float | None = None  # when the store last heard us, by our clock
        self.waits_for: str | None = "it has only just started"  # why the last beat was not stored

    # Life

    def start(self) -> None:
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._beats,
            self._pulses,
            self._notices,
            self._hints.changes,
            self._hints.looks,
            self._hints.dues,
        ]
        for loop in loops:
            self._tasks.append(asyncio.create_task(self._for_ever(loop), name=loop.__name__))
        for duty in self.duties.values():
            self._tasks.append(asyncio.create_task(self._for_ever(partial(self._duty, duty)), name=duty.name))

    async def stop(self) -> None:
        """Our terms are free at once for others; workers and claims are not touched."""
        tasks = [*self._tasks, *([self._takeover] if self._takeover else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._marks.close()
        with contextlib.suppress(*UNAVAILABLE):
            await self._flush()
            await self.ports.store.fleet.leave(self.id)

    async def _for_ever(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """No loop of a replica ends by an error: a dark duty is worse than a repeated one (P6)."""
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
        """Once a second: alive, terms renewed, heard time moved, lost commits looked for."""
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
            await fleet.join(self.id, *self._about)
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
            # Beside the beat: a duty's trial read must not make us look dead.
            self._takeover = asyncio.create_task(self._take_stale(beat))
        if beat.recovering:
            self._joined = False  # the database may be from before we came
            self._pokes["converge"].set()

    async def _take_stale(self, beat: Beat) -> None:
        with contextlib.suppress(*UNAVAILABLE):
            await self._take_terms(beat, stale=True)

    async def _take_terms(self, beat: Beat, *, stale: bool) -> None:
        periods = {duty.name: duty.period for duty in self.duties.values()}
        for term, is_stale in list(self.terms.to_take(beat, periods)):
            if is_stale != stale:
                continue
            if stale and not await self._reads_work(term.duty):
                continue  # with the cluster down every duty is stale everywhere: nobody steals in a storm
            sent = _now()
            number = await self.ports.store.fleet.take_term(term.duty, self.id, TERM, stale_after(periods[term.duty]))
            if number is not None:
                log.info(
                    "term taken",
                    duty=term.duty,
                    number=number,
                    replica=self.id,
                    before=term.holder,
                    stale=stale,
                )
                self.terms.took(term.duty, number, sent)
                self._pokes[term.duty].set()

    async def _reads_work(self, duty: str) -> bool:
        try:
            await asyncio.wait_for(self.duties[duty].observe(self.ports), 10)
        except (TimeoutError, *UNAVAILABLE):
            return False
        return True

    # Duties

    async def _duty(self, duty: Duty) -> None:
        poke = self._pokes[duty.name]
        while True:
            started = _now()
            if self.terms.trusted(duty.name, started):
                did = await self._passes.run_once(duty)
                if any(isinstance(action, Spawn) for action in did):
                    poke.set()  # one pass makes a few pods: the next may come at once
            # At least 50 ms between two passes: hints may come faster than that.
            await asyncio.sleep(0.05)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(poke.wait(), max(0.05, duty.period - (_now() - started)))
            poke.clear()

    # Hints

    def hint(self, names: set[str]) -> None:
        """These workers may need something: look soon."""
        self._hints.hint(names)

    def freed(self, pool_id: str) -> None:
        """A worker became free here: pair what waits, without waiting for the backstop."""
        task = asyncio.create_task(self._match_freed(pool_id))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _match_freed(self, pool_id: str) -> None:
        with contextlib.suppress(*UNAVAILABLE):
            await self.apply(Match(pool_id))

    def poke(self, duty: str) -> None:
        self._pokes[duty].set()

    async def _notices(self) -> None:
        notices = await self.ports.store.listen()
        try:
            async for kind, ids in notices:
                if kind == "reset":
                    self._wakes.wake_all()
                elif kind == "c":
                    for claim in ids:
                        self._wakes.notice_claim(claim)
                elif kind == "w":
                    for worker in ids:
                        self._wakes.wake_worker(worker)
                    self.hint(set(ids))
                elif kind == "p":
                    self.poke("match")
                    self.poke("scale")
        finally:
            await notices.close()

    # Pulses

    def word(self, word: AgentReport) -> None:
        """An agent spoke; stored with others once a second, or not at all: said before an outage, it would be taken for said
        after it, and speak for a worker that was given to somebody meanwhile. Agents say it again within 20 s."""
        self._words[word.worker] = word

    async def _pulses(self) -> None:
        while True:
            await asyncio.sleep(1)
            await self._flush()

    async def _flush(self) -> None:
        words, self._words = self._words, {}
        if words:
            await self.ports.store.workers.beat(list(words.values()))


def _now() -> float:
    return asyncio.get_running_loop().time()
