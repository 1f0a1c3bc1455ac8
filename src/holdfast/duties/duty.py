"""The one shape of a duty."""

from dataclasses import dataclass
from typing import Any, Protocol

from ..ports.cluster import Cluster
from ..ports.store import Store
from .actions import Action


@dataclass(frozen=True)
class Ports:
    """Where a duty looks. Reading only: effects go through actions."""

    store: Store
    cluster: Cluster


class Duty(Protocol):
    name: str
    period: float  # seconds between passes; a hint may wake it sooner

    async def observe(self, ports: Ports) -> Any:
        """Read what is needed, or raise: a pass that could not read has not succeeded."""

    def plan(self, seen: Any) -> list[Action]:
        """What to do about it. Pure: the same view gives the same plan."""
