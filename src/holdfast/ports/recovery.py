"""What recovery after lost commits needs from the store, and the values that are compared."""

import asyncio
import math
from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

from ..model.effect import Effect
from ..model.event import Actor
from ..model.pod import Pod

UNCOMPARED = 2**62  # above every real mark, so that nothing is done before the database was compared with the mark kept outside

EPOCH_LIMIT = 2**13  # the high part of a fence has 13 bits


class Seen(msgspec.Struct, frozen=True):
    """The highest mark and epoch that a replica knows of. A database that shows lower ones has lost commits."""

    mark: int = 0
    epoch: int = 0

    def raised_to(self, other: "Seen | Remembered") -> "Seen":
        return Seen(max(self.mark, other.mark), max(self.epoch, other.epoch))


class Remembered(msgspec.Struct, frozen=True):
    """The mark and epoch that are kept outside the database. A database that shows lower ones has lost commits."""

    install: str
    mark: int
    epoch: int

    @property
    def readable(self) -> bool:
        """False when the values are damaged, because no database can have shown them."""
        return 0 <= self.mark < UNCOMPARED and 0 <= self.epoch < EPOCH_LIMIT

    def raised_to(self, other: "Remembered") -> "Remembered":
        """Returns what to keep when `other` is written over this value. It never falls, in whatever order replicas write."""
        return Remembered(other.install, max(self.mark, other.mark), max(self.epoch, other.epoch))


class Mark:
    """The highest mark that this process has seen. It is valid for a limited time, because a process that slept does not know
    which marks other replicas have seen meanwhile, and the database may have lost those."""

    def __init__(self) -> None:
        self._value, self._until = 0, math.inf

    def saw(self, value: int, seconds: float) -> None:
        until = math.inf if seconds == math.inf else asyncio.get_running_loop().time() + seconds
        self._value, self._until = value, until

    @property
    def value(self) -> int:
        known = self._until == math.inf or asyncio.get_running_loop().time() <= self._until
        return self._value if known else UNCOMPARED

    @property
    def compared(self) -> bool:
        return self.value != UNCOMPARED


class Recovery(msgspec.Struct, frozen=True):
    """The current state of the installation."""

    install: str
    epoch: int
    mark: int
    recovering: bool
    reason: str | None
    age: float  # seconds of heard time since recovery began
    last_fence: int  # the highest fence that this database can have given
    recovered_ago: float | None = None  # seconds since the last recovery ended
    behind: bool = False  # the database shows less than this replica has seen, or was not compared yet
    since: float | None = None  # when the current recovery began

    @property
    def uncertain(self) -> bool:
        """True when commits were or may have been lost. A worker, claim or pool without a row may then still exist."""
        return self.recovering or self.behind


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that is known to its pod or agent but not, or not completely, to the database."""

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
    state: Literal["spawning", "warm", "parked", "held", "retiring"]
    since: float
    agent: bool  # False when its pool has no agents, so that only an operator can decide
    claim: str | None = None
    claim_state: Literal["assigned", "active"] | None = None
    delivered: bool = False  # its claim may have been delivered to it
    tenant: str | None = None
    doing: str | None = None  # what its agent has reported since the recovery began
    reported_claim: str | None = None  # the claim that its agent has reported since then, unless it has ended


class RecoveryStore(Protocol):
    def saw(self, mark: int, seconds: float = math.inf) -> None:
        """Notes that this replica knows this mark, for so many seconds. While the database shows a lower mark, and after that
        time in any case, nothing is given out, spawned or ended."""

    @property
    def compared(self) -> bool:
        """False while this replica has not compared its marks, or has not stored a beat for some seconds. Then it does nothing,
        although another replica may."""

    async def state(self) -> Recovery: ...

    async def begin(self, reason: str, mark: int, epoch: int = 0) -> bool:
        """Begins recovery: the new epoch is higher than `epoch` and than the current one. Returns False if a recovery is in
        progress already. In both cases the stored mark is at least `mark` afterwards, so that one loss that several replicas
        notice is one recovery."""

    async def begin_by_fence(self, reason: str, fence: int) -> bool:
        """Begins recovery, because an agent or a pod has a fence that this database never gave. Returns the same as `begin`, and
        False for a damaged fence, which no database can have given."""

    async def compare_stamps(self, pods: Iterable[Pod]) -> bool:
        """Begins recovery, and returns True, if a pod's stamp has a fence that this database did not give to that worker. The
        pods must have been listed before the call. Damaged stamps are ignored."""

    async def adopt(self, adoption: Adoption) -> Effect: ...

    async def adopt_free(self, worker: str, uid: str, pool_id: str, pool: str, revision: str, *, spent: bool) -> Effect: ...

    async def end(self) -> Effect:
        """Ends recovery. Workers whose agents have not reported since it began become unconfirmed."""

    async def unconfirmed(self) -> list[Unconfirmed]:
        """Returns the unconfirmed workers, about which an operator may have to decide."""

    async def confirm(self, worker: str, reason: str, actor: Actor | None = None) -> Effect:
        """Stores an operator's decision that the row of an unconfirmed worker is right. Returns Skipped("busy") if its agent has
        reported another claim since the recovery began."""

    async def give_up(self, worker: str, reason: str, actor: Actor | None = None) -> Effect:
        """Retires an unconfirmed worker by an operator's decision. Its claim goes back to the queue if the database knows that it
        was never delivered to the worker; otherwise it ends as lost, by force. Returns Skipped("busy") if its agent has
        reported a claim since the recovery began."""
