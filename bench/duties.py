"""What a pass of each duty costs with 10,000 quiet workers: CPU, the longest stretch in which nobody else is served, memory."""

import asyncio
import contextlib
import gc
import resource
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from holdfast.duties.converge import Converge
from holdfast.duties.deadlines import Deadlines
from holdfast.duties.duty import Duty, Ports
from holdfast.duties.match import MatchDuty
from holdfast.duties.pools import Pools
from holdfast.duties.prune import Prune
from holdfast.duties.scale import Scale

from .figure import Figure
from .hollow import HollowCluster
from .stage import Stage

FEW, MANY = 1_000, 10_000
PASSES = 5
# The agents of all workers have just spoken.
PULSES = """
INSERT INTO holdfast.pulse (worker_id, beat_heard, doing)
SELECT id, holdfast.heard(), 'idle' FROM holdfast.worker WHERE pool_id = $1
"""


@dataclass(frozen=True)
class Pass:
    cpu: float  # seconds of this process
    slice: float  # seconds of it at the longest stretch


async def duties(stage: Stage) -> AsyncIterator[Figure]:
    few, _ = await passes(stage, FEW)
    many, bytes_each = await passes(stage, MANY)
    for name, one in many.items():
        most = 500.0 if name == "converge" else 50.0
        yield Figure(f"CPU of a pass of `{name}`, {MANY:,} workers", one.cpu * 1000, "ms", "what it may take", most, 1.0)
    yield Figure(
        "longest slice of `converge`'s pass", many["converge"].slice * 1000, "ms", "a short duty's whole pass", 50.0, 1.0
    )
    value, base = many["converge"].cpu * 1000, few["converge"].cpu * 1000
    yield Figure(f"CPU of a pass of `converge`, {FEW:,} to {MANY:,} workers", value, "ms", f"its pass at {FEW:,}", base, 12.0)
    yield Figure("memory a worker, at the peak of `converge`'s pass", bytes_each / 1024, "KB", "what it may take", 30.0, 1.0)


async def passes(stage: Stage, workers: int) -> tuple[dict[str, Pass], float]:
    """The median pass of each duty, and the bytes that a worker added to this process at its peak."""
    name, pool_id = await stage.pool(workers, {"mode": "job", "warm": workers, "max": workers}, frozen=False)
    await stage.sql(PULSES, pool_id)
    await stage.sql("ANALYZE")
    store = await stage.store()
    try:
        ports = Ports(store, HollowCluster((await store.recovery.state()).install, pool_id, name, workers))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = {}
        for duty in (Converge(), MatchDuty(), Deadlines(), Scale(), Pools(), Prune()):
            runs = [await one_pass(duty, ports) for _ in range(PASSES)]
            found[duty.name] = Pass(statistics.median(r.cpu for r in runs), statistics.median(r.slice for r in runs))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        return found, grown / workers
    finally:
        await store.close()
        await stage.clear()


async def one_pass(duty: Duty, ports: Ports) -> Pass:
    gc.collect()
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            last = time.process_time()
            await asyncio.sleep(0)
            longest = max(longest, time.process_time() - last)

    # Two runs, because the watcher itself uses CPU all the time: one for the sum, one for the longest stretch.
    started = time.process_time()
    plan = duty.plan(await duty.observe(ports))
    cpu = time.process_time() - started
    assert duty.name == "prune" or not plan, f"{duty.name} is not quiet: {plan[:3]}"
    watcher = asyncio.create_task(watch())
    try:
        duty.plan(await duty.observe(ports))
        await asyncio.sleep(0)
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    return Pass(cpu, longest)
