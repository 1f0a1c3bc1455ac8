"""Pools that people declare as objects of the cluster: read from there, told there how they are."""

from typing import Any, Literal, Protocol

import msgspec


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """One such object. Its pool's identity is the object's UID: an object made anew under an old name is another pool."""

    name: str
    uid: str
    generation: int
    spec: dict[str, Any]
    deleting: bool = False
    guarded: bool = False  # it cannot vanish before we let it

    @property
    def pool_id(self) -> str:
        return f"p-{self.uid}"


class Condition(msgspec.Struct, frozen=True):
    type: Literal["Ready", "Degraded", "Frozen"]
    status: bool
    reason: str  # one word, as Kubernetes wants it
    message: str = ""


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the object's status says. Counts are 0 where there is no pool yet."""

    generation: int
    revision: str = ""
    desired: int = 0
    free: int = 0
    spawning: int = 0
    warm: int = 0
    held: int = 0
    parked: int = 0
    retiring: int = 0
    waiting: int = 0
    oldest_waiting: int = 0  # seconds
    conditions: tuple[Condition, ...] = ()


class Declarations(Protocol):
    """Raises ClusterUnavailable like everything of the cluster."""

    async def list(self) -> list[Declared] | None:
        """All of this installation, straight from the source. None: this cluster does not know such objects."""

    async def absent(self, name: str, uid: str) -> bool:
        """Whether no object of this installation has this name and this UID, by a direct read."""

    async def guard(self, declared: Declared) -> None:
        """From now on it does not vanish before it is released."""

    async def release(self, declared: Declared) -> None:
        """It may vanish. Absent is success."""

    async def update_status(self, declared: Declared, status: PoolStatus) -> None:
        """Write its status where it differs, and say what changed as an event. Absent is success."""
