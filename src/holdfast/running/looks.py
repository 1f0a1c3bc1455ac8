"""Let `converge` look at single workers soon after they changed, between two of its full passes."""

import asyncio
from collections.abc import Iterable, Mapping

from ..claimpath.signals import Signals
from ..duties.actions import Action
from ..duties.cases import RETIRING_LOOK, SILENT, SPAWN_LOOK
from ..duties.converge import Converge
from ..duties.duty import Ports
from ..ports.cluster import ClusterUnavailable
from ..ports.store import Row, Store, StoreUnavailable
from .passes import Passes
from .terms import Terms

DUE_PERIOD = 3.0  # seconds between two searches for workers that have become due by time alone
GATHER = 0.1  # seconds between two looks, so that workers that change meanwhile are looked at together
STEP = 0.2  # seconds between two steps of a chain, so that a worker that keeps changing does not keep the replica busy


class Looks:
    """Runs `converge` for single workers after a signal. Signals may be repeated, merged or lost; a full pass of `converge` finds
    what they missed."""

    def __init__(self, ports: Ports, converge: Converge, terms: Terms, passes: Passes, signals: Signals) -> None:
        self._ports = ports
        self._converge = converge
        self._terms = terms
        self._passes = passes
        self._names: set[str] = set()
        self._changed = asyncio.Event()
        self._next: set[str] = set()
        signals.workers.subscribe(self.soon)

    def soon(self, names: Iterable[str]) -> None:
        """Looks at these workers soon."""
        self._names.update(names)
        self._changed.set()

    async def at_changed(self) -> None:
        """Looks at workers that were signalled, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            names, self._names = self._names, set()
            if names and self._ours():
                await self._look(names)
                await asyncio.sleep(GATHER)

    async def at_due(self) -> None:
        """Looks at workers that have become due by time alone, until cancelled."""
        while True:
            await asyncio.sleep(DUE_PERIOD)
            if self._ours():
                self.soon(await due_workers(self._ports.store))

    async def at_pod_changes(self) -> None:
        """Looks at workers whose pods changed, until cancelled."""
        async for names in self._ports.cluster.changes():
            self.soon(names)

    async def _look(self, names: set[str]) -> None:
        try:
            seen = await self._converge.observe_some(self._ports, names)
        except (StoreUnavailable, ClusterUnavailable):
            self._names |= names  # looked at again with the next signal, or in a few seconds
            raise
        applied = await self._passes.do(self._converge, self._converge.plan(seen))
        following = {name for action in applied.done for name in _workers_of(action, seen.rows)}
        if following and not self._next:
            # One step leads to the next (dead, ended, buried), but only if it took effect, and after STEP seconds.
            asyncio.get_running_loop().call_later(STEP, self._step)
        self._next |= following

    def _step(self) -> None:
        names, self._next = self._next, set()
        self.soon(names)

    def _ours(self) -> bool:
        return self._terms.trusted("converge", asyncio.get_running_loop().time())


async def due_workers(store: Store) -> list[str]:
    """Returns workers for which something has become due by time alone, by the same limits as in a full pass."""
    return await store.workers.due(no_pod=SPAWN_LOOK, retiring=RETIRING_LOOK, silent=SILENT)


def _workers_of(action: Action, rows: Mapping[str, Row]) -> set[str]:
    """Returns the workers that an action is about, by their own name or through their claim."""
    names = {name for name in (getattr(action, "worker", None), getattr(action, "name", None)) if isinstance(name, str)}
    claim = getattr(action, "claim", None)
    return names | {id_ for id_, row in rows.items() if claim is not None and row.worker.claim == claim}
