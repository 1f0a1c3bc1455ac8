"""Takes pools, workers and claims through the real store, step by step: made, warm, assigned, handed over, active, ended."""

import itertools
from typing import Any

from holdfast.model.pool import Pool, PoolSpec, ProtectionSpec, WorkerSpec
from holdfast.model.tenant import TenantSpec
from holdfast.ports.store import AgentReport, Assignment, NewClaim, Pair
from holdfast.postgres.store import PostgresStore

# A pool without agents and without protection. `match` below offers its claims at once, so they become active at once.
DIRECT = PoolSpec(max=1000, worker=WorkerSpec(run=["true"], agent=False), protection=ProtectionSpec(mode="off"))
# A pool without agents but with protection. Its claims become active when they have been offered.
BARE = PoolSpec(max=1000, worker=WorkerSpec(run=["true"], agent=False))
JOB = PoolSpec(max=1000)
SESSION = PoolSpec(mode="session", max=1000, worker=WorkerSpec(serve=["true"]))
_numbers = itertools.count(1)


def name(prefix: str) -> str:
    return f"{prefix}-{next(_numbers):05d}"


async def make_pool(store: PostgresStore, spec: PoolSpec = DIRECT, called: str = "linux") -> Pool:
    pool, what = await store.pools.put(name("p"), called, spec, "api")
    assert what == "created"
    return pool


async def make_tenant(store: PostgresStore, tenant: str, **spec: Any) -> None:
    await store.pools.put_tenant(tenant, TenantSpec(**spec))


def ask(tenant: str = "acme", **asked: Any) -> NewClaim:
    """Returns a claim request as the API would make it. Every field can be replaced."""
    usual: dict[str, Any] = {
        "id": name("c"),
        "tenant": tenant,
        "key": None,
        "hash": "same",
        "request": {"command": ["true"]},
        "priority": 0,
        "lease": None,
        "max_duration": 3600.0,
        "deadline": 3600.0,
        "park_ttl": None,
        "retry": None,
        "secrets": None,
    }
    return NewClaim(**(usual | asked))


def agent_report(worker: str, **reported: Any) -> AgentReport:
    return AgentReport(**({"worker": worker, "uid": f"uid-{worker}", "doing": "idle"} | reported))


async def make_warm(store: PostgresStore, pool: Pool, count: int = 1) -> list[str]:
    """Creates workers with all their steps: the row, the pod, ready."""
    ids = [name("w") for _ in range(count)]
    made = await store.workers.spawn(pool.id, ids, 1000, 1000)
    assert len(made) == count, "the pool would not spawn"
    for worker in ids:
        await store.workers.spawned(worker, f"uid-{worker}")
        if pool.spec.worker.agent:
            await store.workers.report(agent_report(worker))
        else:
            await store.workers.warm(worker, 2, None)
    return ids


async def match(store: PostgresStore, pool: Pool, *new: NewClaim) -> list[Pair]:
    pairs = (await store.claims.match(pool.id, new, 1000)).pairs
    if pairs and not pool.spec.worker.agent and pool.spec.protection.mode == "off":
        assert len(await store.claims.offer([(pair.claim, pair.fence, False) for pair in pairs])) == len(pairs)
    return pairs


async def assigned(store: PostgresStore, pool: Pool, new: NewClaim | None = None) -> Pair:
    """Returns a claim that has been assigned to a worker. It is already active if the pool needs no hand-over."""
    new = new or ask()
    return next(pair for pair in await match(store, pool, new) if pair.claim == new.id)


async def active(store: PostgresStore, pool: Pool, new: NewClaim | None = None) -> Pair:
    """Returns a claim that is active on its worker."""
    pair = await assigned(store, pool, new)
    if await store.claims.state(pair.claim) != "active":
        await make_active(store, pool, pair)
    return pair


async def lone_assigned(store: PostgresStore, spec: PoolSpec, new: NewClaim | None = None) -> Pair:
    """Makes a pool with one worker, and assigns a claim to this worker."""
    pool = await make_pool(store, spec)
    await make_warm(store, pool)
    return await assigned(store, pool, new)


async def lone_active(store: PostgresStore, spec: PoolSpec, new: NewClaim | None = None) -> Pair:
    """Makes a pool with one worker, and makes a claim active on this worker."""
    pool = await make_pool(store, spec)
    await make_warm(store, pool)
    return await active(store, pool, new)


async def make_active(store: PostgresStore, pool: Pool, pair: Pair) -> None:
    if pool.spec.worker.agent:
        await deliver(store, pair)
        assert await acknowledge(store, pair.worker, pair.fence, None) == pair.claim
    else:
        assert [claim.id for claim in await store.claims.offer([(pair.claim, pair.fence, True)])] == [pair.claim]


async def deliver(store: PostgresStore, pair: Pair) -> Assignment:
    """Offers the claim to the worker and lets the agent fetch it. The agent has not acknowledged it yet."""
    assert [claim.id for claim in await store.claims.offer([(pair.claim, pair.fence, True)])] == [pair.claim]
    assert pair.uid is not None
    assignment = await store.claims.deliver(pair.worker, pair.uid)
    assert assignment is not None
    return assignment


async def end(store: PostgresStore, claim: str, how: str = "release", **other: Any) -> Any:
    """Ends a claim in one of the ways that P2 allows."""
    outcome = {
        "release": "released",
        "cancel": "cancelled",
        "lease": "expired",
        "max_duration": "expired",
        "result": "completed",
        "death": "lost",
        "deadline": "refused",
        "force": "released",
        "pool_deleted": "refused",
    }[how]
    usual: dict[str, Any] = {"outcome": outcome, "how": how, "reason": how, "states": ("waiting", "assigned", "active")}
    return (await store.claims.end(claim, **(usual | other))).effect


async def acknowledge(store: PostgresStore, worker: str, fence: int, endpoint: str | None) -> str | None:
    """Stores an agent's acknowledgement. Returns the id of the claim for which it was accepted."""
    acknowledged = await store.claims.acknowledge(worker, fence, endpoint)
    return None if acknowledged is None else acknowledged.claim.id
