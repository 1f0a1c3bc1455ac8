"""One replica: it beats, does the duties whose terms it holds, and takes over those that stand still."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from ..duties.actions import Action
from ..duties.converge import Converge
from ..duties.deadlines import Deadlines
from ..duties.duty import Duty, Ports
from ..duties.match import MatchDuty
from ..duties.pools import Pools
from ..duties.prune import Prune
from ..duties.scale import Scale
from ..model.outcome import Done, Failed, Skipped
from ..ports.cluster import ClusterUnavailable, Remembered
from ..ports.store import Beat, StoreUnavailable, Word
from .apply import Apply
from .desk import Desk
from .metrics import Metrics
from .terms import BEAT, TERM, Terms, stale_after
from .wakes import Wakes

log = structlog.get_logger()

SLICE = 200  # actions between two moments in which requests are served
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
        self._hints: set[str] = set()
        self._hinted = asyncio.Event()
        self._words: dict[str, Word] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._last_beat: float | None = None
        self._mark = 0
        self._joined = False
        self.beat_at: float | None = None  # when the store last heard us, by our clock

    # Life

    def start(self) -> None:
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._beats,
            self._pulses,
            self._notices,
            self._changes,
            self._some,
        ]
        for loop in loops:
            self._tasks.append(asyncio.create_task(self._for_ever(loop), name=loop.__name__))
        for duty in self.duties.values():
            self._tasks.append(asyncio.create_task(self._for_ever(partial(self._duty, duty)), name=duty.name))

    async def stop(self) -> None:
        """Our terms are free at once for others; workers and claims are not touched."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
            except StoreUnavailable as error:
                self._metrics.store_errors.inc()
                log.warning("beat not stored", replica=self.id, error=str(error))
            await asyncio.sleep(max(0.05, BEAT - (_now() - started)))

    async def beat(self) -> None:
        """Once a second: alive, terms renewed, heard time moved, lost commits looked for."""
        store = self.ports.store
        if not self._joined:
            await store.fleet.join(self.id, *self._about)
            self._joined = True
            await self._compare_mark((await store.fleet.state()).mark)
        sent = _now()
        elapsed = None if self._last_beat is None else sent - self._last_beat
        beat = await store.fleet.beat(self.id, elapsed, TERM, self.terms.reports())
        self._last_beat = sent
        self.beat_at = _now()
        self.terms.stored(beat, sent)
        if beat.mark <= self._mark:
            await self._lost_commits(f"the database shows mark {beat.mark}, and {self._mark} was seen")
        self._mark = max(self._mark, beat.mark)
        await self._remember(beat)
        await self._take_terms(beat)
        if beat.recovering:
            self._pokes["converge"].set()

    async def _compare_mark(self, mark: int) -> None:
        try:
            known = await self.ports.cluster.remembered()
        except ClusterUnavailable:
            return
        if known is not None and known.install == self.ports.cluster.install and known.mark > mark:
            self._mark = known.mark
            await self._lost_commits(f"the database shows mark {mark}, and {known.mark} was kept outside")

    async def _lost_commits(self, reason: str) -> None:
        log.error("the database lost commits: recovery begins", replica=self.id, reason=reason)
        await self.ports.store.fleet.begin_recovery(reason, self._mark)

    async def _remember(self, beat: Beat) -> None:
        try:
            await self.ports.cluster.remember(Remembered(self.ports.cluster.install, beat.mark, beat.epoch))
        except ClusterUnavailable:
            self._metrics.cluster_errors.inc()

    async def _take_terms(self, beat: Beat) -> None:
        periods = {duty.name: duty.period for duty in self.duties.values()}
        for term, stale in list(self.terms.to_take(beat, periods)):
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
                await self.run_once(duty)
            # At least 50 ms between two passes: hints may come faster than that.
            await asyncio.sleep(0.05)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(poke.wait(), max(0.05, duty.period - (_now() - started)))
            poke.clear()

    async def run_once(self, duty: Duty) -> list[Action]:
        """One pass: observe, plan, apply. It has succeeded only if its reads did."""
        tally, started = self.terms.tally(duty.name), _now()
        try:
            seen = await duty.observe(self.ports)
        except UNAVAILABLE as error:
            tally.skips += 1
            tally.failure = str(error)
            if isinstance(error, ClusterUnavailable):
                self._metrics.cluster_errors.inc()
            return []
        actions = duty.plan(seen)
        tally.progressed = True
        await self.do(duty.name, actions)
        tally = self.terms.tally(duty.name)
        tally.succeeded, tally.progressed, tally.failure = True, True, None
        tally.seconds = _now() - started
        return actions

    async def do(self, duty: str, actions: list[Action]) -> None:
        """Apply a plan. Running it twice at once is wasteful, never wrong: every action is guarded."""
        for n, action in enumerate(actions):
            outcome = await self.apply(action)
            tally = self.terms.tally(duty)
            tally.progressed = True
            tally.actions += isinstance(outcome, Done)
            tally.skips += isinstance(outcome, Skipped)
            if isinstance(outcome, Failed):
                tally.failure = outcome.reason
                log.warning("action failed", duty=duty, action=type(action).__name__, reason=outcome.reason)
            name = getattr(action, "worker", None) or getattr(action, "name", None)
            if isinstance(outcome, Done) and duty != "converge" and isinstance(name, str):
                self.hint({name})  # what changed is looked at again at once, not by the next full pass
            if n % SLICE == SLICE - 1:
                await asyncio.sleep(0)

    # Hints

    def hint(self, names: set[str]) -> None:
        """These workers may need something: look soon."""
        self._hints |= names
        self._hinted.set()

    def poke(self, duty: str) -> None:
        self._pokes[duty].set()

    async def _some(self) -> None:
        while True:
            await self._hinted.wait()
            self._hinted.clear()
            names, self._hints = self._hints, set()
            if not names or not self.terms.trusted("converge", _now()):
                continue
            seen = await self.converge.observe_some(self.ports, names)
            actions = self.converge.plan(seen)
            await self.do("converge", actions)
            again = {a.worker for a in actions if hasattr(a, "worker") and isinstance(a.worker, str)}
            again |= {
                worker
                for worker, row in seen.rows.items()
                if row.worker.claim and any(getattr(a, "claim", None) == row.worker.claim for a in actions)
            }
            if again:
                # One step leads to the next (dead, ended, buried); but never faster than this.
                asyncio.get_running_loop().call_later(0.2, self.hint, again)

    async def _changes(self) -> None:
        async for names in self.ports.cluster.changes():
            self.hint(names)

    async def _notices(self) -> None:
        notices = await self.ports.store.listen()
        try:
            async for kind, ids in notices:
                if kind == "reset":
                    self._wakes.wake_all()
                elif kind == "c":
                    for claim in ids:
                        self._wakes.wake_claim(claim)
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

    def word(self, word: Word) -> None:
        """An agent spoke; stored with others once a second."""
        self._words[word.worker] = word

    async def _pulses(self) -> None:
        while True:
            await asyncio.sleep(1)
            await self._flush()

    async def _flush(self) -> None:
        words, self._words = self._words, {}
        if words:
            try:
                await self.ports.store.workers.beat(list(words.values()))
            except StoreUnavailable:
                self._words = {**words, **self._words}
                raise


def _now() -> float:
    return asyncio.get_running_loop().time()
