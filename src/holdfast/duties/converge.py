"""Compare each worker's row with its pod, and plan the actions of its case."""

import asyncio
from collections.abc import Iterable

import structlog

from ..model.pod import Pod
from ..ports.cluster import ClusterUnavailable
from ..ports.store import Facts, Row
from ..recovery.compare import finish
from .actions import Action, Quarantine, ShowFacts
from .cases import classify
from .duty import Ports
from .facts import new_facts
from .observed import Observed

log = structlog.get_logger()


class Converge:
    """The full pass; `observe_some` reads only a few workers, after a hint."""

    name = "converge"
    period = 15.0

    def __init__(self) -> None:
        # Hints that make passes cheaper. Nothing depends on them, because a replica that takes over starts without them.
        self._missing: frozenset[str] = frozenset()
        self._quarantined: frozenset[str] = frozenset()
        self._strange: dict[str, float] = {}  # UIDs of pods without a row → when first seen, by this replica's clock

    async def observe(self, ports: Ports) -> Observed:
        pods = {pod.name: pod for pod in await ports.cluster.pods()}
        rows = {row.worker.id: row for row in await ports.store.workers.rows(None)}
        known = sum(row.worker.pod_uid is not None for row in rows.values())
        if not pods and known > 1:
            # P7: when all pods vanish at the same time, the list is wrong, not the pods.
            raise ClusterUnavailable(f"no pods are listed, and {known} workers had one")
        observed = await self._observed(ports, pods, rows)
        self._missing = frozenset(
            name for name, row in rows.items() if name not in pods or row.worker.pod_uid not in (None, pods[name].uid)
        )
        return observed

    async def observe_some(self, ports: Ports, names: Iterable[str]) -> Observed:
        """Reads these workers only. A pod that is missing from this view is provably absent."""
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
        """Returns for how many seconds this replica has seen each pod without a row. The pod's own age is not enough: it is the
        difference of the database's and the cluster's clock, so after a jump back an orphan would look too young for that
        long."""
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
        # Facts come last, because they raise a row's version, which would make the other actions of this plan stale.
        return [*actions, ShowFacts(tuple(facts))] if facts else actions

    def _of_one(self, row: Row | None, pod: Pod | None, observed: Observed) -> list[Action]:
        """Plans for one worker. An error is logged and not raised, so that one worker cannot stop the pass for all others."""
        try:
            return classify(row, pod, observed).actions
        except Exception:
            name = row.worker.id if row is not None else pod.name if pod is not None else "?"
            log.exception("could not classify a worker; it is skipped", worker=name)
            return []
