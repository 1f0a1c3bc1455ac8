"""Look soon at workers that may need something: as pods, other replicas or time alone hint, and as one step leads to the next."""

import asyncio
from collections.abc import Iterable, Mapping

from ..duties.actions import Action
from ..duties.cases import RETIRING_LOOK, SILENT, SPAWN_LOOK
from ..duties.converge import Converge
from ..duties.duty import Ports
from ..ports.cluster import ClusterUnavailable
from ..ports.store import Row, Store, StoreUnavailable
from .passes import Passes
from .terms import Terms

DUE_PERIOD = 3.0  # seconds between two looks for workers that time alone made due
GATHER = 0.1  # seconds between two looks: what comes meanwhile is looked at together
STEP = 0.2  # seconds between two steps of a chain: what keeps changing must not keep us busy


class Hints:
    """Hints may repeat, merge or be lost: a full pass of `converge` finds what they missed."""

    def __init__(self, ports: Ports, converge: Converge, terms: Terms, passes: Passes) -> None:
        self._ports = ports
        self._converge = converge
        self._terms = terms
        self._passes = passes
        self._names: set[str] = set()
        self._hinted = asyncio.Event()
        self._next: set[str] = set()

    def hint(self, names: Iterable[str]) -> None:
        """These workers may need something: look soon."""
        self._names.update(names)
        self._hinted.set()

    async def looks(self) -> None:
        while True:
            await self._hinted.wait()
            self._hinted.clear()
            names, self._names = self._names, set()
            if names and self._ours():
                await self._look(names)
                await asyncio.sleep(GATHER)

    async def dues(self) -> None:
        """Between two full passes: workers for whom time alone has made something due."""
        while True:
            await asyncio.sleep(DUE_PERIOD)
            if self._ours():
                self.hint(await due_workers(self._ports.store))

    async def changes(self) -> None:
        async for names in self._ports.cluster.changes():
            self.hint(names)

    async def _look(self, names: set[str]) -> None:
        try:
            seen = await self._converge.observe_some(self._ports, names)
        except (StoreUnavailable, ClusterUnavailable):
            self._names |= names  # looked at again with the next hint, or in a few seconds
            raise
        applied = await self._passes.do(self._converge, self._converge.plan(seen))
        following = {name for action in applied.done for name in _workers_of(action, seen.rows)}
        if following and not self._next:
            # One step leads to the next (dead, ended, buried); but only where it was taken, and never faster than this.
            asyncio.get_running_loop().call_later(STEP, self._step)
        self._next |= following

    def _step(self) -> None:
        names, self._next = self._next, set()
        self.hint(names)

    def _ours(self) -> bool:
        return self._terms.trusted("converge", asyncio.get_running_loop().time())


async def due_workers(store: Store) -> list[str]:
    """Workers for whom time alone has made something due, by the same seconds as a full pass."""
    return await store.workers.due(no_pod=SPAWN_LOOK, retiring=RETIRING_LOOK, silent=SILENT)


def _workers_of(action: Action, rows: Mapping[str, Row]) -> set[str]:
    """Whom an action was about: by its own name, or through its claim."""
    names = {name for name in (getattr(action, "worker", None), getattr(action, "name", None)) if isinstance(name, str)}
    claim = getattr(action, "claim", None)
    return names | {id_ for id_, row in rows.items() if claim is not None and row.worker.claim == claim}
