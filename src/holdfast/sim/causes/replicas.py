"""Faults of replicas: crashes, pauses, deploys, broken connections and clocks."""

import asyncio
from typing import TYPE_CHECKING

from ..faults import Fault
from ..loop import later
from ..moments import Target
from ..process import ReplicaProcess
from .cause import Cause

if TYPE_CHECKING:
    from ..chaos import Chaos


def _replica(chaos: "Chaos", fault: Fault, target: Target) -> ReplicaProcess | None:
    up = [process for process in chaos.run.processes if process.up and target.replica in (None, process.name)]
    return up[int(fault.pick * len(up))] if up else None


def crash(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (process := _replica(chaos, fault, target)) is not None:
        _crash(chaos, process, 1 + 40 * fault.amount)


def _crash(chaos: "Chaos", process: ReplicaProcess, down: float) -> None:
    chaos.run.trace.line("crash", process.name, f"comes back in {down:.1f} s")
    process.crash()
    later(down, lambda: process.boot() if process.dead else None)


def crash_after_effect(chaos: "Chaos", fault: Fault, target: Target) -> None:
    """Crash after the n-th statement or cluster write from now on, so that it took effect but its caller gets no answer."""
    if (process := _replica(chaos, fault, target)) is None:
        return
    left = 1 + int(60 * fault.amount)

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            process.line.after_effect = None
            _crash(chaos, process, 5.0)

    process.line.after_effect = count


def pause(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (process := _replica(chaos, fault, target)) is not None:
        process.pause()
        chaos.until(fault, process.resume)


def pause_all(chaos: "Chaos", fault: Fault, target: Target) -> None:
    for process in chaos.run.processes:
        process.pause()

    def mend() -> None:
        for process in chaos.run.processes:
            process.resume()

    chaos.until(fault, mend)


def store_away(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (process := _replica(chaos, fault, target)) is not None:
        process.line.away = True

        def mend() -> None:
            process.line.away = False

        chaos.until(fault, mend)


def store_slow(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (process := _replica(chaos, fault, target)) is not None:
        process.line.slow = 0.2 + 11 * fault.amount**3  # sometimes longer than the statement timeout

        def mend() -> None:
            process.line.slow = 0.002

        chaos.until(fault, mend)


def store_flaky(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (process := _replica(chaos, fault, target)) is not None:
        process.line.flaky = 0.05 + 0.6 * fault.amount

        def mend() -> None:
            process.line.flaky = 0.0

        chaos.until(fault, mend)


def cluster_away(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (process := _replica(chaos, fault, target)) is not None:
        process.cluster_away = True

        def mend() -> None:
            process.cluster_away = False

        chaos.until(fault, mend)


def clock_jump(chaos: "Chaos", fault: Fault, target: Target) -> None:
    if (process := _replica(chaos, fault, target)) is not None:
        process.clock.jump = (fault.amount - 0.5) * 4000

        def mend() -> None:
            process.clock.jump = 0.0

        chaos.until(fault, mend)


def deploy_rolling(chaos: "Chaos", fault: Fault, target: Target) -> None:
    async def roll() -> None:
        for process in chaos.run.processes:
            await process.stop()
            await asyncio.sleep(1 + 5 * fault.amount)
            if process.dead:
                process.boot()

    chaos.run.spawn(roll())


def deploy_all_at_once(chaos: "Chaos", fault: Fault, target: Target) -> None:
    async def roll() -> None:
        await asyncio.gather(*(process.stop() for process in chaos.run.processes))
        await asyncio.sleep(8 * fault.amount)
        for process in chaos.run.processes:
            if process.dead:
                process.boot()

    chaos.run.spawn(roll())


REPLICAS: dict[str, Cause] = {
    "replica.crash": crash,
    "replica.crash-after-effect": crash_after_effect,
    "replica.pause": pause,
    "replica.store-away": store_away,
    "replica.store-slow": store_slow,
    "replica.store-flaky": store_flaky,
    "replica.cluster-away": cluster_away,
    "replica.clock-jump": clock_jump,
    "replicas.pause-all": pause_all,
    "deploy.rolling": deploy_rolling,
    "deploy.all-at-once": deploy_all_at_once,
}
