"""Check the fleet after everything healed: within fixed bounds nothing leaks, every duty runs, and every claim has an end."""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from .book import Broken
from .pods import FORGED
from .process import Unreachable
from .server import INSTALL
from .tables import Tables, look

if TYPE_CHECKING:
    from .run import Run

LEAKS = 150.0  # seconds: the failure table's longest bound (90 s) plus the longest grace here (60 s)
DUTIES = 60.0  # seconds; the slowest duty except `prune` runs every 15 s
CALM = 500.0  # seconds: the longest claim (5 min), a lease and a parked worker's TTL; or a pool's longest backoff (5 min)


class Healed:
    def __init__(self, run: "Run") -> None:
        self._run = run

    async def converge(self) -> None:
        """Wait until nothing is wrong. A problem that lasts longer than its bound is a broken promise."""
        since: dict[str, float] = {}
        while wrong := self._wrong():
            now = self._run.loop.time()
            since = {what: since.get(what, now) for _, _, what in wrong}
            for promise, bound, what in wrong:
                if now - since[what] > bound:
                    raise Broken(promise, f"for {now - since[what]:.0f} s although everything is healed: {what}")
            await self._attend()
            await asyncio.sleep(2)

    async def _attend(self) -> None:
        """Do what only a person may do: release the brake, decide about unconfirmed workers, and remove quarantined pods."""
        run = self._run
        with contextlib.suppress(Unreachable):
            await run.operator.give_up()
        if run.gate.postgres.ask(run.gate.clock(), "SELECT brake_tripped_at FROM holdfast.installation")[0][0] is not None:
            await run.operator.release_brake()
        for row in run.gate.postgres.ask(
            run.gate.clock(), "SELECT tenant FROM holdfast.tenant_brake WHERE tripped_at IS NOT NULL"
        ):
            await run.operator.release_brake(row["tenant"])
        for name in run.quarantined:
            pod = run.world.pods.get(name)
            speaks = pod is not None and pod.agent and not pod.token.endswith(FORGED)  # then its reports must get it adopted
            if pod is not None and pod.install == INSTALL and pod.uid not in run.book.doing and not speaks:
                run.world.vanish(pod)
        run.quarantined.clear()

    def _wrong(self) -> list[tuple[str, float, str]]:
        gate, world = self._run.gate, self._run.world
        tables = look(gate.postgres, gate.clock(), 2**60)
        pods = {pod.name: pod for pod in world.pods.values() if pod.install == INSTALL}
        wrong = [*self._duties(), *self._targets(tables)]
        for name, pod in pods.items():
            row = tables.workers.get(name)
            if row is None:
                wrong.append(("P5", LEAKS, f"pod {name} ({pod.phase}) has no row"))
            elif row.state in ("warm", "parked") and (pod.protected or pod.stamp is not None):
                wrong.append(("P5", LEAKS, f"{name} is {row.state}, and its pod still carries a stamp"))
            elif (
                row.state == "held"
                and row.claim in tables.claims
                and tables.claims[row.claim].state == "active"
                and not pod.protected
                and not tables.recovering  # the claim may have ended in the lost commits, so recovery comes first
            ):
                wrong.append(("P3", 30.0, f"{name} is busy and not protected"))
            elif row.state == "retiring" and pod.phase == "ended":
                wrong.append(("P5", LEAKS, f"{name} has ended, and its row is retiring"))
        for name, row in tables.workers.items():
            if name not in pods:
                wrong.append(("P5", LEAKS, f"worker {name} ({row.state}) has no pod"))
            if row.state == "parked":
                wrong.append(("P5", 90.0, f"worker {name} is parked for {row.tenant} past its TTL"))
            if row.state in ("held", "retiring"):
                wrong.append(("P5", CALM, f"worker {name} is still {row.state} ({row.reason})"))
        for claim in tables.claims.values():
            wrong.append(("P8", CALM, f"claim {claim.id} is still {claim.state} ({claim.reason or 'no reason'})"))
        for id_ in self._run.book.accepted:
            if id_ not in self._run.checks.ended and id_ not in tables.claims and id_ not in self._run.book.forgotten:
                wrong.append(("P8", CALM, f"claim {id_} was accepted, and has neither an outcome nor a row"))
        if tables.recovering:
            wrong.append(("P7", LEAKS, "recovery has not ended"))
        return wrong

    def _duties(self) -> list[tuple[str, float, str]]:
        gate = self._run.gate
        sql = """SELECT duty, extract(epoch FROM holdfast.now() - success_at)::float8 AS ago, failure FROM holdfast.term
                 WHERE duty <> 'prune' ORDER BY duty"""
        rows = gate.postgres.ask(gate.clock(), sql)
        late = [row for row in rows if row["ago"] is None or row["ago"] > DUTIES or row["ago"] < -5]
        return [("P6", DUTIES + 30, f"duty {row['duty']} has not succeeded lately ({row['failure']})") for row in late]

    def _targets(self, tables: Tables) -> list[tuple[str, float, str]]:
        gate = self._run.gate
        sql = "SELECT id, name, (spec ->> 'warm')::integer AS warm, trouble FROM holdfast.pool WHERE state = 'live' ORDER BY name"
        wrong = []
        for pool in gate.postgres.ask(gate.clock(), sql):
            ready = sum(row.usable for row in tables.workers.values() if row.pool == pool["id"])
            if ready < pool["warm"]:
                wrong.append(("P5", CALM, f"pool {pool['name']} has {ready} of {pool['warm']} ({pool['trouble']})"))
        return wrong
