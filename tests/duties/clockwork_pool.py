"""A pool without a cluster. Its workers start, serve and end by a clock, and only `scale` makes decisions."""

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.duties.actions import Action, Condemn, Spawn
from holdfast.duties.scale import plan_pool
from holdfast.model.pool import Pool, PoolSpec
from holdfast.ports.store import PoolLoad

STEP = 2.0  # seconds between two passes
START = 3  # passes until a new worker is ready
LEAVE = 2  # passes until a retiring worker is gone


def pool(**fields: Any) -> Pool:
    about = {key: fields.pop(key) for key in ("frozen", "state", "backoff_until") if key in fields}
    spec = msgspec.convert({"warm": 2, "max": 10, **fields}, PoolSpec)
    return Pool(
        **{
            "id": "p-1",
            "name": "etl",
            "spec": spec,
            "revision": "new",
            "state": "live",
            "source": "api",
            "created_at": 0.0,
            **about,
        }
    )


def named(prefix: str, count: int) -> list[tuple[str, int]]:
    return [(f"w-{prefix}-{n}", 1) for n in range(count)]


def load(
    its_pool: Pool,
    *,
    current: int = 0,
    outdated: int = 0,
    starting: int = 0,
    outdated_starting: int = 0,
    parked: int = 0,
    expired: int = 0,
    ready: int | None = None,
    **facts: Any,
) -> PoolLoad:
    """Returns what the store would show of a pool with these numbers of workers."""
    known = {
        "pool": its_pool,
        "now": 1000.0,
        "spawning": starting + outdated_starting,
        "warm": current + outdated,
        "held": 0,
        "parked": parked,
        "retiring": 0,
        "waiting": facts.get("servable", 0),
        "servable": 0,
        "free_ready": current + outdated if ready is None else ready,
        "outdated_starting": named("outdated-starting", outdated_starting),
        "outdated_warm": named("outdated", outdated),
        "current_warm": named("current", current),
        "starting": named("starting", starting),
        "parked_free": named("parked", parked),
        "parked_expired": named("parked", expired),
    }
    return PoolLoad(**{**known, **facts})


@dataclass(frozen=True)
class One:
    name: str
    state: str
    current: bool = True
    left: int = 0  # passes until the worker is ready, or gone


@dataclass
class Model:
    """Workers and a clock. Demand is constant: `held` workers stay held, and `blocked` claims wait behind tenants' caps."""

    pool: Pool
    workers: list[One]
    blocked: int = 0
    starts: bool = True  # if False, new workers never become ready
    now: float = 1000.0
    shrunk_at: float | None = None
    counted: list[float] = field(default_factory=list)  # times at which the brake counted an ending
    _made: int = 0

    def count(self, *states: str) -> int:
        return sum(worker.state in states for worker in self.workers)

    @property
    def free(self) -> int:
        return self.count("spawning", "warm")

    @property
    def outdated(self) -> int:
        return sum(not worker.current and worker.state in ("spawning", "warm") for worker in self.workers)

    def brake_room(self) -> int:
        """Returns how many endings the brake would still allow, counted as the store counts them."""
        lately = sum(at > self.now - 600 for at in self.counted)
        return max(0, int(max(50, 0.25 * (len(self.workers) + lately))) - lately)

    def look(self) -> PoolLoad:
        def those(state: str, current: bool) -> list[tuple[str, int]]:
            return [(worker.name, 1) for worker in self.workers if worker.state == state and worker.current is current][:50]

        return PoolLoad(
            pool=self.pool,
            now=self.now,
            spawning=self.count("spawning"),
            warm=self.count("warm"),
            held=self.count("held"),
            parked=self.count("parked"),
            retiring=self.count("retiring"),
            waiting=self.blocked,
            servable=0,
            free_ready=self.count("warm"),
            outdated_starting=those("spawning", False),
            outdated_warm=those("warm", False),
            brake_room=self.brake_room(),
            current_warm=those("warm", True),
            starting=those("spawning", True),
            shrunk_ago=None if self.shrunk_at is None else self.now - self.shrunk_at,
        )

    def step(self) -> list[Action]:
        """Runs one pass, applies its actions, and moves the clock to the next pass."""
        plan = plan_pool(self.look())
        for action in plan:
            if isinstance(action, Condemn):
                self._condemn(action)
            elif isinstance(action, Spawn):
                self._spawn(action)
        self._pass()
        return plan

    def _condemn(self, action: Condemn) -> None:
        for n, worker in enumerate(self.workers):
            if worker.name == action.worker and worker.state in ("spawning", "warm", "parked"):
                self.workers[n] = replace(worker, state="retiring", left=LEAVE)
        if action.pool_id is not None:
            self.shrunk_at = self.now
        if action.counted:
            self.counted.append(self.now)

    def _spawn(self, action: Spawn) -> None:
        room = self.pool.spec.max - len(self.workers)
        wanted = min(action.count, room, action.free_target - self.free, action.starting_limit - self.count("spawning"))
        for _ in range(wanted):
            self._made += 1
            self.workers.append(One(f"w-new-{self._made}", "spawning", left=START))

    def _pass(self) -> None:
        self.now += STEP
        after = []
        for worker in self.workers:
            if worker.state == "retiring" and worker.left == 0:
                continue
            if worker.state == "spawning" and worker.left == 0 and self.starts:
                after.append(replace(worker, state="warm"))
                continue
            after.append(replace(worker, left=max(0, worker.left - 1)))
        self.workers = after


def some(state: str, count: int, current: bool = True) -> list[One]:
    left = START if state == "spawning" else LEAVE
    return [One(f"w-{state}-{'new' if current else 'old'}-{n}", state, current, left) for n in range(count)]
