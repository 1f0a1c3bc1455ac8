"""The actions that a plan can contain because commits were lost, and the store call that carries out each of them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..model.effect import Done, Effect, Stale
from ..ports.recovery import Adoption, RecoveryStore


@dataclass(frozen=True)
class BeginRecovery:
    """Begins recovery, because a pod has a fence that this database never gave."""

    reason: str
    fence: int


@dataclass(frozen=True)
class Adopt:
    adoption: Adoption


@dataclass(frozen=True)
class AdoptFree:
    worker: str
    uid: str
    pool_id: str
    pool: str
    revision: str
    spent: bool = False  # the worker has served a claim, so it must retire


@dataclass(frozen=True)
class EndRecovery:
    pass


RecoveryAction = BeginRecovery | Adopt | AdoptFree | EndRecovery


def handlers(store: RecoveryStore) -> dict[type, Callable[[Any], Awaitable[Effect]]]:
    """Returns the handler of each action above, for the table in `apply`."""

    async def begin(a: BeginRecovery) -> Effect:
        return Done() if await store.begin_by_fence(a.reason, a.fence) else Stale()

    return {
        BeginRecovery: begin,
        Adopt: lambda a: store.adopt(a.adoption),
        AdoptFree: lambda a: store.adopt_free(a.worker, a.uid, a.pool_id, a.pool, a.revision, spent=a.spent),
        EndRecovery: lambda _: store.end(),
    }
