"""The protocol that every duty implements."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..ports.cluster import Cluster
from ..ports.store import Store
from .actions import Action


@dataclass(frozen=True)
class Ports:
    """What a duty reads from. A duty never writes here: its effects are actions."""

    store: Store
    cluster: Cluster


@runtime_checkable
class Parted(Protocol):
    """A view that is so large that it is planned in slices."""

    def parts(self) -> Iterable[Any]: ...


class Duty(Protocol):
    name: str
    period: float  # seconds between passes; a hint may wake it sooner

    async def observe(self, ports: Ports) -> Any:
        """Reads what the plan needs, or raises. A pass that could not read has not succeeded."""

    def plan(self, observed: Any) -> list[Action]:
        """Returns the actions for this view. Pure: the same view gives the same plan."""
