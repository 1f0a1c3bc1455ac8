"""Compare each worker's row with its pod, and do what its case asks for."""

import asyncio
from collections.abc import Iterable

import structlog

from ..model.pod import Pod
from ..ports.cluster import ClusterUnavailable
from ..ports.store import Facts, Row
from ..recovery.compare import finish
from .actions import Action, Quarantine, ShowFacts
from .cases import classify, new_facts
from .duty import Ports
from .observed import Observed

log = structlog.get_logger()


class Converge:
    """The full pass; `observe_some` looks at a few workers after a hint."""

    name = "converge"
    period = 15.0

    def __init__(self) -> None:
        # Hints for cheaper or calmer passes, never authority: a replica that takes over starts without them.
        self._missing: frozenset[str] = frozenset()
        self._quarantined: frozenset[str] = frozenset()
        self._strange: dict[str, float] = {}  # UIDs of pods without a row → when we first saw them, by our own clock

    async def observe(self, ports: Ports) -> Observed:
        pods = {pod.name: pod for pod in await ports.cluster.pods()}
        rows = {row.worker.id: row for row in await ports.store.workers.rows(None)}
        known = sum(row.worker.pod_uid is not None for row in rows.values())
        if not pods and known > 1:
            # P7: a list that is empty all at once is a list that is wrong.
            raise ClusterUnavailable(f"no pods are listed, and {known} workers had one")
        observed = await self._observed(ports, pods, rows)
        self._missing = frozenset(
            name for name, row in rows.items() if name not in pods or row.worker.pod_uid not in (None, pods[name].uid)
        )
        return observed

    async def observe_some(self, ports: Ports, names: Iterable[str]) -> Observed:
        """Absence here is proof already."""
        names = sorted(names)
        pods = await ports.cluster.read_cached(names)
        rows = {row.worker.id: row for row in await ports.store.workers.rows(names)}
        return await self._observed(ports, pods, rows, proven=frozenset(names))

    async def _observed(
        self, ports: Ports, pods: dict[str, Pod], rows: dict[str, Row], proven: frozenset[str] = frozenset()
    ) -> Observed:
        strangers = [name for name in pods if name not in rows]
        strange = self._strange_for({name: pods[name].uid for name in strangers}, whole=not proven)
        heartbeats = {p.worker: p for p in await ports.store.workers.heartbeats(strangers)} if strangers else {}
        state = await ports.store.recovery.state()
        now = await ports.store.now()
        return Observed(pods, rows, heartbeats, state, now, self._missing | proven, self._quarantined, not proven, strange)

    def _strange_for(self, uids: dict[str, str], *, whole: bool) -> dict[str, float]:
        """For how long each has been without a row. Pods have the cluster's clock, rows the database's: where that one jumped
        back, an orphan would stay young for as long."""
        now = asyncio.get_running_loop().time()
        known = {uid: since for uid, since in self._strange.items() if uid in uids.values() or not whole}
        self._strange = dict.fromkeys(uids.values(), now) | known
        return {name: now - self._strange[uid] for name, uid in uids.items()}

    def plan(self, observed: Observed) -> list[Action]:
        actions: list[Action] = []
        facts: list[Facts] = []
        for name in sorted(observed.rows.keys() | observed.pods.keys()):
            row, pod = observed.rows.get(name), observed.pods.get(name)
            actions += self._of_one(row, pod, observed)
            if row is not None and pod is not None and (fact := new_facts(row, pod)) is not None:
                facts.append(fact)
        if observed.state.recovering and observed.whole:
            actions += finish(observed.pods.values(), observed.rows, observed.heartbeats, observed.state, actions)
        self._quarantined |= {a.name for a in actions if isinstance(a, Quarantine)}
        # Last: facts raise a row's version, and would make every other action of this plan stale.
        return [*actions, ShowFacts(tuple(facts))] if facts else actions

    def _of_one(self, row: Row | None, pod: Pod | None, observed: Observed) -> list[Action]:
        """One worker that cannot be judged must not keep all others from it."""
        try:
            return classify(row, pod, observed).actions
        except Exception:
            name = row.worker.id if row is not None else pod.name if pod is not None else "?"
            log.exception("a worker cannot be judged", worker=name)
            return []
