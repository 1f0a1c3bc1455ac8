"""The cost of a pass of each duty with 10,000 quiet workers: CPU, the longest time without serving a request, memory."""

import asyncio
import contextlib
import gc
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import cast

from holdfast.duties.actions import PruneHistory, PruneOutputs
from holdfast.duties.converge import Converge
from holdfast.duties.deadlines import Deadlines
from holdfast.duties.duty import Duty, Ports
from holdfast.duties.match import MatchDuty
from holdfast.duties.pool_actions import Ensure
from holdfast.duties.pools import Pools
from holdfast.duties.prune import Prune
from holdfast.duties.scale import Scale
from holdfast.ports.cluster import Cluster

from . import rows
from .figure import Figure
from .hollow import HollowCluster
from .part import Part
from .sizes import Sizes
from .stage import Stage, stage

KINDS: tuple[type[Duty], ...] = (Converge, MatchDuty, Deadlines, Scale, Pools, Prune)
ALWAYS = (Ensure, PruneHistory, PruneOutputs)  # planned in every pass, also when there is nothing to do
# The agents of all workers have just reported.
HEARTBEATS = """
INSERT INTO holdfast.heartbeat (worker_id, beat_heard, doing)
SELECT id, holdfast.heard(), 'idle' FROM holdfast.worker WHERE pool_id = $1
"""


@dataclass(frozen=True)
class Pass:
    cpu: float  # seconds of this process
    slice: float  # seconds of it at the longest stretch


@contextlib.contextmanager
def staged(sizes: Sizes) -> Iterator[Stage]:
    """No replica runs here, because its own duties would act on the rows."""
    with stage() as here:
        asyncio.run(here.prepare(limits=False))
        yield here


def names(sizes: Sizes) -> list[str]:
    passes = [_cpu(duty.name, sizes) for duty in KINDS]
    return [*passes, SLICE, _growth(sizes), MEMORY]


SLICE = "longest slice of `converge`'s pass"
MEMORY = "memory per worker, at the peak of `converge`'s pass"


def _cpu(duty: str, sizes: Sizes) -> str:
    return f"CPU of a pass of `{duty}`, {sizes.many:,} workers"


def _growth(sizes: Sizes) -> str:
    return f"CPU of a pass of `converge`, {sizes.few:,} to {sizes.many:,} workers"


async def duties(here: Stage, sizes: Sizes) -> AsyncIterator[Figure]:
    few, _ = await passes(here, sizes.few, sizes)
    many, bytes_each = await passes(here, sizes.many, sizes)
    for name, one in many.items():
        most = 500.0 if name == "converge" else 50.0
        yield Figure(_cpu(name, sizes), one.cpu * 1000, "ms", "what it may take", most, 1.0)
    yield Figure(SLICE, many["converge"].slice * 1000, "ms", "a short duty's whole pass", 50.0, 1.0)
    value, base = many["converge"].cpu * 1000, few["converge"].cpu * 1000
    yield Figure(_growth(sizes), value, "ms", f"its pass at {sizes.few:,}", base, 12.0)
    yield Figure(MEMORY, bytes_each / 1024, "KB", "what it may take", 30.0, 1.0)


async def passes(here: Stage, workers: int, sizes: Sizes) -> tuple[dict[str, Pass], float]:
    """Returns the median pass of each duty, and the bytes per worker that this process grew by at its peak."""
    name, pool_id = await rows.make_pool(here, workers, warm=workers)
    await here.sql(HEARTBEATS, pool_id)
    await here.sql("ANALYZE")
    store = await here.store()
    try:
        ports = Ports(store, cast(Cluster, HollowCluster((await store.recovery.state()).install, pool_id, name, workers)))
        tracemalloc.start()
        converge = Converge()
        converge.plan(await converge.observe(ports))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found = {}
        for duty in (kind() for kind in KINDS):
            runs = [await one_pass(duty, ports) for _ in range(sizes.passes)]
            found[duty.name] = Pass(statistics.median(r.cpu for r in runs), statistics.median(r.slice for r in runs))
        return found, peak / workers
    finally:
        await store.close()
        await rows.clear(here)


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
    surprising = [action for action in plan if not isinstance(action, ALWAYS)]
    assert not surprising, f"{duty.name} is not quiet: {surprising[:3]}"
    watcher = asyncio.create_task(watch())
    try:
        duty.plan(await duty.observe(ports))
        await asyncio.sleep(0)
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    return Pass(cpu, longest)


DUTIES = Part("duties", staged, duties, names)
