"""What `converge` reads about all workers, and the names of the cases. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ..model.pod import Heartbeat, Pod
from ..ports.recovery import Recovery
from ..ports.store import Row
from .actions import Action

PART = 500  # workers that are judged before the event loop serves requests again: about 5 ms


class Case(StrEnum):
    QUIET = "quiet"
    STARTING = "starting"
    START_BLOCKED = "start-blocked"
    UID_UNKNOWN = "uid-unknown"
    READY = "ready"
    SPAWN_UNKNOWN = "spawn-unknown"
    NEVER_READY = "never-ready"
    POD_ENDED_FREE = "pod-ended-free"
    POD_ENDED_ASSIGNED = "pod-ended-assigned"
    POD_ENDED_ACTIVE = "pod-ended-active"
    POD_ENDED_UNTOUCHED = "pod-ended-untouched"
    TERMINATING_FREE = "terminating-free"
    TERMINATING_BUSY = "terminating-busy"
    CORDONED_FREE = "cordoned-free"
    SILENT = "silent"
    SILENT_RETIRE = "silent-retire"
    HEARD_AGAIN = "heard-again"
    UNHEARD = "unheard"
    STRANGE_HOLD = "strange-hold"
    HOLDS_ON = "holds-on"
    AGENT_IDLE = "agent-idle"
    PROTECTION_MISSING = "protection-missing"
    PROTECTION_LEFT = "protection-left"
    STAMP_YOUNG = "stamp-young"
    UNSEALED = "unsealed"
    RETIRING = "retiring"
    RETIRING_ENDING = "retiring-ending"
    RETIRING_UNCONFIRMED = "retiring-unconfirmed"
    RETIRED = "retired"
    POD_MISSING_ONCE = "pod-missing-once"
    POD_MISSING = "pod-missing"
    ORPHAN_YOUNG = "orphan-young"
    ORPHAN = "orphan"
    ORPHAN_ENDED = "orphan-ended"
    ORPHAN_BUSY = "orphan-busy"
    ORPHAN_FROM_BEFORE = "orphan-from-before"
    ORPHAN_IDLE = "orphan-idle"
    AHEAD = "ahead"
    RECOVERING = "recovering"


@dataclass(frozen=True)
class Observed:
    """Pods are read before rows. A claim that is assigned in between shows on the row, so its worker is not taken for a free
    one."""

    pods: dict[str, Pod]
    rows: dict[str, Row]
    heartbeats: dict[str, Heartbeat]  # of pods without a row
    state: Recovery
    now: float
    missing_before: frozenset[str] = frozenset()
    quarantined: frozenset[str] = frozenset()
    whole: bool = True  # False when only some pods and rows were read
    strange: Mapping[str, float] = field(default_factory=dict)  # seconds since each pod was first seen without a row

    def parts(self) -> Iterator["Observed"]:
        """Yields the view in slices, so that requests are served in between. During recovery it yields the whole view, because
        the end of recovery depends on all workers."""
        names = sorted(self.rows.keys() | self.pods.keys())
        if self.state.recovering or len(names) <= PART:
            yield self
            return
        for start in range(0, len(names), PART):
            some = names[start : start + PART]
            pods = {name: self.pods[name] for name in some if name in self.pods}
            rows = {name: self.rows[name] for name in some if name in self.rows}
            yield replace(self, pods=pods, rows=rows)


@dataclass(frozen=True)
class Verdict:
    case: Case
    actions: list[Action] = field(default_factory=list)
