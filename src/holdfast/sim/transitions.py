"""Check that a change of state is one that the state machine allows, and that events record it."""

from collections.abc import Iterable

from ..model.machine import Machine
from .book import Broken
from .tables import EventRow


def check_transition(machine: Machine, id_: str, before: str | None, now: str, events: Iterable[EventRow], what: str) -> None:
    """Check that the machine allows a change of state and that events record it. One statement may make several changes."""
    kinds = {name for e in events if (e.worker if what == "worker" else e.claim) == id_ for name in (e.kind, e.also) if name}
    ways = [t for t in machine.transitions if t.event in kinds]
    reached = {before}
    for _ in ways:
        reached |= {t.target for t in ways if (reached & set(t.sources)) or (None in reached and not t.sources)}
    if now not in reached or (now == before and not ways):
        raise Broken("state", f"{id_} went from {before} to {now}, and its events are {sorted(kinds)}")
