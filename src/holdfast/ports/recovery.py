"""What recovery after lost commits needs from the store, and the values that it compares."""

import asyncio
import math
from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

from ..model.outcome import Outcome
from ..model.pod import Pod

UNCOMPARED = 2**62  # a mark above all: nothing is done before the database was compared with what is kept outside


class Seen(msgspec.Struct, frozen=True):
    """The highest mark and epoch that a replica knows of. A database that shows less has lost commits."""

    mark: int = 0
    epoch: int = 0

    def raised_to(self, other: "Seen | Remembered") -> "Seen":
        return Seen(max(self.mark, other.mark), max(self.epoch, other.epoch))


class Remembered(msgspec.Struct, frozen=True):
    """A high-water mark kept outside the database: a database that shows less has lost commits."""

    install: str
    mark: int
    epoch: int

    def raised_to(self, other: "Remembered") -> "Remembered":
        """What is kept after `other` was kept as well: it only rises, whichever replica writes it."""
        return Remembered(other.install, max(self.mark, other.mark), max(self.epoch, other.epoch))


class Mark:
    """The highest mark that this process has seen. It is known for a while only, because a process that slept does not know what
    other replicas have seen, and the database may have lost, meanwhile."""

    def __init__(self) -> None:
        self._value, self._until = 0, math.inf

    def saw(self, value: int, seconds: float) -> None:
        until = math.inf if seconds == math.inf else asyncio.get_running_loop().time() + seconds
        self._value, self._until = value, until

    @property
    def value(self) -> int:
        known = self._until == math.inf or asyncio.get_running_loop().time() <= self._until
        return self._value if known else UNCOMPARED


class Recovery(msgspec.Struct, frozen=True):
    """The installation's own state, as it is now."""

    install: str
    epoch: int
    mark: int
    recovering: bool
    reason: str | None
    age: float  # seconds of heard time since recovery began
    last_fence: int  # the greatest fence that this database can have given
    recovered_ago: float | None = None  # seconds since the last recovery ended
    behind: bool = False  # it shows less than this replica has seen, or was not yet compared with it
    since: float | None = None  # when the recovery that is under way began

    @property
    def uncertain(self) -> bool:
        """Commits were lost, or may have been: what has no row may still exist."""
        return self.recovering or self.behind


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that only its pod and its agent still know of."""

    worker: str
    uid: str
    pool: str
    pool_id: str
    revision: str
    claim: str
    tenant: str
    fence: int
    endpoint: str | None = None


class Unconfirmed(msgspec.Struct, frozen=True, kw_only=True):
    """A worker whose agent has not reported since the database lost commits."""

    worker: str
    pool: str
    state: Literal["warm", "parked", "held"]
    since: float
    agent: bool  # False: its pool has no agents, so that only an operator can decide
    claim: str | None = None
    claim_state: Literal["assigned", "active"] | None = None
    delivered: bool = False  # its claim may have been sent to it
    tenant: str | None = None


class RecoveryStore(Protocol):
    def saw(self, mark: int, seconds: float = math.inf) -> None:
        """The replica knows this mark, for so long. A database that shows less, or after that any, is not acted on: nothing is
        given out, spawned or ended."""

    async def state(self) -> Recovery: ...

    async def begin(self, reason: str, mark: int, epoch: int = 0) -> bool:
        """Commits were lost: the epoch grows above `epoch` and its own. False: it is being recovered already. Either way its mark
        is at least `mark` afterwards, so that one loss, seen by several replicas, is one recovery."""

    async def begin_by_fence(self, reason: str, fence: int) -> bool:
        """Commits were lost, because an agent or a pod has a fence that this store never gave. As `begin`."""

    async def compare_stamps(self, pods: Iterable[Pod]) -> bool:
        """Whether a pod is stamped with what this store does not know, though it should: commits were lost, and recovery has
        begun. The pods must have been listed before."""

    async def adopt(self, adoption: Adoption) -> Outcome: ...

    async def adopt_free(self, worker: str, uid: str, pool_id: str, pool: str, revision: str, *, spent: bool) -> Outcome: ...

    async def end(self) -> Outcome:
        """Recovery is over. Workers whose agents have not reported since it began are unconfirmed."""

    async def unconfirmed(self) -> list[Unconfirmed]:
        """What recovery left to be decided, by worker."""

    async def confirm(self, worker: str, reason: str) -> Outcome:
        """An operator's decision: an unconfirmed worker is what its row says."""

    async def give_up(self, worker: str, reason: str) -> Outcome:
        """An operator's decision: an unconfirmed worker retires. Its claim ends as lost, by force, unless it is known that the
        worker was never sent it: then the claim goes back to the queue."""
