"""Builds the views that `converge` reads from short descriptions: a row, its pod, the agent's last report, and the whole view."""

import random
from typing import Any

from hypothesis import strategies as st

from holdfast.duties.observed import Observed
from holdfast.model.claim import fence_of
from holdfast.model.pod import Heartbeat, Pod, Stamp
from holdfast.model.worker import Worker
from holdfast.ports.recovery import Recovery
from holdfast.ports.store import Row

NAME = "w-etl-1"
UID = "uid-1"
NOW = 1_000_000.0
EPOCH = 3
LAST = fence_of(EPOCH, 1000)
FENCE = fence_of(EPOCH, 7)
STAMP = Stamp("acme", "c-1", FENCE)


def state(**facts: Any) -> Recovery:
    known = {
        "install": "i-test",
        "epoch": EPOCH,
        "mark": 9,
        "recovering": False,
        "reason": None,
        "age": 0.0,
        "last_fence": LAST,
    }
    return Recovery(**{**known, **facts})


def pod(**facts: Any) -> Pod:
    known = {
        "name": NAME,
        "uid": UID,
        "worker": facts.get("name", NAME),
        "install": "i-test",
        "pool_id": "p-1",
        "pool": "etl",
        "revision": "r1",
        "phase": "running",
        "version": "v1",
        "created_at": NOW - 3600,
        "epoch": EPOCH,
        "ready": True,
    }
    return Pod(**{**known, **facts})


def heartbeat(age: float = 1.0, doing: str = "idle", **facts: Any) -> Heartbeat:
    return Heartbeat(**{"worker": NAME, "age": age, "doing": doing, **facts})


BUSY = {"claim": "c-1", "fence": FENCE, "tenant": "acme"}
WORKER_FIELDS = set(Worker.__struct_fields__)


def row(state: str = "warm", **facts: Any) -> Row:
    """Returns a worker as the store would show it. A held worker has its claim, and a parked worker has its tenant."""
    worker = {
        "id": NAME,
        "pool_id": "p-1",
        "pool": "etl",
        "state": state,
        "version": 5,
        "revision": "r1",
        "created_at": NOW - 3600,
        "state_since": NOW - 300,
        "pod_uid": UID,
        "ready": state != "spawning",
    }
    around: dict[str, Any] = {
        "age": 300.0,
        "epoch": EPOCH,
        "pool_frozen": False,
        "agent": True,
        "protection": "claim",
        "silence": "alert",
        "seal": False,
        "start_timeout": 600.0,
        "grace": 3600.0,
        "heartbeat": heartbeat(),
    }
    if state == "held":
        worker |= BUSY
        around |= {
            "claim_state": "active",
            "claim_delivered": True,
            "heartbeat": heartbeat(doing="running", **BUSY),
        }
    if state == "parked":
        worker |= {"tenant": "acme", "fence": FENCE, "parked_since": NOW - 60, "park_ttl": 60.0}
    for name, value in facts.items():
        (worker if name in WORKER_FIELDS and name != "state" else around)[name] = value
    return Row(worker=Worker(**worker), **around)


def seen(one: Row | None, its_pod: Pod | None, **facts: Any) -> Observed:
    known: dict[str, Any] = {
        "pods": {its_pod.name: its_pod} if its_pod else {},
        "rows": {one.worker.id: one} if one else {},
        "heartbeats": {},
        "state": state(),
        "now": NOW,
    }
    return Observed(**{**known, **facts})


# Random views of anything that the store and the cluster may show, including combinations that should never occur. They are built
# from seeds, because a view has some hundred choices, and Hypothesis is too slow if it draws each of them.

FENCES = [fence_of(EPOCH - 1, 900), fence_of(EPOCH, 6), FENCE, fence_of(EPOCH, 8), LAST]
AGES = [0.0, 4.9, 5.1, 29.0, 44.0, 46.0, 59.9, 60.1, 599.0, 601.0, 1e6]
DOING = ["idle", "activating", "running", "resetting", "draining"]
NAMES = [f"w-{n}" for n in range(5)]
BOTH = [False, True]


