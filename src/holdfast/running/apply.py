"""Carry out actions. This is the only place where they take effect: each one is guarded, counted, and returns its effect as a
value."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from ..claimpath.path import ClaimPath
from ..claimpath.protection import clear
from ..crash_points import crash_point
from ..duties import actions as do
from ..duties import pool_actions as on_pools
from ..ids import Ids
from ..metrics import Metrics
from ..model.effect import Done, Effect, Failed, Skipped, Stale
from ..model.pod import Stamp
from ..ports.cluster import Cluster, ClusterUnavailable, Order, Refused
from ..ports.store import Pair, Store, StoreUnavailable
from ..recovery.actions import handlers
from .declared_pools import DeclaredPools

log = structlog.get_logger()

SPAWN_BACKOFF = 2.0  # seconds after the first refusal; doubles up to 5 min


class Apply:
    def __init__(self, store: Store, cluster: Cluster, claim_path: ClaimPath, ids: Ids, metrics: Metrics) -> None:
        self._store = store
        self._cluster = cluster
        self._claim_path = claim_path
        self._ids = ids
        self._metrics = metrics
        self._declared = DeclaredPools(store, cluster)
        self._by_type: dict[type, Callable[[Any], Awaitable[Effect]]] = {
            do.Match: self._match,
            do.HandOver: self._hand_over,
            do.EndClaim: self._end_claim,
            do.Requeue: self._requeue,
            do.Spawn: self._spawn,
            do.CreatePod: self._create_pod,
            do.NoteUid: lambda a: store.workers.spawned(a.worker, a.uid),
            do.Warm: self._warm,
            do.Condemn: self._condemn,
            do.DeletePod: self._delete_pod,
            do.ForgetPod: self._forget_pod,
            do.Bury: self._bury,
            do.Suspect: lambda a: store.workers.suspect(a.worker, a.version, a.reason),
            do.HeardAgain: lambda a: store.workers.heard_again(a.worker, a.version),
            do.Acknowledged: self._acknowledged,
            do.Protect: self._protect,
            do.Clear: self._clear,
            do.StartBlocked: self._start_blocked,
            do.Seal: self._seal,
            on_pools.Ensure: self._ensure,
            do.ShowFacts: self._show_facts,
            on_pools.FinishPool: lambda a: store.pools.finish(a.pool_id),
            on_pools.PutPool: self._declared.put,
            on_pools.DrainPool: self._declared.drain,
            on_pools.Guard: self._declared.guard,
            on_pools.Release: self._declared.release,
            on_pools.UpdateStatus: self._declared.update_status,
            do.Quarantine: self._quarantine,
            do.PruneHistory: self._prune_history,
            do.PruneOutputs: self._prune_outputs,
            **handlers(store.recovery),
        }

    async def __call__(self, action: do.Action) -> Effect:
        try:
            effect = await self._by_type[type(action)](action)
        except (StoreUnavailable, ClusterUnavailable) as error:
            effect = Failed(str(error))
        except Exception as error:  # one defective action must not stop the rest of the plan (P6)
            log.exception("an action failed", action=type(action).__name__)
            effect = Failed(f"a defect: {type(error).__name__}")
        label = effect.by if isinstance(effect, Skipped) else type(effect).__name__.lower()
        self._metrics.actions.labels(type(action).__name__, label).inc()
        return effect

    # Claims

    async def _match(self, a: do.Match) -> Effect:
        pool = await self._store.pools.by_id(a.pool_id)
        if pool is None:
            return Stale()
        await self._claim_path.match(pool)
        return Done()

    async def _hand_over(self, a: do.HandOver) -> Effect:
        found = await self._store.claims.get([a.claim])
        if not found or found[0].state != "assigned":
            return Stale()
        claim = found[0]
        pool = await self._store.pools.by_id(claim.pool_id)
        assert claim.worker is not None
        assert claim.fence is not None
        identity = await self._store.workers.identity(claim.worker)
        if pool is None or identity is None:
            return Stale()
        await self._claim_path.start_hand_over(pool, Pair(claim.id, claim.worker, claim.fence, identity[0], claim.tenant))
        return Done()

    async def _end_claim(self, a: do.EndClaim) -> Effect:
        if a.proof is not None and not await self._dead(a.proof):
            return Skipped("unsure")
        ended = await self._store.claims.end(
            a.claim,
            outcome=a.outcome,
            how=a.how,
            reason=a.reason,
            states=a.states,
            fence=a.fence,
            exit_code=a.exit_code,
        )
        self._claim_path.ended(ended, a.how)
        return ended.effect

    async def _requeue(self, a: do.Requeue) -> Effect:
        if a.proof is not None and not await self._dead(a.proof):
            return Skipped("unsure")
        if a.activation:
            dead = a.proof is not None
            return await self._claim_path.activation_failed(a.claim, a.fence, a.reason, dead=dead, idle=a.idle)
        return await self._store.claims.requeue(
            a.claim,
            a.fence,
            reason=a.reason,
            keep_worker=a.keep_worker,
            suspect=a.suspect,
            dead=a.proof is not None,
            untouched=a.untouched,
            idle=a.idle,
        )

    async def _dead(self, proof: do.Proof) -> bool:
        """Returns whether a direct read proves the worker dead: the pod is absent, has another UID, or has ended."""
        pod = await self._cluster.read(proof.name)
        return pod is None or (proof.uid is not None and pod.uid != proof.uid) or pod.phase == "ended"

    # Workers

    async def _spawn(self, a: do.Spawn) -> Effect:
        pool = await self._store.pools.by_id(a.pool_id)
        if pool is None:
            return Stale()
        await self._claim_path.yield_to_hand_overs()  # a claim that has a worker is more urgent than one more worker
        ids = [self._ids.new(f"w-{pool.name}", 8) for _ in range(a.count)]
        made = await self._store.workers.spawn(a.pool_id, ids, a.free_target, a.starting_limit)
        crash_point("spawn.rows")
        orders = [Order(worker=worker, pool=pool, epoch=epoch) for worker, epoch in made]
        return await self._create(orders) if made else Stale()

    async def _create_pod(self, a: do.CreatePod) -> Effect:
        identity = await self._store.workers.identity(a.worker)
        if identity is None:
            return Stale()
        return await self._create([Order(worker=a.worker, pool=identity[1], epoch=a.epoch)])

    async def _create(self, orders: Sequence[Order]) -> Effect:
        """Creates all pods at the same time. Workers whose pods are refused give their slots back together, and count as one
        failure."""
        answers = await asyncio.gather(*(self._cluster.create(order) for order in orders), return_exceptions=True)
        crash_point("spawn.created")
        refused, unknown = list[tuple[str, Refused]](), list[BaseException]()
        for order, answer in zip(orders, answers, strict=True):
            if isinstance(answer, BaseException):
                unknown.append(answer)  # looked up by its name, before anything else
            elif isinstance(answer, Refused):
                refused.append((order.worker, answer))
            else:
                await self._store.workers.spawned(order.worker, answer.uid)
        if refused:
            last = refused[-1][1]
            self._metrics.spawn_failures.labels(last.kind).inc(len(refused))
            await self._store.workers.unspawn([worker for worker, _ in refused], last.kind, last.reason, SPAWN_BACKOFF)
        if unknown:
            raise unknown[0]
        return Failed(refused[-1][1].reason) if refused else Done()

    async def _warm(self, a: do.Warm) -> Effect:
        effect = await self._store.workers.warm(a.worker, a.version, a.endpoint)
        identity = await self._store.workers.identity(a.worker)
        if isinstance(effect, Done) and identity is not None:
            self._claim_path.match_soon(identity[1])
        return effect

    async def _condemn(self, a: do.Condemn) -> Effect:
        if a.proof is not None and not await self._dead(a.proof):
            return Skipped("unsure")
        dead = a.proof is not None
        effect = await self._store.workers.condemn(a.worker, a.version, a.reason, counted=a.counted, dead=dead, floor=a.floor)
        crash_point("condemn.stored")
        if isinstance(effect, Done) and a.pool_id is not None:
            if a.trouble is not None:
                self._metrics.spawn_failures.labels("never-ready").inc()
                await self._store.pools.trouble(a.pool_id, a.trouble, SPAWN_BACKOFF)
            else:
                await self._store.pools.shrunk(a.pool_id)
        return effect

    async def _delete_pod(self, a: do.DeletePod) -> Effect:
        # A deletion cannot be undone, so the row is read again: a worker must be retiring and confirmed, and an orphan must have
        # no row.
        worker = await self._store.workers.get(a.name)
        state = await self._store.recovery.state()
        if state.uncertain:
            return Skipped("recovering")
        present = worker is not None and worker.state != "gone"
        if a.orphan == present or (worker is not None and present and not (worker.state == "retiring" and worker.confirmed)):
            return Stale()
        if a.orphan and a.counted:
            allowed = await self._store.workers.may_end_orphan(a.name)
            if not isinstance(allowed, Done):
                return allowed
        await self._cluster.delete(a.name, a.uid, a.grace)
        crash_point("delete.sent")
        return Done()

    async def _forget_pod(self, a: do.ForgetPod) -> Effect:
        worker = await self._store.workers.get(a.name)
        if worker is not None and worker.state != "gone":
            return Stale()  # its row is not closed yet, so the record may still be needed
        await self._cluster.forget(a.name, a.uid)
        return Done()

    async def _bury(self, a: do.Bury) -> Effect:
        if not await self._dead(do.Proof(a.worker, a.uid)):
            return Skipped("unsure")
        crash_point("bury.confirmed")
        return await self._store.workers.bury(a.worker, a.reason)

    async def _acknowledged(self, a: do.Acknowledged) -> Effect:
        acknowledged = await self._store.claims.acknowledge(a.worker, a.fence, None)
        if acknowledged is None:
            return Stale()
        self._claim_path.acknowledged(acknowledged)
        return Done()

    async def _protect(self, a: do.Protect) -> Effect:
        pod = await self._cluster.protect(a.worker, a.uid, Stamp(a.tenant, a.claim, a.fence))
        return Stale() if pod is None else Done()

    async def _clear(self, a: do.Clear) -> Effect:
        return await clear(self._store, self._cluster, a.worker, a.version, a.uid, a.pod_version)

    async def _start_blocked(self, a: do.StartBlocked) -> Effect:
        await self._store.pools.start_blocked(a.pool_id, a.reason)
        return Done()

    async def _seal(self, a: do.Seal) -> Effect:
        await self._cluster.seal(a.worker, a.uid)
        return Done()

    async def _ensure(self, a: on_pools.Ensure) -> Effect:
        # Only where there are objects beside pods: a pool that seems gone may be among the lost commits.
        if self._cluster.declarations is not None and (await self._store.recovery.state()).uncertain:
            return Skipped("recovering")
        await self._cluster.ensure(a.pools)
        return Done()

    async def _show_facts(self, a: do.ShowFacts) -> Effect:
        await self._store.workers.facts(a.facts)
        return Done()

    # The installation

    async def _quarantine(self, a: do.Quarantine) -> Effect:
        pod = await self._cluster.read(a.name)
        if pod is None or pod.phase == "ended" or await self._store.workers.identity(a.name) is not None:
            return Stale()  # the list may be older than the pod's end, which must not raise an alert
        self._metrics.quarantined.inc()
        await self._store.history.note("pod.quarantined", f"{a.reason}: {a.name}", worker=a.name)
        return Done()

    async def _prune_history(self, a: do.PruneHistory) -> Effect:
        await self._store.history.prune(a.days)
        return Done()

    async def _prune_outputs(self, a: do.PruneOutputs) -> Effect:
        if (await self._store.recovery.state()).uncertain:
            return Skipped("recovering")
        await self._cluster.prune_output(set(a.keep))
        return Done()
