"""What the history tells about a change: its kind, by which a reader can filter, and who caused it."""

from typing import Literal

import msgspec

from .claim import CLAIM
from .worker import WORKER

# Events that are not the transition of a claim or a worker.
OTHERS = (
    "brake.released",
    "brake.set",
    "brake.tripped",
    "claim.unprotected",
    "pod.quarantined",
    "pool.changed",
    "pool.created",
    "pool.draining",
    "pool.frozen",
    "pool.gone",
    "pool.thawed",
    "pool.troubled",
    "recovery.began",
    "recovery.ended",
    "tenant.changed",
    "tenant.created",
    "tenant.deleted",
    "term.taken",
    "token.created",
    "token.revoked",
    "worker.confirmed",
    "worker.given_up",
    "worker.suspect",
)
TRANSITIONS = tuple(transition.event for machine in (CLAIM, WORKER) for transition in machine.transitions)
KINDS = tuple(sorted({*TRANSITIONS, *OTHERS}))
# The index `event_kind` leaves these out, because they are written for every claim or worker, and each entry would cost time on
# the claim path. They are so frequent that a reader finds them quickly without an index.
FREQUENT = (
    "claim.active",
    "claim.assigned",
    "claim.created",
    "claim.ended",
    "worker.adopted",  # also the second kind of `claim.adopted`, and second kinds are not indexed
    "worker.gone",
    "worker.held",
    "worker.parked",
    "worker.retiring",
    "worker.returned",
    "worker.spawning",
    "worker.warm",
)


class Actor(msgspec.Struct, frozen=True):
    """The token with which somebody caused an event. The token itself is not part of it."""

    id: str
    name: str
    role: Literal["admin", "operator", "tenant"]


def kinds_named(name: str) -> tuple[str, ...]:
    """Returns the kinds that a name stands for: the kind itself (`claim.ended`), or all kinds of a noun (`claim`)."""
    return tuple(kind for kind in KINDS if kind == name or kind.startswith(f"{name}."))
