"""The part of the store for pools and tenants. The rules of store.py apply: every change is one guarded statement."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from ..model.effect import Effect
from ..model.event import Actor
from ..model.pool import Pool, PoolSpec
from ..model.tenant import Tenant, TenantSpec
from .records import DeletedTenant, PoolChange, PoolLoad


class Pools(Protocol):
    async def put(
        self, pool_id: str, name: str, spec: PoolSpec, source: str, actor: Actor | None = None
    ) -> tuple[Pool, Literal["created", "changed", "same", "taken"]]:
        """Creates or changes a pool. `taken` means that the name belongs to a pool of another source or another object; nothing
        was changed then."""

    async def apply(
        self, pools: Sequence[PoolChange], tenants: Mapping[str, TenantSpec], actor: Actor | None = None
    ) -> dict[tuple[str, str], Literal["created", "changed", "same"]] | None:
        """Stores all of these pools and tenants, or none of them. Returns what happened, by kind and name. Returns None if a pool
        is not as it was seen during the validation; nothing was changed then."""

    async def delete(self, name: str, pool_id: str | None = None, actor: Actor | None = None) -> Pool | None:
        """Starts to drain the pool; its name is free at once. With an id, only if the name still belongs to that pool."""

    async def freeze(self, name: str, reason: str | None, actor: Actor | None = None) -> Pool | None: ...

    async def get(self, name: str) -> Pool | None:
        """Returns the live pool of this name."""

    async def exists(self, name: str) -> bool:
        """Returns whether there is a pool of this name, also one that is draining or gone and not pruned yet."""

    async def by_id(self, pool_id: str) -> Pool | None:
        """Returns the pool of this id, if it is live or draining."""

    async def all(self) -> list[Pool]:
        """Returns all live and draining pools."""

    async def loads(self) -> list[PoolLoad]:
        """Returns every pool with its counts, all from the same moment."""

    async def demand(self) -> list[str]:
        """Returns the ids of pools that have both waiting claims and free workers."""

    async def finish(self, pool_id: str) -> Effect:
        """Closes a draining pool that has nothing left."""

    async def shrunk(self, pool_id: str) -> None:
        """Starts the pool's cooldown again, because it has just been made smaller."""

    async def trouble(self, pool_id: str, reason: str, backoff: float) -> None:
        """Stores why a start failed, and delays the next start. The delay doubles with each failure in a row."""

    async def start_blocked(self, pool_id: str, reason: str) -> None:
        """Stores why a start is delayed. It may still succeed; the reason is erased when a start has succeeded."""

    async def tenants(self) -> list[Tenant]: ...

    async def limits(self, names: Sequence[str]) -> dict[str, TenantSpec]:
        """Returns the stored limits of these tenants. A tenant without an entry is left out."""

    async def put_tenant(self, name: str, spec: TenantSpec, actor: Actor | None = None) -> Tenant: ...

    async def delete_tenant(self, name: str, actor: Actor | None = None) -> DeletedTenant:
        """Deletes the tenant's limits and tokens, unless it has live or waiting claims. Its history stays."""
