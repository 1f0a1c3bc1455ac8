"""Notice lost commits: the database must never show less than any replica has seen."""

import asyncio
from collections.abc import Callable

import structlog

from ..ports.cluster import Cluster, ClusterUnavailable
from ..ports.recovery import UNCOMPARED, Remembered, Seen
from ..ports.store import Beat, Store

log = structlog.get_logger()

LIST_SECONDS = 5.0  # after an interruption, for a list of all pods: longer than one of ten thousand takes
UNHEARD_SECONDS = 5.0  # without a stored beat, of one a second: asleep, or cut off. Others may have seen more, and lost it
LOOK_SECONDS = 0.5  # a beat waits no longer for what is kept outside, or a slow disk would make its replica look dead


class Marks:
    """Keeps the highest mark and epoch that this replica knows of, from its own beats and from what any replica kept outside the
    database. Every beat carries them, and the database compares them with its own.

    What is kept outside is read before each beat, because the mark of a replica that has died since is stored nowhere else. While
    beats are stored, a read that fails is skipped. After an interruption, as at the start, the database may be another one: no
    beat is sent before the read succeeded and the stamps of all pods were compared."""

    def __init__(self, store: Store, cluster: Cluster, count_error: Callable[[], None]) -> None:
        self.seen = Seen()
        self._store = store
        self._cluster = cluster
        self._count_error = count_error  # of the cluster
        self._calm, self._stored_at = False, 0.0
        self._recovering = False
        self._looking: asyncio.Task[str | None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        store.recovery.saw(UNCOMPARED)

    async def look(self) -> None:
        """Reads, before a beat, what other replicas have seen. After an interruption also checks that the database is ours."""
        if asyncio.get_running_loop().time() - self._stored_at > UNHEARD_SECONDS:
            self.interrupted()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._read())
        await asyncio.wait((self._looking,), timeout=LOOK_SECONDS)
        if self._calm:
            return
        unread = self._looking.result() if self._looking.done() else f"the mark was not read within {LOOK_SECONDS} s"
        if unread is not None:
            raise ClusterUnavailable(f"marks not yet compared: {unread}")
        state, ours = await self._store.recovery.state(), self._cluster.install
        if state.install != ours:
            raise ClusterUnavailable(f"this database is installation {state.install}'s, and these pods are {ours}'s")
        await self._compare_stamps()

    def stored(self, beat: Beat) -> None:
        """Remembers what the database showed in this beat, and keeps it outside for the other replicas. The write happens beside
        the beat, so that a slow disk does not delay the next one."""
        if beat.recovering and not self._recovering:
            log.error("the database lost commits: everything waits until pods and agents are compared", epoch=beat.seen.epoch)
        self.seen = self.seen.raised_to(beat.seen)
        self._calm, self._recovering = True, beat.recovering
        self._stored_at = asyncio.get_running_loop().time()
        self._store.recovery.saw(self.seen.mark, UNHEARD_SECONDS)
        if self._keeping is None or self._keeping.done():
            shown = Remembered(self._cluster.install, beat.seen.mark, beat.seen.epoch)
            self._keeping = asyncio.create_task(self._keep(shown))

    def interrupted(self) -> None:
        """Stops acting, because the store did not answer: when it answers again it may be another database."""
        if self._calm:
            self._calm, self._looking = False, None  # what was read before does not count
            self._store.recovery.saw(UNCOMPARED)

    async def close(self) -> None:
        tasks = [task for task in (self._looking, self._keeping) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> str | None:
        """Returns why what is kept outside could not be read, or None."""
        try:
            kept = await self._cluster.remembered()
        except ClusterUnavailable as error:
            self._count_error()
            return str(error)
        if kept is not None and kept.install == self._cluster.install:
            self.seen = self.seen.raised_to(kept)
        return None

    async def _compare_stamps(self) -> None:
        """Compares the stamps of all pods, because what was lost since the last mark shows on pods alone. If they cannot be
        listed, `converge` compares them later: one damaged pod must not stop the whole fleet."""
        try:
            pods = await asyncio.wait_for(self._cluster.pods(), LIST_SECONDS)
        except (TimeoutError, ClusterUnavailable):
            self._count_error()
        else:
            await self._store.recovery.compare_stamps(pods)

    async def _keep(self, mark: Remembered) -> None:
        try:
            await self._cluster.remember(mark)
        except ClusterUnavailable:
            self._count_error()
