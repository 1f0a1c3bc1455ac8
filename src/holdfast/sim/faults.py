"""Faults as data: a plan that is drawn from the seed and can be printed, replayed and shortened."""

import random
from typing import NamedTuple

import msgspec

from .moments import MOMENTS

NONE = "none"  # in place of a seed's faults: a run without any
# Every kind of fault, and how long it may last, in seconds (0, 0: it has no duration).
KINDS: dict[str, tuple[float, float]] = {
    # replicas
    "replica.crash": (0, 0),
    "replica.crash-after-effect": (0, 0),
    "replica.pause": (3, 180),
    "replica.store-away": (3, 120),
    "replica.store-slow": (5, 90),
    "replica.store-flaky": (5, 90),
    "replica.cluster-away": (3, 120),
    "replica.clock-jump": (5, 120),
    "deploy.rolling": (0, 0),
    "deploy.all-at-once": (0, 0),
    "replicas.pause-all": (3, 60),
    # Postgres
    "store.restart": (0.5, 4),
    "store.outage": (20, 240),
    "store.clock-jump": (0, 0),
    "store.failover": (0.5, 60),
    # the network between agents, holders and replicas
    "network.lossy": (5, 90),
    # the cluster's API
    "cluster.down": (5, 120),
    "cluster.failing": (5, 120),
    "cluster.slow": (5, 60),
    "cluster.answers-lost": (5, 90),
    "cluster.late-writes": (5, 120),
    "cluster.lists-stale": (5, 120),
    "cluster.lists-empty": (5, 90),
    "cluster.hints-lost": (5, 120),
    "cluster.quota": (20, 120),
    "cluster.image-errors": (10, 90),
    "cluster.starts-crash": (10, 90),
    "cluster.starts-slow": (10, 90),
    "cluster.stubborn-pods": (20, 120),
    "hooks.fail": (10, 120),
    # pods and nodes
    "pod.kill": (0, 0),
    "pod.vanish": (0, 0),
    "pod.evict": (0, 0),
    "pod.delete": (0, 0),
    "pod.hang": (10, 150),
    "pod.impostor": (0, 0),
    "pods.kill-many": (0, 0),
    "node.cordon": (10, 120),
    "node.drain": (30, 180),
    "node.partition": (10, 150),
    "node.death": (0, 0),
    # people
    "operator.rollout": (0, 0),
    "operator.resize": (20, 120),
    "operator.freeze": (10, 90),
    "operator.force-release": (0, 0),
    "operator.delete-pool": (0, 0),
    "operator.retire": (0, 0),
}


class Fault(msgspec.Struct, frozen=True):
    """One fault: when, what, and for how long. `pick` chooses its target and `amount` its strength, both in 0…1."""

    at: float
    kind: str
    span: float
    pick: float
    amount: float
    moment: str = ""  # if set, the fault begins at the first such moment after `at`; it may be another fault
    until: str = ""  # if set, the fault ends at the first such moment after it began, and not after `span`

    def __str__(self) -> str:
        span = f" for {self.span:.1f} s" if self.span and not self.until else ""
        moment = f"@{self.moment}" if self.moment else ""
        moment += f"..{self.until}" if self.until else ""
        return f"{self.at:8.3f}  {self.kind}{moment}{span} (pick {self.pick:.2f}, amount {self.amount:.2f})"


def seed_of(text: str) -> str:
    """Check a seed: a number, optionally with the only faults that it may draw, such as `7`, `7@store.failover+pod.kill`,
    `7@pod.kill@claim.active` (each fault waits for this moment), `7@pod.hang@claim.active..claim.ended` (and ends at that
    moment), `7@cluster.quota=0.5` (with this amount) or `7@none`."""
    number, at, only = text.partition("@")
    if not number.isdecimal():
        raise ValueError(f"{text!r} is not a seed: a number, or a number and faults such as 7@store.failover+pod.kill")
    for part in _parts(only) if at else ():
        if part.kind not in KINDS:
            raise ValueError(f"{part.kind!r}: no such fault; there are {', '.join(KINDS)}, or none")
        if wrong := [moment for moment in (part.moment, part.until) if moment not in (None, *MOMENTS, *KINDS)]:
            raise ValueError(f"{wrong[0]!r}: no such moment; there are {', '.join(MOMENTS)}, and the faults")
        if part.amount is not None and not 0 <= part.amount <= 1:
            raise ValueError(f"{part.kind}={part.amount:g}: no such amount; it is between 0 and 1")
    return text


class Part(NamedTuple):
    """A kind of fault that a seed names, with its moments and amount if the seed names them too."""

    kind: str
    moment: str | None = None
    until: str | None = None
    amount: float | None = None


def _parts(only: str) -> list[Part]:
    found = []
    for text in only.split("+") if only != NONE else ():
        what, at, moment = text.partition("@")
        moment, to, until = moment.partition("..")
        kind, given, amount = what.partition("=")
        found.append(Part(kind, moment if at else None, until if to else None, float(amount) if given else None))
    return found


def draw(seed: str, begin: float, length: float) -> list[Fault]:
    """Returns the plan of this seed. Some runs have few kinds of faults, which then occur alone; others have many, combined."""
    source = random.Random(f"faults/{seed}")
    _, _, only = seed.partition("@")
    kinds = _parts(only) if only else [Part(kind) for kind in KINDS]
    if not only and source.random() < 0.5:
        kinds = source.sample(kinds, source.randint(2, 6))
    faults = []
    for _ in range(source.randint(4, 18) if kinds else 0):
        kind, moment, until, given = source.choice(kinds)
        low, high = KINDS[kind]
        span = source.uniform(low, min(high, low + source.expovariate(3 / max(0.1, high - low))))
        at = round(begin + source.random() * length, 3)
        pick, amount = source.random(), source.random()
        amount = amount if given is None else given
        faults.append(Fault(at, kind, round(span, 3), pick, amount, moment or "", until or ""))
    return sorted(faults, key=lambda fault: (fault.at, fault.kind))
