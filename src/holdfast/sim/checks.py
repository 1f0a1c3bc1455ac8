"""Check the promises after every change: compare the tables with the tables before, and with the simulated world."""

from collections.abc import Callable
from typing import get_args

import msgspec

from ..model.activation import MAX_ACTIVATIONS
from ..model.claim import CLAIM, How, epoch_of
from ..model.worker import WORKER
from .activations import Activations
from .book import Book, Broken
from .gate import Gate
from .pods import WorldPod
from .tables import ClaimRow, EventRow, Tables, WorkerRow, look
from .transitions import check_transition
from .world import World

ENDINGS = get_args(How)
SLACK = 2.5  # seconds by which heard time may be ahead of our count: one beat, and statements in transit
LIVE = ("assigned", "active")
# Events of decisions. Endings by proof of death are not included, because they are always allowed.
ACTS = ("claim.assigned", "claim.requeued", "claim.retried", "worker.spawning", "worker.retiring")


class Checks:
    def __init__(self, gate: Gate, world: World, book: Book, install: str, now: Callable[[], float]) -> None:
        self._gate = gate
        self._world = world
        self._book = book
        self._install = install
        self._now = now  # virtual, without jumps
        self.before: Tables | None = None
        self._event = 0
        self._fence = self._given = 0
        self._rewound: set[str] = set()  # workers about which the database lost something; membership only
        self._beats: list[float] = []  # when beats were stored, because deadlines run only in that time
        self.spread: list[EventRow] = []  # events of the last read, for the trace
        self.active_since: dict[str, float] = {}
        self._created: dict[str, float] = {}
        self.ended: set[str] = set()  # membership only
        self._ever: set[str] = set()  # ended at any time, also in lost commits; membership only
        self._gone: set[str] = set()  # membership only
        self._refused: dict[str, int] = {}
        self._unnoticed = False  # commits were lost, and no replica has noticed yet
        self._activations = Activations(now, self._hearing)
        world.on_effect.append(self.effect)

    # After a statement

    def heard(self) -> None:
        self._beats.append(self._now())

    def statement(self) -> None:
        """Check the tables after a statement that may have changed them."""
        now = look(self._gate.postgres, self._gate.clock(), self._event)
        before, self.before = self.before, now
        self.spread = now.events
        if now.events:
            self._event = now.events[-1].id
        if before is None:
            return
        self._everything(now)
        self._noticed(now)
        self._activations.saw(now)
        self._given = self._fence  # several claims may get their fences in one statement
        for worker in now.workers.values():
            self._worker(before.workers.get(worker.id), worker, now)
        for claim in now.claims.values():
            self._claim(before.claims.get(claim.id), claim, now)
        for id_ in [*(before.workers.keys() - now.workers.keys()), *(before.claims.keys() - now.claims.keys())]:
            if before.workers[id_].state != "gone" if id_ in before.workers else before.claims[id_].state != "ended":
                raise Broken("event", f"{id_} is no longer among the live rows, and no event says why")

    def rewound(self) -> None:
        """Start again from the current tables, because the database lost commits. Claims without any record are forgotten."""
        before, over, buried = self.before, set(self.ended), set(self._gone)
        self._gone.clear()
        self.ended.clear()
        self._event = 0
        now = look(self._gate.postgres, self._gate.clock(), 0)
        self._event = now.events[-1].id if now.events else 0
        self._gone |= {row.id for row in now.workers.values() if row.state == "gone"}
        self.ended |= {row.id for row in now.claims.values() if row.state == "ended"}
        self.before = msgspec.structs.replace(now, events=[])
        kept = {pod.stamp.claim for pod in self._world.pods.values() if pod.stamp is not None}
        kept |= {claim for claim, _ in self._book.doing.values()}
        for claim in before.claims.values() if before is not None else ():
            same = now.claims.get(claim.id)
            if (same is None or same[2:9] != claim[2:9]) and claim.id not in kept:
                self._book.forgotten.add(claim.id)
        for id_ in list(self._book.accepted) + list(self._book.starts):
            if id_ not in now.claims and id_ not in kept:
                self._book.forgotten.add(id_)
        self._book.forgotten |= over - self.ended - kept  # no pod has a record of their end either
        self._rewound |= buried & {row.id for row in now.workers.values() if row.state != "gone"}  # no longer in `before`
        for name, worker in before.workers.items() if before is not None else ():
            if (after := now.workers.get(name)) is None or after[2:8] != worker[2:8]:
                self._rewound.add(name)
        self._unnoticed = before is not None and _essence(before) != _essence(now)
        for id_ in set(self._book.keys.values()) - now.claims.keys():
            self._book.unkeyed(id_)
        self._book.renewed.clear()  # recent renewals are lost too
        self._activations.rewound()

    def _everything(self, now: Tables) -> None:
        given = {
            now.claims[event.claim].tenant for event in now.events if event.kind == "claim.assigned" and event.claim in now.claims
        }
        if over := given & set(now.over):  # adopted claims alone may exceed a cap
            raise Broken("cap", f"tenants above their caps get more: {', '.join(sorted(over))}")
        born = {now.workers[event.worker].pool for event in now.events if event.kind == "worker.spawning" and event.worker}
        for pool in now.crowded:
            if pool in born:  # adopted workers alone may exceed max
                raise Broken("max", f"pool {pool} spawns above its max")
        if now.braked:
            raise Broken("P7", f"more endings than the brake allows: {now.braked}")
        if touched := self._world.foreign_touched():
            raise Broken("P7", f"pods of another installation were touched: {', '.join(touched)}")

    def _noticed(self, now: Tables) -> None:
        """Check P7: after lost commits, nothing is given out, spawned or ended before a replica has noticed the loss."""
        for event in now.events if self._unnoticed else ():
            if event.kind == "recovery.began":
                self._unnoticed = False
                return
            if event.kind in ACTS:
                raise Broken("P7", f"commits were lost unnoticed, and {event.claim or event.worker} is acted on: {event.kind}")

    # Workers

    def _worker(self, before: WorkerRow | None, now: WorkerRow, tables: Tables) -> None:
        if now.state == "gone" and now.id in self._gone:
            return  # a later event named it again
        if before is not None and before.state == now.state and before.claim == now.claim:
            if before.version > now.version:
                raise Broken("state", f"{now.id} went from version {before.version} to {now.version}")
            return
        check_transition(WORKER, now.id, before.state if before else None, now.state, tables.events, "worker")
        if now.state == "held":
            claim = tables.claims.get(now.claim or "")
            if claim is None or claim.worker != now.id or claim.fence != now.fence or claim.state not in LIVE:
                raise Broken("P1", f"{now.id} is held by {now.claim}, whose row is {claim}")
        if before is not None and before.fence is not None and now.fence is not None and now.fence < before.fence:
            raise Broken("fence", f"{now.id} went from fence {before.fence} to {now.fence}")
        pod = self._pod(now)
        if now.state == "gone":
            self._gone.add(now.id)
        if now.state == "gone" and pod is not None and pod.phase != "ended":
            raise Broken("P5", f"{now.id} is buried ({now.reason}), and its pod is {pod.phase}")
        if now.state == "retiring" and before is not None and "the pool wants" in (now.reason or ""):
            self._shrunk(now, tables)

    def _shrunk(self, worker: WorkerRow, tables: Tables) -> None:
        left = sum(w.pool == worker.pool and (w.usable or w.state == "spawning") for w in tables.workers.values())
        wanted = int((worker.reason or "").split("the pool wants ")[1].split()[0])
        waiting = sum(c.pool == worker.pool and c.state == "waiting" for c in tables.claims.values())
        if worker.pool in tables.crowded:
            return  # adopted workers put the pool above its max
        if left < wanted and waiting == 0 and left < tables.warm.get(worker.pool, 0):
            raise Broken("P5", f"{worker.id} was let go as one too many, and {left} of {wanted} are left")

    # Claims

    def _claim(self, before: ClaimRow | None, now: ClaimRow, tables: Tables) -> None:
        if now.state == "ended" and now.id in self.ended:
            return
        if before is not None and (before.state, before.fence) == (now.state, now.fence):
            return
        if before is None or before.state != now.state:
            check_transition(CLAIM, now.id, before.state if before else None, now.state, tables.events, "claim")
        if now.fence is not None and (before is None or before.fence != now.fence):
            self._fenced(now, tables)
        self._created.setdefault(now.id, self._now())
        if now.state == "active" and before is None:
            self._book.unkeyed(now.id)
        if now.state == "active" and (before is None or before.state != "active"):
            self.active_since[now.id] = self._now()
            self._book.renewed[now.id] = self._now()
            self._protected(now)
        if now.state == "waiting" and before is not None and before.state == "active":
            self._proven_dead(before, "is served again")
        if now.state == "ended":
            self.ended.add(now.id)
            # A claim that had left its worker in lost commits may end without having ended before, because it may have run.
            left_its_worker = before is not None and before.state == "waiting"
            if now.how == "forgotten" and now.id not in self._ever and not left_its_worker:
                raise Broken("P2", f"{now.id} ended as `forgotten`, but it had not ended before the commits were lost")
            self._ever.add(now.id)
            self._ended(before, now)

    def _fenced(self, claim: ClaimRow, tables: Tables) -> None:
        assert claim.fence is not None
        if claim.fence <= self._given and not any(e.kind == "claim.adopted" and e.claim == claim.id for e in tables.events):
            raise Broken("fence", f"{claim.id} got fence {claim.fence}, and {self._given} was given before")
        self._fence = max(self._fence, claim.fence)
        if epoch_of(claim.fence) > tables.epoch:
            raise Broken("fence", f"{claim.id} has a fence of epoch {epoch_of(claim.fence)}, and it is {tables.epoch}")

    def _protected(self, claim: ClaimRow) -> None:
        """Check P3 when a claim becomes active, because from now on its holder may use the worker."""
        pod = self._world.pods.get(claim.worker or "")
        if claim.protected and pod is not None and pod.install == self._install and pod.alive and not pod.protected:
            raise Broken("P3", f"{claim.id} is active as protected, and its pod {pod.name} is not")

    def _ended(self, before: ClaimRow | None, now: ClaimRow) -> None:
        if now.how not in ENDINGS:
            raise Broken("P2", f"{now.id} was ended by {now.how!r}, which is not on the list")
        if now.id in self._book.forgotten or before is None:
            return
        if now.how == "death":
            self._proven_dead(before, "ended by its death")
        elif now.how == "result" and (now.id, before.fence or 0) not in self._book.results:
            raise Broken("P2", f"{now.id} ended by a result that no agent stored")
        elif now.how == "lease":
            self._ran_out(now, self._book.renewed.get(now.id), now.lease or 0.0, "lease")
        elif now.how == "max_duration":
            self._ran_out(now, self.active_since.get(now.id), now.longest, "longest duration")
        elif now.how == "deadline" and before.state == "waiting":
            self._ran_out(now, self._created.get(now.id), now.patience, "deadline", promise="P8")
        elif now.how == "activation" and self._book.tries.get(now.id, 0) < MAX_ACTIVATIONS:
            raise Broken("P8", f"{now.id} was refused after {self._book.tries.get(now.id, 0)} tries to activate it")
        elif now.how == "release" and self._book.released.get(now.id) is None:
            raise Broken("P2", f"{now.id} ended as released, but its holder did not release it")

    def _ran_out(self, claim: ClaimRow, since: float | None, allowed: float, what: str, promise: str = "P7") -> None:
        if since is None:
            return
        counted = self._hearing(since)
        if counted < allowed - SLACK:
            passed = self._now() - since
            raise Broken(
                promise, f"{claim.id} ended by its {what} of {allowed:.0f} s: {passed:.1f} s passed, {counted:.1f} s were heard"
            )

    def _hearing(self, since: float) -> float:
        """Returns the seconds since then in heard time, which leaves out gaps of more than 5 s between beats."""
        total, last = 0.0, since
        for beat in [*(b for b in self._beats if b > since), self._now()]:
            total += beat - last if beat - last <= 5 else 0.0
            last = beat
        return total

    def _proven_dead(self, claim: ClaimRow, what: str) -> None:
        pod = self._world.pods.get(claim.worker or "")
        uid = self.before.workers[claim.worker].uid if self.before and claim.worker in self.before.workers else None
        if pod is not None and pod.install == self._install and pod.uid == uid and pod.phase != "ended":
            raise Broken("P2", f"{claim.id} {what}, and its worker {pod.name} is {pod.phase}")

    # Answers to replicas

    def refused(self, worker: str) -> None:
        """Record that a replica learned of a refused create. It must then free the worker's slot."""
        self._refused[worker] = self._refused.get(worker, 0) + 1
        if self._refused[worker] >= 4:  # a crash or an outage may prevent it, but not every time
            raise Broken("P5", f"{worker} was refused {self._refused[worker]} times, and its slot is still taken")

    # Before an effect on a pod

    def effect(self, kind: str, pod: WorldPod) -> None:
        if pod.install != self._install:
            return
        if kind == "vanish" and self.before is not None and (self._unnoticed or self.before.recovering):
            # This pod had the last record of the claims that the database lost, and it was not compared yet.
            last = {record.claim for record in (pod.stamp, pod.result) if record is not None}
            self._book.forgotten |= last - self.before.claims.keys() - self.ended
        if kind not in ("delete", "clear", "forget"):
            return
        row, live = self._of(pod.name)
        if kind == "delete" and row is not None and row[0] not in (None, pod.uid):
            raise Broken("P2", f"{pod.name} of UID {pod.uid[:8]} is deleted, and its worker's is {row[0][:8]}")
        busy = self._book.doing.get(pod.uid)
        if pod.name in self._rewound and busy is None:
            # The decision may come from rows that the database lost since. `forget` also removes the last record of the claim.
            known = (pod.stamp, pod.result) if kind == "forget" else ()
            self._book.forgotten.update(record.claim for record in known if record is not None)
            return
        if live is not None and row is not None and row[0] == pod.uid:
            claim, fence, state = live
            if kind == "delete":
                raise Broken("P2", f"{pod.name} is deleted under {claim}, which is {state}")
            if kind == "clear" and pod.stamp is not None and pod.stamp.fence == fence:
                raise Broken("P3", f"the protection of {pod.name} is cleared under {claim}, which is {state}")
            if kind == "forget":
                raise Broken("P8", f"the record of {pod.name} is removed while {claim} is {state}")
        if kind == "delete" and busy is not None and live is None and busy[0] not in self.ended | self._book.forgotten:
            raise Broken("P7", f"{pod.name} is deleted while it works for {busy[0]}, which has not ended")

    def _of(self, worker: str) -> tuple[tuple[str | None] | None, tuple[str, int, str] | None]:
        """Returns the worker's row and its live claim, read now."""
        sql = """SELECT w.pod_uid, c.id, c.fence, c.state FROM holdfast.worker w
                 LEFT JOIN holdfast.claim c ON c.worker_id = w.id AND c.state IN ('assigned', 'active')
                 WHERE w.id = $1 AND w.state <> 'gone'"""
        found = self._gate.postgres.ask(self._gate.clock(), sql, worker)
        if not found:
            return None, None
        uid, claim, fence, state = found[0]
        return (uid,), (claim, fence, state) if claim is not None else None

    def _pod(self, worker: WorkerRow) -> WorldPod | None:
        pod = self._world.pods.get(worker.id)
        same = pod is not None and pod.install == self._install and worker.uid in (None, pod.uid)
        return pod if same else None


def _essence(tables: Tables) -> object:
    """Returns the live rows, without the columns that change with time alone."""
    workers = [row[:8] for row in tables.workers.values() if row.state != "gone"]
    return workers, [row[:8] for row in tables.claims.values() if row.state != "ended"]
