"""Create and change the pools of declared objects, and write the objects' status: the effects of the duty `pools`."""

import msgspec

from ..duties import pool_actions as do
from ..duties.pools import not_taken
from ..model.effect import Done, Effect, Failed, Skipped, Stale
from ..model.mistakes import mistakes
from ..model.pool import FieldProblem, Pool, PoolSpec, problems, revision_of
from ..ports.cluster import Cluster, ClusterUnavailable
from ..ports.declared import Declarations, Declared
from ..ports.store import Store

FIXED = "cannot change: delete the object and create it again; the name is free at once"


class DeclaredPools:
    def __init__(self, store: Store, cluster: Cluster) -> None:
        self._store, self._cluster = store, cluster

    @property
    def _objects(self) -> Declarations:
        assert self._cluster.declarations is not None, "no action about objects can be planned where none can be listed"
        return self._cluster.declarations

    async def put(self, a: do.PutPool) -> Effect:
        try:
            found = await self._refused(a.declared)
        except ClusterUnavailable as error:  # for example, a webhook that must check the pool is down
            await self._write_not_taken(a.declared, "Unchecked", f"it could not be checked and will be tried again: {error}")
            raise
        if isinstance(found, list):
            message = "; ".join(f"{problem.field}: {problem.reason}" for problem in found)
            await self._write_not_taken(a.declared, "Refused", message)
            return Failed(message)
        _, what = await self._store.pools.put(a.declared.pool_id, a.declared.name, found, "cr")
        return Stale() if what in ("same", "taken") else Done()

    async def _write_not_taken(self, declared: Declared, reason: str, message: str) -> None:
        loads = await self._store.pools.loads()
        mine = next((load for load in loads if load.pool.id == declared.pool_id), None)
        await self._objects.update_status(declared, not_taken(declared, mine, reason, message))

    async def _refused(self, declared: Declared) -> PoolSpec | list[FieldProblem]:
        try:
            spec = msgspec.convert(declared.spec, PoolSpec)
        except msgspec.ValidationError as error:
            found = mistakes(declared.spec, PoolSpec, error)
            return [FieldProblem(f"spec.{each.field}".rstrip("."), each.reason) for each in found]
        if found := problems(spec):
            return found
        before = await self._store.pools.get(declared.name)
        if before is not None and before.id == declared.pool_id:
            changed = {"mode": before.spec.mode != spec.mode, "worker.agent": before.spec.worker.agent != spec.worker.agent}
            if fixed := [FieldProblem(field, FIXED) for field, differs in changed.items() if differs]:
                return fixed
        draft = Pool(
            id=declared.pool_id,
            name=declared.name,
            spec=spec,
            revision=revision_of(spec),
            state="live",
            source="cr",
            created_at=0.0,
        )
        return await self._cluster.check(draft) or spec

    async def drain(self, a: do.DrainPool) -> Effect:
        if a.gone is not None and not await self._objects.absent(a.name, a.gone):
            return Skipped("unsure")
        return Done() if await self._store.pools.delete(a.name, a.pool_id) is not None else Stale()

    async def guard(self, a: do.Guard) -> Effect:
        await self._objects.guard(a.declared)
        return Done()

    async def release(self, a: do.Release) -> Effect:
        """Releases the object, but only if its pool's drain is stored. This is checked again here, because the plan may be
        old."""
        live = await self._store.pools.get(a.declared.name)
        if live is not None and live.id == a.declared.pool_id:
            return Stale()
        await self._objects.release(a.declared)
        return Done()

    async def update_status(self, a: do.UpdateStatus) -> Effect:
        await self._objects.update_status(a.declared, a.status)
        return Done()
