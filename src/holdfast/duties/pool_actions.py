"""The actions on whole pools and on the objects that declare them. They are part of `actions.Action`."""

from dataclasses import dataclass

from ..model.pool import Pool
from ..ports.declared import Declared, DeclaredStatus


@dataclass(frozen=True)
class Ensure:
    """Brings the objects beside the pods (accounts, policies, budgets) to what these pools need."""

    pools: tuple[Pool, ...]


@dataclass(frozen=True)
class FinishPool:
    pool_id: str


@dataclass(frozen=True)
class PutPool:
    """Creates or changes the pool of an object. If its specification is refused, the reason is written to the object's status."""

    declared: Declared


@dataclass(frozen=True)
class DrainPool:
    """Starts to drain a pool. `gone` is the UID of its object: the drain then starts only after a direct read showed that this
    object is gone."""

    name: str
    pool_id: str
    gone: str | None = None


@dataclass(frozen=True)
class Guard:
    """Keeps the cluster from removing the object before its pool's drain is stored."""

    declared: Declared


@dataclass(frozen=True)
class Release:
    declared: Declared


@dataclass(frozen=True)
class UpdateStatus:
    declared: Declared
    status: DeclaredStatus


PoolAction = Ensure | FinishPool | PutPool | DrainPool | Guard | Release | UpdateStatus
