"""What the simulated cluster is made of: pods, nodes, and the weather over them."""

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..model.pod import Phase, Pod, Stamp
from ..model.pool import PoolSpec

Range = tuple[float, float]
FORGED = ".forged"  # how the token of an impostor ends
HORIZON = 600.0  # seconds of the past that a stale list can show


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic: what the running loop's time() says."""

    def wall(self) -> float:
        """Unix time, as the cluster has it."""


@dataclass
class Weather:
    """What goes wrong, and how often: faults change it over time. As made here it is calm. Shares are of 1, times in seconds."""

    latency: Range = (0.001, 0.01)  # one way
    timeout: float = 10.0  # a client's patience; 1 s where the port says so
    failing: float = 0.0  # requests that fail before their effect: 429, 500
    lost: float = 0.0  # answers that are lost after the effect
    late: float = 0.0  # protect, clear and delete that happen long after their caller gave up
    late_by: Range = (2.0, 180.0)
    stale: float = 0.0  # lists that show the past
    stale_by: Range = (5.0, 120.0)
    empty: float = 0.0  # lists that show nothing
    quota: int | None = None  # pods that have not ended, everybody's
    start: Range = (0.5, 5.0)
    image_errors: float = 0.0
    crashes: float = 0.0  # pods that end soon after their start
    crash_after: Range = (0.1, 10.0)
    stubborn: float = 0.0  # pods that ignore SIGTERM
    hint_delay: Range = (0.001, 0.05)
    hints_doubled: float = 0.0
    hints_dropped: float = 0.0  # made good by the next relist only
    relist: float = 300.0


@dataclass(eq=False)
class Node:
    name: str
    cordoned: bool = False
    partitioned: bool = False  # it runs on, and nobody hears of it
    dead: bool = False
    draining: bool = False


class SimResult(NamedTuple):
    """What an agent stored of its claim's command."""

    claim: str
    fence: int
    exit_code: int


class Status(NamedTuple):
    """What a kubelet reports."""

    phase: Phase
    ready: bool
    exit_code: int | None
    ended_at: float
    result: SimResult | None
    trouble: str | None


@dataclass(eq=False)
class WorldPod:
    """The truth about one pod. `view()` is what the API shows of it, which is less while its node is cut off."""

    name: str
    uid: str
    install: str
    pool_id: str
    pool: str
    revision: str
    epoch: int
    spec: PoolSpec
    created_at: float
    luck: random.Random  # a stream of its own: what happens elsewhere does not change it
    token: str = ""
    node: Node | None = None
    phase: Phase = "pending"
    version: int = 0
    ready: bool = False
    terminating_at: float | None = None
    grace: float = 0.0
    stamp: Stamp | None = None
    protected: bool = False
    exit_code: int | None = None  # of the container
    ended_at: float = 0.0
    result: SimResult | None = None  # set by its agent
    trouble: str | None = None
    stubborn: bool = False
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # SIGTERM has arrived
    task: asyncio.Task[Any] | None = None
    held: Status | None = None  # the last report of a kubelet that cannot report

    @property
    def worker(self) -> str:
        return self.name

    @property
    def agent(self) -> bool:
        return self.spec.worker.agent

    @property
    def alive(self) -> bool:
        """Whether its process really runs, whatever the API shows."""
        return self.phase == "running"

    @property
    def cut(self) -> bool:
        """Its network calls fail: its node is partitioned, or it is dead and only its `finally` still runs."""
        return not self.alive or (self.node is not None and self.node.partitioned)

    @property
    def status(self) -> Status:
        return Status(self.phase, self.ready, self.exit_code, self.ended_at, self.result, self.trouble)

    @property
    def exit_fence(self) -> int | None:
        return self.view().exit_fence

    def view(self) -> Pod:
        """By the rules of the local backend: an exit code is a claim's, or it is not shown."""
        told = self.held or self.status
        ended, result = told.phase == "ended", told.result
        code, fence, trouble = None, None, None if ended else told.trouble
        if result is not None:
            code, fence = result.exit_code, result.fence
        elif ended and not self.agent:
            code = told.exit_code
            if code is not None and self.stamp is not None and self.stamp.at <= told.ended_at:
                fence = self.stamp.fence
        if ended and self.terminating_at is None and result is None:
            trouble = told.trouble
            if trouble is None and self.agent and told.exit_code:
                trouble = f"the agent exited with {told.exit_code}"
        return Pod(
            name=self.name, uid=self.uid, worker=self.name, install=self.install, pool_id=self.pool_id, pool=self.pool,
            revision=self.revision, phase=told.phase, version=str(self.version), created_at=self.created_at, ready=told.ready,
            terminating=self.terminating_at is not None, schedulable=self.node is None or not self.node.cordoned,
            node=self.node.name if self.node is not None else None, stamp=self.stamp, protected=self.protected,
            epoch=self.epoch, exit_code=code, exit_fence=fence, trouble=trouble,
        )  # fmt: skip


class Past:
    """What the API showed at each moment of the last minutes."""

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
