"""The one shape of a duty."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..ports.cluster import Cluster
from ..ports.store import Store
from .actions import Action


@dataclass(frozen=True)
class Ports:
    """Where a duty looks. Reading only: effects go through actions."""

    store: Store
    cluster: Cluster


@runtime_checkable
class Parted(Protocol):
    """A view so large that its plan is made in slices."""

    def parts(self) -> Iterable[Any]: ...


class Duty(Protocol):
    name: str
    period: float  # seconds between passes; a hint may wake it sooner

    async def observe(self, ports: Ports) -> Any:
        """Read what is needed, or raise: a pass that could not read has not succeeded."""

    def plan(self, observed: Any) -> list[Action]:
        """What to do about it. Pure: the same view gives the same plan."""
