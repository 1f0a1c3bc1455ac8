"""Pools that users declare as objects of the cluster. Holdfast reads the objects and writes their status."""

from typing import Any, Literal, Protocol

import msgspec


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """One such object. Its UID is the identity of its pool: an object that is deleted and created again under the same name is
    another pool."""

    name: str
    uid: str
    generation: int
    spec: dict[str, Any]
    deleting: bool = False
    guarded: bool = False  # the cluster does not remove the object before Holdfast releases it

    @property
    def pool_id(self) -> str:
        return f"p-{self.uid}"


class Condition(msgspec.Struct, frozen=True):
    type: Literal["Ready", "Degraded", "Frozen"]
    status: bool
    reason: str  # one word in CamelCase, as Kubernetes requires
    message: str = ""


class DeclaredStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The object's status. Counts are 0 when there is no pool yet."""

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
    """Every method raises ClusterUnavailable when the cluster cannot be reached."""

    async def list(self) -> list[Declared] | None:
        """Returns all objects of this installation by a direct read, or None when the cluster has no such resource."""

    async def absent(self, name: str, uid: str) -> bool:
        """Returns whether a direct read finds no object of this installation with this name and this UID."""

    async def guard(self, declared: Declared) -> None:
        """Makes sure that the cluster does not remove the object before `release`."""

    async def release(self, declared: Declared) -> None:
        """Lets the cluster remove the object. It is a success when the object is absent."""

    async def update_status(self, declared: Declared, status: DeclaredStatus) -> None:
        """Writes the status if it differs, and an event about what changed. It is a success when the object is absent."""
