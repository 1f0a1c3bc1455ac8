"""Apply each fault, and undo it when its time is over or everything heals."""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from .book import Broken
from .faults import Fault
from .loop import VirtualLoop, later
from .pods import Node, Weather, WorldPod
from .process import Process

if TYPE_CHECKING:
    from .run import Run

WEATHER: dict[str, dict[str, Callable[[float], object]]] = {
    "cluster.down": {"failing": lambda _: 1.0},
    "cluster.failing": {"failing": lambda a: 0.1 + 0.7 * a},
    "cluster.slow": {"latency": lambda a: (0.1, 0.5 + 3 * a)},
    "cluster.answers-lost": {"lost": lambda a: 0.1 + 0.6 * a},
    "cluster.late-writes": {"late": lambda a: 0.2 + 0.6 * a},
    "cluster.lists-stale": {"stale": lambda a: 0.3 + 0.7 * a},
    "cluster.lists-empty": {"empty": lambda a: 0.2 + 0.8 * a},
    "cluster.hints-lost": {"hints_dropped": lambda a: 0.3 + 0.7 * a, "hints_doubled": lambda a: a},
    "cluster.quota": {"quota": lambda a: 1 + int(8 * a)},
    "cluster.image-errors": {"image_errors": lambda a: 0.3 + 0.7 * a},
    "cluster.starts-crash": {"crashes": lambda a: 0.3 + 0.7 * a},
    "cluster.stubborn-pods": {"stubborn": lambda a: 0.3 + 0.7 * a},
    "cluster.starts-slow": {"start": lambda a: (5.0, 20.0 + 120 * a)},
}


