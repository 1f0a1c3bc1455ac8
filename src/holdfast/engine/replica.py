"""One replica: it beats, does the duties whose terms it holds, and takes over those that stand still."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import structlog

from ..duties.actions import Action, Match
from ..duties.converge import Converge
from ..duties.deadlines import Deadlines
from ..duties.duty import Duty, Parted, Ports
from ..duties.match import MatchDuty
from ..duties.pools import Pools
from ..duties.prune import Prune
from ..duties.scale import Scale
from ..model.outcome import Done, Failed, Skipped
from ..ports.cluster import ClusterUnavailable, Remembered
from ..ports.store import Beat, Row, StoreUnavailable, Word
from .apply import Apply
from .desk import Desk
from .metrics import Metrics
from .terms import BEAT, TERM, Terms, stale_after
from .wakes import Wakes

log = structlog.get_logger()

UNCOMPARED = 2**62  # a mark above all: nothing is done before the database was compared with what is kept outside
DUE_PERIOD = 3.0  # seconds between two looks for workers that time alone made due
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
        self._freeing: set[asyncio.Task[None]] = set()
        self._last_beat: float | None = None
        self._mark = 0
        self._epoch = 0
        self._joined = False
        self._compared = False
        self._lost: str | None = None  # why we know that commits were lost, until recovery has begun
        self._side: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        ports.store.saw(UNCOMPARED)
        self.beat_at: float | None = None  # when the store last heard us, by our clock

    # Life

    def start(self) -> None:
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._beats,
            self._pulses,
            self._notices,
            self._changes,
            self._some,
            self._dues,
        ]
        for loop in loops:
            self._tasks.append(asyncio.create_task(self._for_ever(loop), name=loop.__name__))
        for duty in self.duties.values():
            self._tasks.append(asyncio.create_task(self._for_ever(partial(self._duty, duty)), name=duty.name))

    async def stop(self) -> None:
        """Our terms are free at once for others; workers and claims are not touched."""
        tasks = [*self._tasks, *self._side.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
        store = self.ports.store
        if not self._joined:
            await store.fleet.join(self.id, *self._about)
            self._joined = True
        await self._settle_loss()
        if not self._compared:
            await self._compare_mark()
        sent = _now()
        elapsed = None if self._last_beat is None else sent - self._last_beat
        beat = await store.fleet.beat(self.id, elapsed, TERM, self.terms.reports())
        self._last_beat = sent
        self.beat_at = _now()
        self.terms.stored(beat, sent)
        if beat.mark <= self._mark or beat.epoch < self._epoch:
            self._lost = f"the database shows mark {beat.mark}, and {self._mark} was seen"
        await self._settle_loss()
        self._mark, self._epoch = max(self._mark, beat.mark), max(self._epoch, beat.epoch)
        store.saw(self._mark)
        # Beside the beat: neither a slow file nor a duty's trial read may make us look dead.
        self._beside("remember", self._remember, beat)
        await self._take_terms(beat, stale=False)
        self._beside("takeover", partial(self._take_terms, stale=True), beat)
        if beat.recovering:
            self._pokes["converge"].set()

    async def _compare_mark(self) -> None:
        """Before anything is done: does the database still know what was kept outside of it?"""
        known = await self.ports.cluster.remembered()
        state, ours = await self.ports.store.fleet.state(), self.ports.cluster.install
        if state.install != ours:
            raise ClusterUnavailable(f"this database is installation {state.install}'s, and these pods are {ours}'s")
        mark = state.mark
        if known is not None and known.install == self.ports.cluster.install and known.mark > mark:
            self._mark, self._epoch = known.mark, known.epoch
            self._lost = f"the database shows mark {mark}, and {known.mark} was kept outside"
            await self._settle_loss()
        self._compared = True
        self.ports.store.saw(max(self._mark, mark))

    async def _settle_loss(self) -> None:
        """What was once seen is not forgotten: until recovery has begun, every beat tries again, and nothing is acted on."""
        if self._lost is None:
            return
        self.ports.store.saw(UNCOMPARED)
        log.error("the database lost commits: recovery begins", replica=self.id, reason=self._lost)
        await self.ports.store.fleet.begin_recovery(self._lost, self._mark, self._epoch)
        self._lost = None

    def _beside(self, name: str, work: Callable[[Beat], Coroutine[Any, Any, None]], beat: Beat) -> None:
        """Something that may take long, once at a time."""
        running = self._side.get(name)
        if running is None or running.done():
            self._side[name] = asyncio.create_task(self._quietly(work, beat))

    async def _quietly(self, work: Callable[[Beat], Coroutine[Any, Any, None]], beat: Beat) -> None:
        with contextlib.suppress(*UNAVAILABLE):
            await work(beat)

    async def _remember(self, beat: Beat) -> None:
        try:
            await self.ports.cluster.remember(Remembered(self.ports.cluster.install, beat.mark, beat.epoch))
        except ClusterUnavailable:
            self._metrics.cluster_errors.inc()

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
                await self.run_once(duty)
            # At least 50 ms between two passes: hints may come faster than that.
            await asyncio.sleep(0.05)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(poke.wait(), max(0.05, duty.period - (_now() - started)))
            poke.clear()

    async def run_once(self, duty: Duty) -> list[Action]:
        """One pass: observe, plan, apply. It has succeeded only if its reads did, and not if all it tried failed. A pass that
        stands still is given up, so that one call without an answer cannot darken a duty for ever."""
        tally, started = self.terms.tally(duty.name), _now()
        try:
            async with asyncio.timeout(stale_after(duty.period)) as patience:
                seen = await duty.observe(self.ports)
                actions = []
                for part in seen.parts() if isinstance(seen, Parted) else (seen,):
                    actions += duty.plan(part)
                    await asyncio.sleep(0)
                tally.progressed = True
                failed = await self.do(duty.name, actions, patience)
        except (TimeoutError, *UNAVAILABLE) as error:
            tally = self.terms.tally(duty.name)
            tally.skips += 1
            tally.failure = str(error) or "a pass stood still and was given up"
            if isinstance(error, ClusterUnavailable):
                self._metrics.cluster_errors.inc()
            return []
        tally = self.terms.tally(duty.name)
        tally.succeeded = failed is None or failed[0] < len(actions)
        tally.progressed, tally.failure = True, failed[1] if failed else None
        tally.seconds = _now() - started
        return actions

    async def do(
        self, duty: str, actions: list[Action], patience: asyncio.Timeout | None = None, done: list[Action] | None = None
    ) -> tuple[int, str] | None:
        """Apply a plan; how many actions failed, and why the last did. Running a plan twice at once is wasteful, never wrong:
        every action is guarded."""
        failures, why = 0, ""
        for n, action in enumerate(actions):
            outcome = await self.apply(action)
            if patience is not None:
                patience.reschedule(_now() + stale_after(self.duties[duty].period))
            tally = self.terms.tally(duty)
            tally.progressed = True
            tally.actions += isinstance(outcome, Done)
            if done is not None and isinstance(outcome, Done):
                done.append(action)
            tally.skips += isinstance(outcome, Skipped)
            if isinstance(outcome, Failed):
                failures, why = failures + 1, outcome.reason
                log.warning("action failed", duty=duty, action=type(action).__name__, reason=outcome.reason)
            name = getattr(action, "worker", None) or getattr(action, "name", None)
            if isinstance(outcome, Done) and duty != "converge" and isinstance(name, str):
                self.hint({name})  # what changed is looked at again at once, not by the next full pass
            if n % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        return (failures, why) if failures else None

    # Hints

    def hint(self, names: set[str]) -> None:
        """These workers may need something: look soon."""
        self._hints |= names
        self._hinted.set()

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

    async def _some(self) -> None:
        while True:
            await self._hinted.wait()
            self._hinted.clear()
            names, self._hints = self._hints, set()
            if not names or not self.terms.trusted("converge", _now()):
                continue
            try:
                seen = await self.converge.observe_some(self.ports, names)
            except UNAVAILABLE:
                self._hints |= names  # looked at again with the next hint, or in a few seconds
                raise
            done: list[Action] = []
            await self.do("converge", self.converge.plan(seen), done=done)
            again = {name for action in done for name in _workers_of(action, seen.rows)}
            if again and not self._again:
                # One step leads to the next (dead, ended, buried); but only where it was taken, and never faster than this.
                asyncio.get_running_loop().call_later(0.2, self._hint_again)
            self._again |= again

    def _hint_again(self) -> None:
        names, self._again = self._again, set()
        self.hint(names)

    async def _dues(self) -> None:
        """Between two full passes: workers for whom time alone has made something due."""
        while True:
            await asyncio.sleep(DUE_PERIOD)
            if self.terms.trusted("converge", _now()):
                self.hint(set(await self.ports.store.workers.due()) | self._hints)

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


def _workers_of(action: Action, rows: Mapping[str, Row]) -> set[str]:
    """Whom an action was about: by its own name, or through its claim."""
    names = {name for name in (getattr(action, "worker", None), getattr(action, "name", None)) if isinstance(name, str)}
    claim = getattr(action, "claim", None)
    return names | {id_ for id_, row in rows.items() if claim is not None and row.worker.claim == claim}


def _now() -> float:
    return asyncio.get_running_loop().time()
