"""The objects that the handlers of the routes share."""

import asyncio
from dataclasses import dataclass, field

from ..claimpath.path import ClaimPath
from ..claimpath.signals import Signals
from ..ids import Ids
from ..metrics import Metrics
from ..model.nearest import suggest as suggest
from ..model.nearest import suggest_id
from ..model.pool import Pool
from ..ports.cluster import Cluster
from ..ports.store import Store, StoreUnavailable
from ..running.replica import Replica
from .auth import Auth, Caller
from .encryption import Cipher
from .problems import Problem, not_found
from .revocation import Revocation
from .turns import Turns

POOL_CACHE_SECONDS = 1.0
COMPARED_IDS = 200  # of the newest; comparing these with a mistyped id takes a few milliseconds
READY_SECONDS = 5.0  # without a stored beat; after this time the other replicas list this one as silent


@dataclass
class Context:
    store: Store
    cluster: Cluster
    claim_path: ClaimPath
    signals: Signals
    replica: Replica
    metrics: Metrics
    auth: Auth
    cipher: Cipher
    ids: Ids
    version: str
    install: str
    revocation: Revocation
    turns: Turns = field(default_factory=Turns)
    polls: dict[str, object] = field(default_factory=dict)  # the newest poll of each agent, by worker
    _pools: dict[str, tuple[float, Pool]] = field(default_factory=dict)

    def ready(self) -> bool:
        """Returns whether this replica can serve: its last beat was stored recently, and it is not stopping."""
        stored = self.replica.beat_at
        late = stored is None or asyncio.get_running_loop().time() - stored > READY_SECONDS
        return not late and not self.signals.stopping.is_set()

    async def pool(self, name: str) -> Pool:
        """Returns the live pool of this name. The error for an unknown name suggests the most similar one."""
        now = asyncio.get_running_loop().time()
        until, pool = self._pools.get(name, (0.0, None))
        if pool is None or until < now:
            pool = await self.store.pools.get(name)
            if pool is None:
                self._pools.pop(name, None)
                raise await self.unknown_pool(name)
            self._pools[name] = (now + POOL_CACHE_SECONDS, pool)
        return pool

    async def still_allowed(self, header: str | None) -> bool:
        """Returns whether the token of a request that has waited is still valid. If the store is not available, it is believed."""
        try:
            return await self.auth.still(header)
        except StoreUnavailable:
            return True

    def forget_pool(self, name: str) -> None:
        self._pools.pop(name, None)

    async def unknown_pool(self, name: str) -> Problem:
        names = [pool.name for pool in await self.store.pools.all() if pool.state == "live"]
        return not_found("pool", name, suggest(name, names))

    async def unknown_worker(self, worker: str) -> Problem:
        ids = await self.store.workers.newest_ids(COMPARED_IDS)
        return not_found("worker", worker, suggest_id(worker, ids))

    async def unknown_claim(self, claim: str, caller: Caller) -> Problem:
        """Returns the 404 for a claim. It suggests only claims that the caller may see."""
        ids = await self.store.claims.newest_ids(None if caller.trusted else caller.tenant, COMPARED_IDS)
        return not_found("claim", claim, suggest_id(claim, ids))
