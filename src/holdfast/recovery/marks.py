"""Notice lost commits: the database must never show less than any replica has seen."""

import asyncio
from collections.abc import Callable

import structlog

from ..ports.cluster import Cluster, ClusterUnavailable
from ..ports.recovery import UNCOMPARED, Remembered, Seen
from ..ports.store import Beat, Store, StoreUnavailable
from ..tasks import end_all

log = structlog.get_logger()

LIST_SECONDS = 5.0  # for listing all pods after an interruption; a list of ten thousand pods takes less
# After so long without a stored beat (normally 1/s) the replica was asleep or cut off, and others may have seen higher marks.
UNHEARD_SECONDS = 5.0
LOOK_SECONDS = 0.5  # a beat waits no longer for the mark kept outside, because otherwise a slow disk makes the replica look dead


class Marks:
    """Keeps the highest mark and epoch that this replica knows of, from its own beats and from the copy outside the database,
    which all replicas write. Every beat sends them, and the database compares them with its own.

    The copy outside is read before each beat, because the mark of a replica that has died since is stored nowhere else. While
    beats are stored, a failed read is skipped. At the start and after an interruption the database may be a different one, so no
    beat is sent before this read has succeeded and the stamps of all pods were compared (if the pods can be listed)."""

    def __init__(self, store: Store, cluster: Cluster, count_error: Callable[[], None]) -> None:
        self.seen = Seen()
        self.epoch = 0  # what the database showed in the last stored beat
        self._store = store
        self._cluster = cluster
        self._count_error = count_error  # counts errors of the cluster
        self._calm, self._stored_at = False, 0.0
        self._recovering = self._damaged = False
        self._looking: asyncio.Task[str | None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        store.recovery.saw(UNCOMPARED)

    async def look(self) -> None:
        """Reads, before a beat, what other replicas have seen. After an interruption, also checks that the database belongs to
        this installation."""
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
            raise ClusterUnavailable(f"this database belongs to installation {state.install}, and these pods to {ours}")
        await self._compare_stamps()

    def stored(self, beat: Beat) -> None:
        """Remembers what the database showed in this beat, and writes it to the copy outside for the other replicas. The write
        runs in the background, so that a slow disk does not delay the next beat."""
        if beat.recovering and not self._recovering:
            message = "the database lost commits; nothing is given out, spawned or ended until pods and agents are compared"
            log.error(message, epoch=beat.seen.epoch)
        self.seen = self.seen.raised_to(beat.seen)
        self.epoch = beat.seen.epoch
        self._calm, self._recovering = True, beat.recovering
        self._stored_at = asyncio.get_running_loop().time()
        self._store.recovery.saw(self.seen.mark, UNHEARD_SECONDS)
        if self._keeping is None or self._keeping.done():
            shown = Remembered(self._cluster.install, beat.seen.mark, beat.seen.epoch)
            self._keeping = asyncio.create_task(self._keep(shown))

    def interrupted(self) -> None:
        """Stops acting, because the store did not answer. When it answers again it may be a different database."""
        if self._calm:
            self._calm, self._looking = False, None  # a read from before the interruption does not count
            self._store.recovery.saw(UNCOMPARED)

    async def close(self) -> None:
        await end_all(task for task in (self._looking, self._keeping) if task is not None)

    async def _read(self) -> str | None:
        """Reads the mark kept outside. Returns why it could not be read, or None."""
        try:
            kept = await self._cluster.remembered()
        except ClusterUnavailable as error:
            self._count_error()
            return str(error)
        if kept is not None and kept.install == self._cluster.install and kept.readable:
            self.seen = self.seen.raised_to(kept)
        elif kept is not None and kept.install == self._cluster.install and not self._damaged:
            self._damaged = True
            log.error("the mark kept outside the database is damaged and is ignored; delete it", mark=kept.mark, epoch=kept.epoch)
        return None

    async def _compare_stamps(self) -> None:
        """Compares the stamps of all pods, because commits lost since the last mark show only there. If the pods cannot be
        listed or compared, `converge` does it later, so that one damaged pod does not stop the whole fleet."""
        try:
            pods = await asyncio.wait_for(self._cluster.pods(), LIST_SECONDS)
        except (TimeoutError, ClusterUnavailable):
            self._count_error()
            return
        try:
            await self._store.recovery.compare_stamps(pods)
        except StoreUnavailable:
            raise
        except Exception:
            self._count_error()
            log.exception("the stamps of the pods could not be compared")

    async def _keep(self, mark: Remembered) -> None:
        try:
            await self._cluster.remember(mark)
        except ClusterUnavailable:
            self._count_error()
