"""The parts of the simulated cluster: pods, nodes, and the weather, which sets how often things go wrong."""

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..model.pod import Phase, Pod, Stamp
from ..model.pool import PoolSpec

Range = tuple[float, float]
FORGED = ".forged"  # the suffix of an impostor's token
HORIZON = 600.0  # seconds of the past that a stale list can show


class WorldClock(Protocol):
    def now(self) -> float:
        """Returns the monotonic time of the running loop."""

    def wall(self) -> float:
        """Returns the cluster's Unix time."""


@dataclass
class Weather:
    """What goes wrong, and how often. Faults change it over time; by default nothing goes wrong. Shares are 0…1, times in
    seconds."""

    latency: Range = (0.001, 0.01)  # one way
    timeout: float = 10.0  # how long a client waits; 1 s where the port says so
    failing: float = 0.0  # share of requests that fail before their effect (429, 500)
    lost: float = 0.0  # share of answers that are lost after the effect
    late: float = 0.0  # share of protect, clear and delete calls that take effect long after their caller gave up
    late_by: Range = (2.0, 180.0)
    stale: float = 0.0  # share of lists that show the past
    stale_by: Range = (5.0, 120.0)
    empty: float = 0.0  # share of lists that are empty by mistake
    quota: int | None = None  # the maximum number of pods of all installations that have not ended
    start: Range = (0.5, 5.0)
    image_errors: float = 0.0
    crashes: float = 0.0  # share of pods that crash soon after their start
    crash_after: Range = (0.1, 10.0)
    stubborn: float = 0.0  # share of pods that ignore SIGTERM
    hooks_fail: bool = False  # whether every activation fails
    hint_delay: Range = (0.001, 0.05)
    hints_doubled: float = 0.0
    hints_dropped: float = 0.0  # share of hints that are lost until the next relist
    relist: float = 300.0


@dataclass(eq=False)
class Node:
    name: str
    cordoned: bool = False
    partitioned: bool = False  # it keeps running but cannot report
    dead: bool = False
    draining: bool = False


class SimResult(NamedTuple):
    """The result of a claim's command, as its agent stored it."""

    claim: str
    fence: int
    exit_code: int


class PodStatus(NamedTuple):
    """A kubelet's report about a pod."""

    phase: Phase
    ready: bool
    exit_code: int | None
    ended_at: float
    result: SimResult | None
    trouble: str | None


@dataclass(eq=False)
class WorldPod:
    """The true state of one pod. `view()` is what the API shows, which is outdated while its node is cut off."""

    name: str
    uid: str
    install: str
    pool_id: str
    pool: str
    revision: str
    epoch: int
    spec: PoolSpec
    created_at: float
    luck: random.Random  # the pod's own random stream, so that other events do not change it
    token: str = ""
    node: Node | None = None
    phase: Phase = "pending"
    version: int = 0
    ready: bool = False
    terminating_at: float | None = None
    grace: float = 0.0
    stamp: Stamp | None = None
    protected: bool = False
    exit_code: int | None = None  # the container's
    ended_at: float = 0.0
    result: SimResult | None = None  # set by its agent
    trouble: str | None = None
    stubborn: bool = False
    sigterm: asyncio.Event = field(default_factory=asyncio.Event)  # set when SIGTERM has arrived
    task: asyncio.Task[Any] | None = None
    held: PodStatus | None = None  # the last report before the node was cut off; None while it can report

    @property
    def worker(self) -> str:
        return self.name

    @property
    def agent(self) -> bool:
        return self.spec.worker.agent

    @property
    def alive(self) -> bool:
        """Returns whether the process really runs. The API may show something else."""
        return self.phase == "running"

    @property
    def cut(self) -> bool:
        """Returns whether its network calls fail, because its node is partitioned or because only the `finally` of a dead pod
        still runs."""
        return not self.alive or (self.node is not None and self.node.partitioned)

    @property
    def status(self) -> PodStatus:
        return PodStatus(self.phase, self.ready, self.exit_code, self.ended_at, self.result, self.trouble)

    @property
    def exit_fence(self) -> int | None:
        return self.view().exit_fence

    def view(self) -> Pod:
        """Returns the pod as the API shows it. As in the local backend, an exit code is shown only if it belongs to a claim."""
        shown = self.held or self.status
        ended, result = shown.phase == "ended", shown.result
        code, fence, trouble = None, None, None if ended else shown.trouble
        if result is not None:
            code, fence = result.exit_code, result.fence
        elif ended and not self.agent:
            code = shown.exit_code
            if code is not None and self.stamp is not None and self.stamp.at <= shown.ended_at:
                fence = self.stamp.fence
        if ended and self.terminating_at is None and result is None:
            trouble = shown.trouble
            if trouble is None and self.agent and shown.exit_code:
                trouble = f"the agent exited with {shown.exit_code}"
        return Pod(
            name=self.name, uid=self.uid, worker=self.name, install=self.install, pool_id=self.pool_id, pool=self.pool,
            revision=self.revision, phase=shown.phase, version=str(self.version), created_at=self.created_at, ready=shown.ready,
            terminating=self.terminating_at is not None, schedulable=self.node is None or not self.node.cordoned,
            node=self.node.name if self.node is not None else None, stamp=self.stamp, protected=self.protected,
            epoch=self.epoch, exit_code=code, exit_fence=fence, trouble=trouble,
        )  # fmt: skip


class Past:
    """Stores what the API showed at each moment of the last HORIZON seconds."""

    def __init__(self) -> None:
        self._changes: deque[tuple[float, str, Pod | None]] = deque()
        self._before: dict[str, Pod] = {}

    def add(self, at: float, name: str, pod: Pod | None) -> None:
        self._changes.append((at, name, pod))
        while self._changes[0][0] < at - HORIZON:
            _, old, shown = self._changes.popleft()
            _put(self._before, old, shown)

    def at(self, moment: float) -> dict[str, Pod]:
        shown = dict(self._before)
        for at, name, pod in self._changes:
            if at > moment:
                break
            _put(shown, name, pod)
        return shown


def _put(pods: dict[str, Pod], name: str, pod: Pod | None) -> None:
    if pod is None:
        pods.pop(name, None)
    else:
        pods[name] = pod
