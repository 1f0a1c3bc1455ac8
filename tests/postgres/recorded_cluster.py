"""A cluster whose pods are only records in memory, with versions like those of an API server. Also runs real duties on it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from holdfast.claimpath.path import ClaimPath
from holdfast.claimpath.signals import Signals
from holdfast.duties.actions import Action
from holdfast.duties.duty import Duty, Ports
from holdfast.ids import Ids
from holdfast.metrics import Metrics
from holdfast.model.effect import Effect
from holdfast.model.pod import Pod, Stamp
from holdfast.model.pool import Pool
from holdfast.ports.cluster import ClusterUnavailable, OutcomeUnknown
from holdfast.ports.recovery import Remembered
from holdfast.postgres.store import PostgresStore
from holdfast.running.apply import Apply
from holdfast.running.replica import Replica
from holdfast.wiring import wire


def pod_of(worker: str, pool: Pool) -> Pod:
    return Pod(
        name=worker,
        uid=f"uid-{worker}",
        worker=worker,
        install="i-test",
        pool_id=pool.id,
        pool=pool.name,
        revision=pool.revision,
        phase="running",
        version="1",
        created_at=0.0,
    )


class RecordedCluster:
    """Every write creates a new version of a pod. A clear must name the version that the caller has read."""

    install = "i-test"

    def __init__(self, pool: Pool | None = None, workers: Iterable[str] = ()) -> None:
        self.kept = {worker: pod_of(worker, pool) for worker in workers if pool is not None}
        self.outputs: set[str] = set()
        self.mark: Remembered | None = None
        self.clearing, self.may_clear = asyncio.Event(), asyncio.Event()
        self.reading, self.may_read = asyncio.Event(), asyncio.Event()  # these two are for reads of the mark
        self.may_clear.set()
        self.may_read.set()
        self.down = self.blind = self.answers_lost = False
        self.on_protect: Callable[[], Awaitable[object]] | None = None

    async def pods(self) -> list[Pod]:
        if self.blind:
            raise ClusterUnavailable("one damaged pod makes the whole list unavailable")
        return list(self.kept.values())

    async def read(self, name: str) -> Pod | None:
        return self.kept.get(name)

    async def read_cached(self, names: Sequence[str]) -> dict[str, Pod]:
        self._up()
        return {name: self.kept[name] for name in names if name in self.kept}

    async def protect(self, name: str, uid: str, stamp: Stamp) -> Pod | None:
        self._up()
        pod = self._write(name, stamp, True)
        if self.on_protect is not None:
            await self.on_protect()
        if self.answers_lost:
            raise OutcomeUnknown("it was written, and the answer was lost")
        return pod

    async def clear(self, name: str, uid: str, version: str) -> bool:
        self.clearing.set()
        await self.may_clear.wait()
        if self.kept[name].version != version:
            return False
        self._write(name, None, False)
        return True

    async def delete(self, name: str, uid: str, grace: float) -> None:
        assert self.kept[name].uid == uid
        del self.kept[name]

    async def output_sizes(self) -> dict[str, int]:
        return dict.fromkeys(self.outputs, 1)

    async def prune_output(self, keep: set[str]) -> int:
        before, self.outputs = self.outputs, self.outputs & keep
        return len(before) - len(self.outputs)

    async def remember(self, mark: Remembered) -> None:
        self._up()
        self.mark = mark if self.mark is None else max(self.mark, mark, key=lambda kept: kept.mark)

    async def remembered(self) -> Remembered | None:
        self.reading.set()
        await self.may_read.wait()
        self._up()
        return self.mark

    def _up(self) -> None:
        if self.down:
            raise ClusterUnavailable("the API server is down")

    def _write(self, name: str, stamp: Stamp | None, protected: bool) -> Pod:
        version = str(int(self.kept[name].version) + 1)
        self.kept[name] = msgspec.structs.replace(self.kept[name], stamp=stamp, protected=protected, version=version)
        return self.kept[name]


def claim_path(
    store: PostgresStore, cluster: RecordedCluster, metrics: Metrics | None = None, signals: Signals | None = None
) -> ClaimPath:
    return ClaimPath(store, cluster, signals or Signals(), metrics or Metrics())


def applier(store: PostgresStore, cluster: RecordedCluster) -> Apply:
    metrics = Metrics()
    return Apply(store, cluster, claim_path(store, cluster, metrics), Ids(), metrics)


async def planned(duty: Duty, store: PostgresStore, cluster: RecordedCluster) -> list[Action]:
    """Returns the actions that a duty would take now."""
    return duty.plan(await duty.observe(Ports(store, cluster)))


async def passed(duty: Duty, store: PostgresStore, cluster: RecordedCluster) -> list[tuple[Action, Effect]]:
    """Runs one pass of a duty. Returns each action with its effect."""
    apply = applier(store, cluster)
    return [(action, await apply(action)) for action in await planned(duty, store, cluster)]


def replica_on(store: PostgresStore, cluster: object) -> Replica:
    """Returns a replica that beats only when the test calls it. It keeps its own copy of the mark, as a separate process does."""
    return wire(store, cluster, key=b"key", url="http://127.0.0.1:1").replica