class Chaos:
    """The faults of one run. For each active fault it stores how to undo it."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._mend: dict[int, Callable[[], None]] = {}
        self._count = 0
        self.healing = False
        self._failovers = 0

    def schedule(self, faults: list[Fault], begin: float) -> None:
        now = asyncio.get_running_loop().time()
        for fault in faults:
            later(max(0.0, begin + fault.at - now), lambda fault=fault: self._happen(fault))  # type: ignore[misc]

    def heal(self) -> None:
        """Undo all active faults, and start dead replicas again."""
        self.healing = True
        for number in list(self._mend):
            self._mend.pop(number)()
        for process in self._run.processes:
            process.line.after_effect = None
            if process.dead:
                process.boot()
        self._run.world.weather = Weather()

    def _happen(self, fault: Fault) -> None:
        if self.healing:
            return
        self._run.trace.line("fault", "", str(fault)[10:])
        if fault.kind in WEATHER:
            self._weather(fault)
            return
        noun, _, verb = fault.kind.partition(".")
        getattr(self, f"_{noun}_{verb.replace('-', '_')}")(fault)

    def _until(self, fault: Fault, mend: Callable[[], None]) -> None:
        self._count += 1
        number = self._count
        self._mend[number] = mend

        def over() -> None:
            if number in self._mend:
                self._mend.pop(number)()

        later(fault.span, over)

    def _weather(self, fault: Fault) -> None:
        weather, calm = self._run.world.weather, Weather()
        for name, value in WEATHER[fault.kind].items():
            setattr(weather, name, value(fault.amount))

        def mend() -> None:
            for name in WEATHER[fault.kind]:
                setattr(self._run.world.weather, name, getattr(calm, name))

        self._until(fault, mend)
        if fault.kind == "cluster.down" and fault.span > 40:
            later(25.0, lambda: self._stays_dark(fault))

    def _stays_dark(self, fault: Fault) -> None:
        """Check P6: while the cluster is unavailable, no pass of `converge` succeeds."""
        run = self._run
        sql = "SELECT success_at FROM holdfast.term WHERE duty = 'converge'"
        before, jumped = run.gate.postgres.ask(run.gate.clock(), sql)[0][0], run.database_clock

        def compare() -> None:
            after = run.gate.postgres.ask(run.gate.clock(), sql)[0][0]
            still = run.world.weather.failing == 1.0 and run.database_clock == jumped and not self.healing
            if still and before is not None and after is not None and after > before:
                run.loop.failed = Broken("P6", "converge reports success although the cluster is unavailable")

        later(fault.span - 27.0, compare)

    # Replicas

    def _replica(self, fault: Fault) -> Process | None:
        up = [process for process in self._run.processes if process.up]
        return up[int(fault.pick * len(up))] if up else None

    def _replica_crash(self, fault: Fault) -> None:
        if (process := self._replica(fault)) is not None:
            self._crash(process, 1 + 40 * fault.amount)

    def _crash(self, process: Process, down: float) -> None:
        self._run.trace.line("crash", process.name, f"comes back in {down:.1f} s")
        process.crash()
        later(down, lambda: process.boot() if process.dead else None)

    def _replica_crash_after_effect(self, fault: Fault) -> None:
        """Crash after the n-th statement or cluster write from now on, so that it took effect but its caller gets no answer."""
        if (process := self._replica(fault)) is None:
            return
        left = 1 + int(60 * fault.amount)

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                process.line.after_effect = None
                self._crash(process, 5.0)

        process.line.after_effect = count

    def _replica_pause(self, fault: Fault) -> None:
        if (process := self._replica(fault)) is not None:
            process.pause()
            self._until(fault, process.resume)

    def _replicas_pause_all(self, fault: Fault) -> None:
        for process in self._run.processes:
            process.pause()

        def mend() -> None:
            for process in self._run.processes:
                process.resume()

        self._until(fault, mend)

    def _replica_store_away(self, fault: Fault) -> None:
        if (process := self._replica(fault)) is not None:
            process.line.away = True

            def mend() -> None:
                process.line.away = False

            self._until(fault, mend)

    def _replica_store_slow(self, fault: Fault) -> None:
        if (process := self._replica(fault)) is not None:
            process.line.slow = 0.2 + 11 * fault.amount**3  # sometimes longer than the statement timeout

            def mend() -> None:
                process.line.slow = 0.002

            self._until(fault, mend)

    def _replica_store_flaky(self, fault: Fault) -> None:
        if (process := self._replica(fault)) is not None:
            process.line.flaky = 0.05 + 0.6 * fault.amount

            def mend() -> None:
                process.line.flaky = 0.0

            self._until(fault, mend)

    def _replica_cluster_away(self, fault: Fault) -> None:
        if (process := self._replica(fault)) is not None:
            process.cluster_away = True

            def mend() -> None:
                process.cluster_away = False

            self._until(fault, mend)

    def _replica_clock_jump(self, fault: Fault) -> None:
        if (process := self._replica(fault)) is not None:
            process.clock.jump = (fault.amount - 0.5) * 4000

            def mend() -> None:
                process.clock.jump = 0.0

            self._until(fault, mend)

    def _deploy_rolling(self, fault: Fault) -> None:
        async def roll() -> None:
            for process in self._run.processes:
                await process.stop()
                await asyncio.sleep(1 + 5 * fault.amount)
                if process.dead:
                    process.boot()

        self._run.spawn(roll())

    def _deploy_all_at_once(self, fault: Fault) -> None:
        async def roll() -> None:
            await asyncio.gather(*(process.stop() for process in self._run.processes))
            await asyncio.sleep(8 * fault.amount)
            for process in self._run.processes:
                if process.dead:
                    process.boot()

        self._run.spawn(roll())

    # Postgres

    def _store_restart(self, fault: Fault) -> None:
        self._store_outage(fault)

    def _store_outage(self, fault: Fault) -> None:
        gate = self._run.gate
        gate.go_down()

        def mend() -> None:
            gate.down = False

        self._until(fault, mend)

    def _store_clock_jump(self, fault: Fault) -> None:
        self._run.database_clock += (fault.amount - 0.4) * 1200

    def _store_failover(self, fault: Fault) -> None:
        """Fail over to a standby that is `span` seconds behind."""
        gate = self._run.gate
        aside, mark, history = gate.postgres.copy(), self._mark(), self._failovers

        def lose() -> None:
            # A real failover changes the server's timeline, a copy does not. So a loss that contains no beat cannot be detected.
            if self.healing or gate.down or self._mark() == mark:
                return
            if self._failovers != history:
                return  # another failover came first, and this copy is a standby of the old server
            self._failovers += 1
            gate.go_down()
            gate.postgres.put_back(aside)
            self._run.checks.rewound()
            self._run.trace.line("failover", "", f"the last {fault.span:.1f} s are lost")
            later(1 + 5 * fault.amount, self._run.lift_outage)

        later(fault.span, lose)

    def _mark(self) -> int:
        gate = self._run.gate
        return int(gate.postgres.ask(gate.clock(), "SELECT mark FROM holdfast.hearing")[0][0])

    def _network_lossy(self, fault: Fault) -> None:
        self._run.network.lossy = 0.05 + 0.5 * fault.amount

        def mend() -> None:
            self._run.network.lossy = 0.0

        self._until(fault, mend)

    # Pods and nodes

    def _pod(self, fault: Fault, agents_only: bool = False) -> WorldPod | None:
        pods = [p for p in self._run.world.living() if p.install == self._run.install and (p.agent or not agents_only)]
        busy = [pod for pod in pods if pod.uid in self._run.book.doing]
        among = busy if busy and fault.amount < 0.5 else pods
        return among[int(fault.pick * len(among))] if among else None

    def _pod_kill(self, fault: Fault) -> None:
        if (pod := self._pod(fault)) is not None:
            self._run.world.kill(pod)

    def _pods_kill_many(self, fault: Fault) -> None:
        source = random.Random(fault.pick)
        for pod in self._run.world.living():
            if pod.install == self._run.install and source.random() < fault.amount:
                self._run.world.kill(pod)

    def _pod_vanish(self, fault: Fault) -> None:
        if (pod := self._pod(fault)) is not None:
            self._run.world.vanish(pod)

    def _pod_evict(self, fault: Fault) -> None:
        if (pod := self._pod(fault)) is not None:
            self._run.world.evict(pod, 5 + 60 * fault.pick)

    def _pod_delete(self, fault: Fault) -> None:
        """Delete a pod as `kubectl delete` does, which ignores budgets."""
        if (pod := self._pod(fault)) is not None:
            self._run.world.evict(pod, 5 + 60 * fault.pick, force=True)

    def _pod_impostor(self, fault: Fault) -> None:
        """Replace a pod by another pod of the same name, as a restore tool may do."""
        if (pod := self._pod(fault)) is not None:
            self._run.world.vanish(pod)
            self._run.impostor(pod)

    def _pod_hang(self, fault: Fault) -> None:
        pod = self._pod(fault, agents_only=True)
        owner = self._run.agents.get(pod.uid) if pod is not None else None
        loop = asyncio.get_running_loop()
        if owner is not None and isinstance(loop, VirtualLoop):
            loop.pause(owner)
            self._until(fault, lambda: loop.resume(owner))

    def _node(self, fault: Fault) -> Node | None:
        nodes = [node for node in self._run.world.nodes.values() if not node.dead]
        return nodes[int(fault.pick * len(nodes))] if nodes else None

    def _node_cordon(self, fault: Fault) -> None:
        if (node := self._node(fault)) is not None:
            self._run.world.cordon(node)
            self._until(fault, lambda: self._run.world.uncordon(node))

    def _node_drain(self, fault: Fault) -> None:
        if (node := self._node(fault)) is not None:
            self._run.world.drain(node, 5 + 60 * fault.amount)
            self._until(fault, lambda: self._run.world.uncordon(node))

    def _node_partition(self, fault: Fault) -> None:
        if (node := self._node(fault)) is not None:
            self._run.world.partition(node)
            self._until(fault, lambda: self._run.world.heal(node))

    def _node_death(self, fault: Fault) -> None:
        if (node := self._node(fault)) is not None:
            self._run.world.die(node, 5 + 60 * fault.amount)
            self._count += 1
            self._run.world.add_node(f"n-new-{self._count}")

    # People

    def _operator_rollout(self, fault: Fault) -> None:
        self._run.spawn(self._run.operator.roll_out(fault.pick))

    def _operator_freeze(self, fault: Fault) -> None:
        self._run.spawn(self._run.operator.freeze(fault.pick, True))
        self._until(fault, lambda: self._run.spawn(self._run.operator.freeze(fault.pick, False)))

    def _operator_force_release(self, fault: Fault) -> None:
        self._run.spawn(self._run.operator.force_release(fault.pick))

    def _operator_delete_pool(self, fault: Fault) -> None:
        self._run.spawn(self._run.operator.delete_pool(fault.pick))

    def _operator_retire(self, fault: Fault) -> None:
        self._run.spawn(self._run.operator.retire(fault.pick))
