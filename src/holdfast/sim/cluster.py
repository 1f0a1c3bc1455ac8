"""One replica's connection to the simulated cluster: requests take time, fail or arrive late; lists are stale; hints get lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, TypeVar

from ..local.keeping import Tokens
from ..local.outputs import CLAIM
from ..model.pod import Pod, Stamp
from ..model.pool import FieldProblem, Pool
from ..ports.cluster import AgentIdentity, ClusterUnavailable, Finding, Order, OutcomeUnknown, Output, Refused
from ..ports.declared import Declarations
from ..ports.recovery import Remembered
from .loop import later
from .world import Weather, World, WorldPod

T = TypeVar("T")

BOUND = 1.0  # seconds until a protection must have returned, as the port promises
RECONNECT = 5.0  # seconds until a watch that missed something lists everything again


class Fate(NamedTuple):
    """What happens to one request. The number of draws is constant, so that a change of weather does not change later draws."""

    failing: float
    lost: float
    reset: float
    late: float
    late_by: float
    stale: float
    stale_by: float
    empty: float
    there: float
    back: float

    @classmethod
    def draw(cls, source: random.Random, weather: Weather) -> "Fate":
        return cls(
            failing=source.random(),
            lost=source.random(),
            reset=source.random(),
            late=source.random(),
            late_by=source.uniform(*weather.late_by),
            stale=source.random(),
            stale_by=source.uniform(*weather.stale_by),
            empty=source.random(),
            there=source.uniform(*weather.latency),
            back=source.uniform(*weather.latency),
        )


class Watch:
    """Delivers hints to one replica: late, twice, or never. The next full list replaces lost hints."""

    def __init__(self, world: World, install: str, source: random.Random, partitioned: Callable[[], bool]) -> None:
        self._world = world
        self._install = install
        self._source = source
        self._partitioned = partitioned
        self._woken = asyncio.Event()
        self._names: set[str] = set()
        self._known: set[str] = set()
        self._list_at = world.clock.now() + world.weather.relist

    def tell(self, pod: WorldPod) -> None:
        if pod.install != self._install:
            return
        weather, name, source = self._world.weather, pod.name, self._source
        dropped, doubled = source.random() < weather.hints_dropped, source.random() < weather.hints_doubled
        first, second = source.uniform(*weather.hint_delay), source.uniform(*weather.hint_delay)
        self._known.add(name)
        if not dropped:
            later(first, lambda: self._arrive(name))
        if not dropped and doubled:
            later(first + second, lambda: self._arrive(name))

    def _arrive(self, name: str) -> None:
        if self._partitioned():
            self._list_at = min(self._list_at, self._world.clock.now() + RECONNECT)
        else:
            self._names.add(name)
        self._woken.set()

    async def next(self) -> set[str]:
        """Returns the names that changed, or all names when a full list is due. Returns none if that list cannot be read."""
        while not self._names:
            if (wait := self._list_at - self._world.clock.now()) <= 0:
                return self._listed()
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                continue
            self._woken.clear()
        names, self._names = self._names, set()
        return names

    def _listed(self) -> set[str]:
        now = self._world.clock.now()
        if self._partitioned():
            self._list_at = now + RECONNECT
            return set()
        self._list_at = now + self._world.weather.relist
        shown = {pod.name for pod in self._world.listed(self._install)}
        names, self._known = shown | self._known, shown
        return names


class SimCluster:
    """Implements the Cluster port. A request that was sent still arrives if its sender is cancelled or killed."""

    declarations: Declarations | None = None
    passes_input = True
    separates_jobs = True

    def __init__(
        self,
        world: World,
        install: str,
        key: bytes,
        source: random.Random,
        partitioned: Callable[[], bool],
        cut: Callable[[], bool],
    ) -> None:
        self.install = install
        self._world = world
        self._tokens = Tokens(install, key)
        self._source = source
        self._partitioned = partitioned
        self._cut = cut
        self._hints = random.Random(source.getrandbits(64))

    # Reads

    async def pods(self) -> list[Pod]:
        fate, weather = self._draw(), self._world.weather

        def look() -> list[Pod]:
            if fate.empty < weather.empty:
                return []
            return self._world.listed(self.install, fate.stale_by if fate.stale < weather.stale else 0.0)

        return await self._ask("list", look, fate)

    async def read(self, name: str) -> Pod | None:
        def look() -> Pod | None:
            pod = self._world.find(self.install, name)
            return pod.view() if pod is not None else None

        return await self._ask("read", look)

    async def output(self, claim: str, worker: str, offset: int, limit: int, reader: str = "") -> Output:
        if not CLAIM.fullmatch(claim):
            raise ValueError(f"not the id of a claim: {claim!r}")
        return await self._ask("output", lambda: self._world.output(claim, offset, limit))

    async def verify(self, token: str) -> AgentIdentity | None:
        def look() -> AgentIdentity | None:
            identity = self._tokens.read(token)
            pod = self._world.find(self.install, identity.worker, identity.uid) if identity is not None else None
            return identity if pod is not None and pod.view().phase != "ended" else None

        return await self._ask("verify", look)

    async def check(self, pool: Pool) -> list[FieldProblem]:
        return await self._ask("check", list)

    async def diagnose(self, pools: Sequence[Pool]) -> list[Finding]:
        return []

    async def ensure(self, pools: Sequence[Pool]) -> None:
        """Do nothing, because simulated pods need no other objects."""

    async def seal(self, name: str, uid: str) -> None:
        """Do nothing, because a simulated agent uses its control channel until its pod ends."""

    async def remembered(self) -> Remembered | None:
        return await self._ask("remembered", lambda: self._world.remembered(self.install))

    # Writes

    async def read_cached(self, names: Sequence[str]) -> dict[str, Pod]:
        found = [(name, await self.read(name)) for name in names]
        return {name: pod for name, pod in found if pod is not None}

    async def create(self, order: Order) -> Pod | Refused:
        return await self._ask("create", lambda: self._world.create(order, self.install, self._tokens.issue), write=True)

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        return await self._ask(
            "protect", lambda: self._world.protect(self.install, name, uid, stamp), write=True, may_be_late=True, bound=BOUND
        )

    async def clear(self, name: str, uid: str, version: str) -> bool:
        return await self._ask("clear", lambda: self._world.clear(self.install, name, uid, version), write=True, may_be_late=True)

    async def delete(self, name: str, uid: str, grace: float) -> None:
        await self._ask("delete", lambda: self._world.delete(self.install, name, uid, grace), write=True, may_be_late=True)

    async def forget(self, name: str, uid: str) -> None:
        await self._ask("forget", lambda: self._world.forget(self.install, name, uid), write=True)

    async def output_sizes(self) -> dict[str, int]:
        return await self._ask("sizes", self._world.output_sizes)

    async def prune_output(self, keep: set[str]) -> int:
        return await self._ask("prune", lambda: self._world.prune_output(keep), write=True)

    async def remember(self, mark: Remembered) -> None:
        await self._ask("remember", lambda: self._world.remember(mark), write=True)

    async def close(self) -> None:
        pass

    # The watch

    async def changes(self) -> AsyncIterator[set[str]]:
        watch = Watch(self._world, self.install, self._hints, self._partitioned)
        self._world.watchers.append(watch.tell)
        try:
            while True:
                names = await watch.next()
                if self._cut():
                    raise asyncio.CancelledError
                if names:
                    yield names
        finally:
            self._world.watchers.remove(watch.tell)

    # Requests and answers

    def _draw(self) -> Fate:
        return Fate.draw(self._source, self._world.weather)

    async def _ask(
        self,
        what: str,
        effect: Callable[[], T],
        fate: Fate | None = None,
        *,
        write: bool = False,
        may_be_late: bool = False,
        bound: float | None = None,
    ) -> T:
        if self._cut():
            raise asyncio.CancelledError
        weather, fate = self._world.weather, fate or self._draw()
        patience = min(bound, weather.timeout) if bound is not None else weather.timeout
        if self._partitioned():
            await asyncio.sleep(patience * fate.reset)
            raise ClusterUnavailable(f"{what}: no route to the cluster")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        late = may_be_late and fate.late < weather.late

        def arrive() -> None:
            if self._partitioned() and not late:  # a late request has already left the replica
                return
            if fate.failing < weather.failing:
                back(ClusterUnavailable(f"{what}: 500 Internal Server Error"))
                return
            result = effect()  # an exception comes from a checker and ends the run
            if fate.lost >= weather.lost:
                back(result)
            elif fate.reset < 0.5:  # otherwise there is no answer at all
                reset = "connection reset after the request was sent"
                back(OutcomeUnknown(f"{what}: {reset}") if write else ClusterUnavailable(f"{what}: {reset}"))

        def back(result: T | Exception) -> None:
            def deliver() -> None:
                if answer.done() or self._partitioned():
                    return
                if isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)

            later(fate.back, deliver)

        later(patience + fate.late_by if late else fate.there, arrive)
        try:
            async with asyncio.timeout(patience):
                got = await answer
        except TimeoutError:
            no_answer = f"{what}: no answer within {patience:g} s"
            raise (OutcomeUnknown(no_answer) if write else ClusterUnavailable(no_answer)) from None
        if self._cut():
            raise asyncio.CancelledError
        return got