def any_heartbeat(dice: random.Random, name: str = NAME) -> Heartbeat:
    held = {"claim": dice.choice(["c-1", "c-2"]), "fence": dice.choice(FENCES), "tenant": "acme"}
    facts = held if dice.random() < 0.5 else {}
    return heartbeat(dice.choice(AGES), dice.choice(DOING), worker=name, reported_since_recovery=dice.choice(BOTH), **facts)


def any_pod(dice: random.Random, name: str = NAME) -> Pod:
    stamp = Stamp(dice.choice(["acme", "other"]), dice.choice(["c-1", "c-2"]), dice.choice(FENCES))
    return pod(
        name=name,
        uid=dice.choice([UID, UID, "uid-2"]),
        phase=dice.choice(["pending", "running", "running", "ended"]),
        created_at=NOW - dice.choice(AGES),
        ready=dice.choice(BOTH),
        terminating=dice.random() < 0.3,
        schedulable=dice.random() < 0.8,
        node=dice.choice([None, "n-1"]),
        stamp=stamp if dice.random() < 0.4 else None,
        protected=dice.choice(BOTH),
        epoch=dice.choice([EPOCH - 1, EPOCH, EPOCH]),
        exit_code=dice.choice([None, 0, 1]),
        exit_fence=dice.choice([None, *FENCES]),
        trouble=dice.choice([None, "image"]),
    )


def any_row(dice: random.Random, name: str = NAME, **fixed: Any) -> Row:
    which = dice.choice(["spawning", "warm", "parked", "retiring", "held", "held", "held"])
    live = {"claim_state": dice.choice(["assigned", "active"])} if which == "held" else {}
    facts = {
        "id": name,
        "age": dice.choice(AGES),
        "pool_frozen": dice.random() < 0.3,
        "agent": dice.random() < 0.8,
        "protection": dice.choice(["claim", "claim", "always", "off"]),
        "silence": dice.choice(["alert", "retire"]),
        "seal": dice.random() < 0.2,
        "heartbeat": any_heartbeat(dice, name) if dice.random() < 0.8 else None,
        "suspect_since": dice.choice([None, NOW - 10]),
        "unconfirmed_since": dice.choice([None, None, NOW - 10]),
        "pod_uid": dice.choice([UID, UID, UID, None]),
        "scheduled_age": dice.choice([None, *AGES]),
        "claim_retry": dice.choice([None, "lost"]),
        "claim_losses": dice.randrange(4),
        "terminating": dice.choice(BOTH),
        "schedulable": dice.choice(BOTH),
        "pod_protected": dice.choice(BOTH),
    }
    return row(which, **facts, **live) if not fixed else row(which, **{**facts, **live, **fixed})


def any_view(dice: random.Random, recovering: bool | None = None, **fixed: Any) -> Observed:
    these_rows = {name: any_row(dice, name, **fixed) for name in NAMES if dice.random() < 0.7}
    these_pods = {name: any_pod(dice, name) for name in NAMES if dice.random() < 0.7}
    strangers = sorted(these_pods.keys() - these_rows.keys())
    lost = dice.choice(BOTH) if recovering is None else recovering
    return Observed(
        these_pods,
        these_rows,
        {name: any_heartbeat(dice, name) for name in strangers if dice.random() < 0.6},
        state(recovering=lost, age=dice.choice([0.0, 6.0, 31.0])),
        NOW,
        frozenset(name for name in NAMES if dice.random() < 0.5),
        frozenset(name for name in NAMES if dice.random() < 0.2),
        dice.choice(BOTH),
    )


DICE = st.integers(0, 2**32 - 1).map(random.Random)


def pods() -> st.SearchStrategy[Pod]:
    return DICE.map(any_pod)


def heartbeats() -> st.SearchStrategy[Heartbeat]:
    return DICE.map(any_heartbeat)


def rows() -> st.SearchStrategy[Row]:
    return DICE.map(any_row)


def views(recovering: bool | None = None, **fixed: Any) -> st.SearchStrategy[Observed]:
    return DICE.map(lambda dice: any_view(dice, recovering, **fixed))
